#include "cohort/data/source/openers.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cohort/data/encode_input.h"
#include "cohort/data/images/picture_file.h"
#include "cohort/data/source/fingerprint.h"
#include "tests/support/data_files.h"
#include "tests/support/pictures.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

std::string grey(int value, int width = 4, int height = 4) {
  return png_of(width, height, [=](int x, int y) { return std::vector<uint8_t>{static_cast<uint8_t>(value + 5 * x + y)}; });
}

/// Classes cat and dog of `each` pictures; picture i of cat has the value i, of dog 100 + i.
void write_classes(const TempFolder& folder, const std::string& prefix, int each, int width = 4) {
  for (int i = 0; i < each; ++i) {
    folder.write(prefix + "dog/" + std::to_string(100 + i) + ".png", grey(100 + i, width));
    folder.write(prefix + "cat/" + std::to_string(100 + i) + ".png", grey(i, width));
  }
}

std::string refusal_of(const std::string& argument, const DataOptions& options = {}) {
  return error_of([&] { open_picture_folder(argument, options); });
}

}  // namespace

TEST_CASE("picture folder: classes by name, a split by seed, mean and deviation of the training part") {
  TempFolder folder;
  write_classes(folder, "", 10);
  folder.write(".hidden", "no class");
  folder.write("cat/.DS_Store", "no picture");
  const DataSet data = open_picture_folder(folder.path(), {.validation_samples = 5, .seed = 3});
  CHECK(data.train->num_samples() == 15);
  CHECK(data.train->shape().class_names == std::vector<std::string>{"cat", "dog"});
  CHECK(data.train->shape().input == std::vector<int64_t>{1, 4, 4});
  const Batch train = all_of(*data.train);
  double sum = 0, squares = 0;
  for (const float value : train.values)
    sum += static_cast<double>(value), squares += static_cast<double>(value) * static_cast<double>(value);
  CHECK(sum / static_cast<double>(train.values.size()) == doctest::Approx(0).epsilon(1e-6));
  CHECK(squares / static_cast<double>(train.values.size()) == doctest::Approx(1));
  int64_t dogs = 0;
  for (const DataSource* part : {data.train.get(), data.validation.get()})
    for (const int64_t target : all_of(*part).targets) dogs += target;
  CHECK(dogs == 10);
  CHECK(data_fingerprint(open_picture_folder(folder.path() + ",seed=3", {.validation_samples = 5})) == data_fingerprint(data));
  CHECK(data_fingerprint(open_picture_folder(folder.path() + ",seed=4", {.validation_samples = 5})) != data_fingerprint(data));
}

TEST_CASE("picture folder: decoded once or each time, by one thread or several, the samples are the same; as is what is asked later") {
  TempFolder folder;
  write_classes(folder, "train/", 6, 9);
  write_classes(folder, "val/", 2, 7);
  write_classes(folder, "test/", 1, 5);
  const DataSet kept = open_picture_folder(folder.path(), {.image_size = 3});
  CHECK(kept.train->num_samples() == 12);
  CHECK(kept.validation->num_samples() == 4);
  REQUIRE(kept.test);
  CHECK(kept.test->num_samples() == 2);
  for (const int threads : {1, 3}) {
    const DataSet anew = open_picture_folder(folder.path() + ",memory=0", {.image_size = 3, .threads = threads});
    CHECK(data_fingerprint(anew) == data_fingerprint(kept));
  }
  const DataDescription description = kept.train->describe();
  const std::vector<uint8_t> file = read_picture_file(folder.path("val/cat/100.png"));
  const Batch validation = all_of(*kept.validation);
  CHECK(encode_picture(description, file, "x").values == std::vector<float>(validation.values.begin(), validation.values.begin() + 9));
  // A run that goes on takes the mean that it began with, and reads nothing twice.
  auto moved = std::make_shared<DataDescription>(description);
  moved->mean[0] = 0.75;
  CHECK(open_picture_folder(folder.path() + ",memory=0", {.image_size = 3, .kept = moved}).train->describe().mean[0] == 0.75);
  std::filesystem::remove(folder.path("val/cat/100.png"));
  const DataSet anew = open_picture_folder(folder.path() + ",memory=0", {.image_size = 3});
  std::filesystem::remove(folder.path("val/cat/101.png"));
  CHECK(mentions(error_of([&] { all_of(*anew.validation); }), "val/cat/101.png"));
}

TEST_CASE("picture folder: for a trained model pictures of some of its classes have its labels") {
  TempFolder folder, few;
  write_classes(folder, "", 6, 9);
  const auto kept = std::make_shared<DataDescription>(open_picture_folder(folder.path(), {.image_size = 3}).train->describe());
  REQUIRE(kept->class_names == std::vector<std::string>{"cat", "dog"});
  write_classes(few, "", 4, 9);
  std::filesystem::remove_all(few.path("cat"));
  CHECK(mentions(error_of([&] { open_picture_folder(few.path(), {.image_size = 3}); }), "has one class, dog"));
  const DataSet data = open_picture_folder(few.path(), {.image_size = 3, .kept = kept});
  CHECK(data.train->shape().num_classes == 2);
  for (const int64_t target : all_of(*data.train).targets) CHECK(target == 1);
}

TEST_CASE("picture folder: one colour makes all RGB, channels= decides otherwise") {
  TempFolder folder;
  write_classes(folder, "", 3);
  folder.write("cat/red.png", png_of(4, 4, [](int, int) { return std::vector<uint8_t>{200, 0, 0}; }));
  CHECK(open_picture_folder(folder.path(), {}).train->shape().input == std::vector<int64_t>{3, 4, 4});
  CHECK(open_picture_folder(folder.path() + ",channels=1", {}).train->shape().input == std::vector<int64_t>{1, 4, 4});
  CHECK(mentions(refusal_of(folder.path() + ",channels=2"), "expected 1 (grey) or 3 (RGB)"));
}

TEST_CASE("picture folder: bad pictures are named, or left out and counted") {
  TempFolder folder;
  write_classes(folder, "", 4);
  folder.write("cat/101.png", grey(1).substr(0, 60));
  folder.write("dog/102.png", "");
  folder.write("dog/notes.txt", "no picture");
  CHECK(mentions(refusal_of(folder.path()), folder.path("dog/102.png") + " is empty"));
  for (const std::string how : {"", ",memory=0"}) {
    const DataSet data = open_picture_folder(folder.path() + how, {.validation_samples = 2, .skip_bad = true});
    CHECK(data.skipped.count == 3);
    CHECK(data.train->num_samples() == 4);
    CHECK(mentions(data.skipped.first[0], "102.png is empty"));
    CHECK(mentions(data.skipped.first[2], folder.path("cat/101.png") + ": this PNG cannot be decoded (ends too early) (60 bytes)"));
    CHECK(mentions(data.skipped.first[1], "notes.txt does not begin as a picture does"));
  }
}

TEST_CASE("picture folder: sizes that differ, classes that train lacks, folders that are none") {
  TempFolder folder;
  CHECK(mentions(refusal_of(folder.path("none")), "no folder " + folder.path("none")));
  CHECK(mentions(refusal_of(folder.path()), "has no class folders"));
  write_classes(folder, "a/", 2);
  folder.write("a/cat/wide.png", grey(1, 6));
  CHECK(
      mentions(refusal_of(folder.path("a")), "has 4 x 4 pixels and " + folder.path("a/cat/wide.png") + " has 6 x 4; give --image-size N"));
  CHECK(open_picture_folder(folder.path("a"), {.image_size = 2}).train->shape().input == std::vector<int64_t>{1, 2, 2});
  write_classes(folder, "b/train/", 2);
  folder.write("b/val/cow/1.png", grey(1));
  CHECK(mentions(refusal_of(folder.path("b")), "has the class cow, which train lacks: expected cat, dog"));
  std::filesystem::remove_all(folder.path("b/val"));
  folder.write("b/valid/cat/1.png", grey(1));
  CHECK(mentions(refusal_of(folder.path("b")), "b/valid stands beside train (did you mean 'val'?)"));
  write_classes(folder, "c/", 2);
  folder.write("c/readme.txt", "x");
  CHECK(mentions(refusal_of(folder.path("c")), "c/readme.txt stands beside the class folders"));
  std::filesystem::create_directories(folder.path("d/empty"));
  CHECK(mentions(refusal_of(folder.path("d")), "d/empty has no pictures"));
  folder.write("e/one/1.png", grey(1));
  CHECK(mentions(refusal_of(folder.path("e")), "has one class, one"));
  write_classes(folder, "f/train/", 2);
  write_classes(folder, "f/val/", 2);
  CHECK(mentions(refusal_of(folder.path("f"), {.validation_samples = 1}), "would do nothing; leave it out"));
}
