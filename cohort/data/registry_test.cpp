#include "cohort/data/registry.h"

#include <doctest/doctest.h>

#include <stdexcept>

#include "tests/support/data_files.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

/// Two numbers a sample, which say its class.
class Points : public DataSource {
 public:
  Points(int64_t count, int64_t wrong_target) : count_(count), wrong_target_(wrong_target) {}
  const DataShape& shape() const override { return shape_; }
  int64_t num_samples() const override { return count_; }
  void read(std::span<const int64_t> indices, Batch& batch) const override {
    batch.num_samples = std::ssize(indices);
    batch.values.clear(), batch.targets.clear();
    for (const int64_t index : indices) {
      batch.values.insert(batch.values.end(), {static_cast<float>(index % 2), 1.0F});
      batch.targets.push_back(index == wrong_target_ ? 2 : index % 2);
    }
    if (wrong_target_ == -2) batch.values.pop_back();
  }

 private:
  DataShape shape_{DataShape::Kind::kImage, {2}, 2, {}};
  int64_t count_, wrong_target_;
};

DataSet points(const std::string& argument, const DataOptions& options) {
  if (argument == "throws") throw std::runtime_error("the disk\nis away");
  const int64_t wrong = argument == "wrong" ? 1 : argument == "short" ? -2 : -1;
  DataSet data;
  data.train = std::make_shared<Points>(argument == "none" ? 0 : 8, wrong);
  if (argument != "half") data.validation = std::make_shared<Points>(2, -1);
  return data;
}

COHORT_DATA("test-points", points);

/// Two labels, of which each sample has one.
class Labels : public DataSource {
 public:
  Labels(bool is_wrong, bool is_both) : is_wrong_(is_wrong) { shape_.regression = is_both; }
  const DataShape& shape() const override { return shape_; }
  int64_t num_samples() const override { return 4; }
  void read(std::span<const int64_t> indices, Batch& batch) const override {
    batch = {
        .num_samples = std::ssize(indices), .values = std::vector<float>(2 * indices.size()), .tokens = {}, .targets = {}, .numbers = {}};
    for (const int64_t index : indices) {
      const auto odd = static_cast<float>(index % 2);
      batch.numbers.insert(batch.numbers.end(), {odd, is_wrong_ ? 0.5F : 1 - odd});
    }
  }

 private:
  DataShape shape_{.input = {2}, .num_classes = 2, .labels = true};
  bool is_wrong_;
};

COHORT_DATA("test-labels", [](const std::string& argument, const DataOptions&) {
  const auto source = std::make_shared<Labels>(argument == "wrong", argument == "both");
  return DataSet{.name = {}, .train = source, .validation = source};
});

Batch read_two(const DataSet& data) {
  const int64_t indices[] = {0, 1};
  Batch batch;
  data.train->read(indices, batch);
  return batch;
}

}  // namespace

TEST_CASE("registered data: opened by name, described by its shape") {
  const DataSet data = open_data("test-points:anything");
  CHECK(data.name == "test-points:anything");
  CHECK(data.train->num_samples() == 8);
  CHECK(read_two(data).targets == std::vector<int64_t>{0, 1});
  CHECK(data.train->describe().shape == std::vector<int64_t>{2});
  CHECK(mentions(error_of([] { open_data("test-point"); }), "(did you mean 'test-points'?)"));
}

TEST_CASE("registered data: labels are 0 and 1, and are not of text or numbers") {
  CHECK(mentions(error_of([] { read_two(open_data("test-labels:wrong")); }), "read() gave the label 0.5, expected 0 or 1"));
  CHECK(read_two(open_data("test-labels:")).numbers == std::vector<float>{0, 1, 1, 0});
  CHECK(mentions(error_of([] { open_data("test-labels:both"); }), "has labels and is a regression too"));
}

TEST_CASE("registered data: what a factory or a source gives wrong is said, not read past its end") {
  CHECK(error_of([] { open_data("test-points:throws"); }) == "data test-points: its factory failed (the disk)");
  CHECK(mentions(error_of([] { open_data("test-points:none"); }), "its source for training has no samples"));
  CHECK(mentions(error_of([] { open_data("test-points:half"); }), "gave no source for validation"));
  CHECK(mentions(error_of([] { read_two(open_data("test-points:wrong")); }), "read() gave the target 2, expected 0 to 1"));
  CHECK(mentions(error_of([] { read_two(open_data("test-points:short")); }), "read() gave 3 values, expected 4"));
  CHECK(mentions(error_of([] { register_data("csv", "", points); }), "the name is taken"));
  CHECK(mentions(error_of([] { register_data("test-points", "", points); }), "the name is taken"));
  CHECK(mentions(error_of([] { register_data("a:b", "", points); }), "holds no ':'"));
}
