#include <doctest/doctest.h>

#include "cohort/base/fail.h"
#include "cohort/data/source/source.h"
#include "tests/support/data_files.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

TEST_CASE("open_data: each name reaches its kind of data") {
  TempFolder folder;
  folder.write("train-images-idx3-ubyte", idx_images(20, 2, 3));
  folder.write("train-labels-idx1-ubyte", idx_labels(20));
  folder.write("data_batch_1.bin", std::string(4 * 3073, '\1'));
  const std::string text = folder.write("text:with a colon", std::string(500, 'x'));
  for (const std::string name : {"mnist:", "fashion-mnist:", "cifar10:", "text:"}) {
    const DataSet data = open_data(name + folder.path());
    CHECK(data.name == name + folder.path());
    CHECK(data.train->num_samples() > 0);
    CHECK(data.validation->num_samples() > 0);
  }
  CHECK(open_data("text:" + text, {.context = 9}).train->shape().input_elements() == 9);
  CHECK(open_data("synthetic:1x4x4,samples=10").train->num_samples() == 9);
}

TEST_CASE("open_data: a file's bare name is told how it is named") {
  TempFolder folder;
  const std::string file = folder.write("my.txt", std::string(500, 'x'));
  CHECK(mentions(error_of([&] { open_data(file); }), concat("give for text text:", file)));
}

TEST_CASE("open_data: wrong names and arguments") {
  const auto refusal = [](const std::string& specification) { return error_of([&] { open_data(specification); }); };
  CHECK(mentions(refusal("fashon-mnist"),
                 "unknown data 'fashon-mnist' (did you mean 'fashion-mnist'?): expected fashion-mnist[:DIR], mnist:DIR"));
  CHECK(mentions(refusal("cifar:/x"), "did you mean 'cifar10'?"));
  CHECK(mentions(refusal(""), "unknown data ''"));
  CHECK(mentions(refusal("somethingelse"), "unknown data 'somethingelse': expected"));
  for (const char* name : {"mnist", "mnist:", "cifar10", "text:", "synthetic"})
    CHECK(mentions(refusal(name), concat("data '", name, "': expected ")));
  CHECK(mentions(refusal("fashion-mnist:"), "expected fashion-mnist[:DIR]"));
}
