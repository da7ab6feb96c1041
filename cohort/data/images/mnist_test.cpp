#include "cohort/data/images/mnist.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "tests/support/data_files.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

void write_pair(const TempFolder& folder, const std::string& set, uint32_t count, bool packed) {
  const std::string ending = packed ? ".gz" : "", images = idx_images(count, 4, 5), labels = idx_labels(count);
  folder.write(set + "-images-idx3-ubyte" + ending, packed ? gzip(images) : images);
  folder.write(set + "-labels-idx1-ubyte" + ending, packed ? gzip(labels) : labels);
}

}  // namespace

TEST_CASE("mnist: train files where they are, t10k files else") {
  TempFolder folder;
  write_pair(folder, "t10k", 30, false);
  CHECK(open_mnist(folder.path(), {}).train->num_samples() == 27);
  write_pair(folder, "train", 50, true);
  const DataSet data = open_mnist(folder.path(), {});
  CHECK(data.train->num_samples() == 45);
  CHECK(data.validation->num_samples() == 5);
  const DataShape& shape = data.train->shape();
  CHECK(shape.kind == DataShape::Kind::kImage);
  CHECK(shape.input == std::vector<int64_t>{1, 4, 5});
  CHECK(shape.num_classes == 10);
  CHECK(shape.class_names[7] == "7");
  CHECK(open_fashion_mnist(folder.path(), {}).train->shape().class_names[9] == "Ankle boot");
}

TEST_CASE("mnist: the other common file names") {
  TempFolder folder;
  folder.write("train-images.idx3-ubyte", idx_images(20, 2, 2));
  folder.write("train-labels.idx1-ubyte", idx_labels(20));
  CHECK(open_mnist(folder.path(), {}).train->num_samples() == 18);
}

TEST_CASE("mnist: what is missing is named") {
  TempFolder folder;
  CHECK(mentions(error_of([&] { open_mnist(folder.path("none"), {}); }), "no folder " + folder.path("none")));
  CHECK(mentions(error_of([&] { open_mnist(folder.path(), {}); }), "has no IDX files: expected train-images-idx3-ubyte[.gz]"));
  const std::string images = folder.write("train-images-idx3-ubyte", idx_images(20, 2, 2));
  write_pair(folder, "t10k", 30, false);  // Not taken in place of a half pair.
  CHECK(error_of([&] { open_mnist(folder.path(), {}); }) == images + " has no labels beside it: expected train-labels-idx1-ubyte[.gz]");
  CHECK(mentions(error_of([&] { open_mnist(images, {}); }), "is not a folder"));
}

TEST_CASE("mnist: swapped and unequal files") {
  TempFolder folder;
  folder.write("train-images-idx3-ubyte", idx_labels(20));
  folder.write("train-labels-idx1-ubyte", idx_labels(20));
  CHECK(mentions(error_of([&] { open_mnist(folder.path(), {}); }), "labels given as images"));
  folder.write("train-images-idx3-ubyte", idx_images(19, 2, 2));
  CHECK(mentions(error_of([&] { open_mnist(folder.path(), {}); }), "has 19 images but "));
  folder.write("train-images-idx3-ubyte", idx_images(1, 2, 2));
  folder.write("train-labels-idx1-ubyte", idx_labels(1));
  CHECK(mentions(error_of([&] { open_mnist(folder.path(), {}); }), "expected at least 2 samples"));
}

TEST_CASE("fashion-mnist: Debian's data set, where it is installed") {
  if (!std::filesystem::exists("/usr/share/datasets/fashion-mnist")) {
    CHECK(mentions(error_of([] { open_fashion_mnist("", {}); }), "apt install dataset-fashion-mnist"));
    return;
  }
  const DataSet data = open_fashion_mnist("", {});
  CHECK(data.train->num_samples() == 55000);
  CHECK(data.validation->num_samples() == 5000);
  CHECK(data.train->shape().input == std::vector<int64_t>{1, 28, 28});
  Batch batch;
  data.train->read(std::vector<int64_t>{0, 1, 2, 3}, batch);
  CHECK(batch.targets == std::vector<int64_t>{9, 0, 0, 3});  // As published: ankle boot, two T-shirts, dress.
  data.validation->read(std::vector<int64_t>{4999}, batch);
  CHECK(batch.targets == std::vector<int64_t>{5});
}

TEST_CASE("mnist: t10k files beside train files are the test set, with the training's normalisation and size") {
  TempFolder folder;
  write_pair(folder, "train", 50, false);
  CHECK(!open_mnist(folder.path(), {}).test);
  write_pair(folder, "t10k", 30, true);
  const DataSet data = open_mnist(folder.path(), {});
  REQUIRE(data.test);
  CHECK(data.test->num_samples() == 30);
  CHECK(data.train->num_samples() == 45);
  // Files of one pattern: the same bytes become the same floats.
  Batch train, test;
  const std::vector<int64_t> indices = {3, 0};
  data.train->read(indices, train);
  data.test->read(indices, test);
  CHECK(train.values == test.values);
  CHECK(test.targets == std::vector<int64_t>{3, 0});
  CHECK(open_mnist(folder.path(), {.image_size = 3}).test->shape().input == std::vector<int64_t>{1, 3, 3});
  const std::string other = folder.write("t10k-images-idx3-ubyte.gz", gzip(idx_images(30, 5, 5)));
  CHECK(error_of([&] { open_mnist(folder.path(), {}); }) ==
        other + " has pictures of 5x5, and the training files of 4x5; the test set must have the same size, or be taken away");
}
