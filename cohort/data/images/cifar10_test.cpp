#include "cohort/data/source/openers.h"

#include <doctest/doctest.h>

#include "cohort/base/random.h"
#include "tests/support/data_files.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

constexpr size_t kRecord = 3073;

/// `count` records; record i has label (first + i) mod 10 and red, green and blue of 10, 20 and 30 plus that label.
std::string records(int first, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) {
    const int label = (first + i) % 10;
    out += static_cast<char>(label);
    for (const int base : {10, 20, 30}) out += std::string(1024, static_cast<char>(base + label));
  }
  return out;
}

std::vector<int64_t> range(int64_t count) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(i);
  return out;
}

}  // namespace

TEST_CASE("cifar10: files in order, labels and channels in their places") {
  TempFolder folder;
  folder.write("data_batch_4.bin", records(300, 7));
  folder.write("data_batch_2.bin", records(3, 300));  // More than one chunk.
  folder.write("data_batch_6.bin", "not a file of CIFAR-10");
  const DataSet data = open_cifar10(folder.path(), {});
  REQUIRE(data.train->num_samples() == 277);
  REQUIRE(data.validation->num_samples() == 30);
  const DataShape& shape = data.train->shape();
  CHECK(shape.input == std::vector<int64_t>{3, 32, 32});
  CHECK(shape.class_names[9] == "truck");

  Batch batch;
  data.train->read(range(277), batch);
  for (size_t i = 0; i < 277; ++i) REQUIRE(batch.targets[i] == static_cast<int64_t>((3 + i) % 10));
  // Channels differ by a constant, so normalised they are equal; pictures of other labels are not.
  for (size_t at = 0; at < 1024; ++at) {
    REQUIRE(batch.values[at] == doctest::Approx(batch.values[2048 + at]).epsilon(1e-4));
    REQUIRE(batch.values[at] < batch.values[3072 + at]);
  }
  data.validation->read(range(30), batch);
  CHECK(batch.targets.front() == (3 + 277) % 10);
  CHECK(batch.targets.back() == 306 % 10);
}

TEST_CASE("cifar10: test_batch.bin is the test set, normalised as the training files are") {
  TempFolder folder;
  folder.write("data_batch_1.bin", records(0, 40));
  CHECK(!open_cifar10(folder.path(), {}).test);
  folder.write("test_batch.bin", records(7, 20));
  const DataSet data = open_cifar10(folder.path(), {});
  REQUIRE(data.test);
  CHECK(data.test->num_samples() == 20);
  CHECK(data.train->num_samples() == 36);
  Batch train, test;
  data.train->read(std::vector<int64_t>{7}, train);
  data.test->read(std::vector<int64_t>{0}, test);
  CHECK(test.values == train.values);
  CHECK(test.targets == std::vector<int64_t>{7});
  folder.write("test_batch.bin", records(7, 20) + "x");
  CHECK(mentions(error_of([&] { open_cifar10(folder.path(), {}); }), "test_batch.bin is truncated"));
}

TEST_CASE("cifar10: class names from the file beside the data") {
  TempFolder folder;
  folder.write("data_batch_1.bin", records(0, 3));
  folder.write("batches.meta.txt", "a\nb\nc\nd\ne\nf\ng\nh\ni\r\nj\n\n");
  CHECK(open_cifar10(folder.path(), {}).train->shape().class_names ==
        std::vector<std::string>{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"});
  const std::string names = folder.write("batches.meta.txt", "only\ntwo\n");
  CHECK(error_of([&] { open_cifar10(folder.path(), {}); }) == names + ": expected 10 class names, found 2");
  folder.write("batches.meta.txt", std::string(5000, 'x'));
  CHECK(mentions(error_of([&] { open_cifar10(folder.path(), {}); }), "in at most 4096 bytes"));
}

TEST_CASE("cifar10: each fault has its own line") {
  TempFolder folder;
  CHECK(mentions(error_of([&] { open_cifar10(folder.path("none"), {}); }), "no folder " + folder.path("none")));
  CHECK(mentions(error_of([&] { open_cifar10(folder.path(), {}); }), "has no CIFAR-10 files"));
  const std::string path = folder.write("data_batch_1.bin", "");
  CHECK(mentions(error_of([&] { open_cifar10(folder.path(), {}); }), path + " is empty"));
  folder.write("data_batch_1.bin", records(0, 3) + "xx");
  CHECK(mentions(error_of([&] { open_cifar10(folder.path(), {}); }),
                 "is truncated: expected a record of 3073 bytes at offset 9219, found 2 bytes"));
  std::string bad = records(0, 300);
  bad[290 * kRecord] = 10;
  folder.write("data_batch_1.bin", bad);
  CHECK(error_of([&] { open_cifar10(folder.path(), {}); }) ==
        path + ": label 10 at offset " + std::to_string(290 * kRecord) + ": expected 0 to 9");
}

TEST_CASE("cifar10: every truncation to no whole record is refused, and every other is a shorter data set") {
  TempFolder folder;
  const std::string good = records(0, 3);
  const std::string path = folder.write("data_batch_1.bin", good);
  for (size_t kept = good.size(); kept-- > 0;) {
    std::filesystem::resize_file(path, kept);
    if (kept == 2 * kRecord) {
      const DataSet data = open_cifar10(folder.path(), {});
      CHECK(data.train->num_samples() + data.validation->num_samples() == 2);
    } else {
      CHECK_FALSE(succeeds_or_is_refused([&] { open_cifar10(folder.path(), {}); }));
    }
  }
}

TEST_CASE("cifar10: any byte changed anywhere gives a data set or, in a label, a refusal") {
  TempFolder folder;
  const std::string good = records(0, 3);
  for (uint64_t round = 0; round < 300; ++round) {
    const uint64_t bits = random_bits(5, round);
    const size_t at = round % 3 == 0 ? bits % 3 * kRecord : bits % good.size();
    std::string changed = good;
    changed[at] = static_cast<char>(bits >> 40);
    folder.write("data_batch_1.bin", changed);
    const bool bad_label = at % kRecord == 0 && static_cast<uint8_t>(changed[at]) > 9;
    CHECK(succeeds_or_is_refused([&] { open_cifar10(folder.path(), {}); }) == !bad_label);
  }
}
