#include "cohort/train/evaluation_text.h"

#include <doctest/doctest.h>

#include <cmath>

#include "cohort/data/source/source.h"

namespace cohort {

TEST_CASE("guessing: an error like that of one answer for all is told, a better one is not") {
  const DataSet data = open_data("synthetic:7,classes=4,samples=400");
  const std::string told = compare_with_guessing(*data.validation, 0.76).sentence;
  CHECK(told.find("an accuracy of 24 % is no better than always answering class ") == 0);
  CHECK(told.find("--lr") != std::string::npos);
  CHECK(compare_with_guessing(*data.validation, 0.4).sentence.empty());
  CHECK(compare_with_guessing(*data.validation, std::nan("")).sentence.empty());
  const double error = compare_with_guessing(*data.validation, 0.4).error;
  CHECK((error > 0.6 && error <= 0.75));  // Of four classes, about equally frequent.
}

TEST_CASE("guessing: validation samples that lie class by class are looked at all over") {
  class InOrder : public DataSource {
   public:
    const DataShape& shape() const override { return shape_; }
    int64_t num_samples() const override { return 4000; }
    void read(std::span<const int64_t> indices, Batch& batch) const override {
      CHECK(indices.size() <= 500);
      batch.num_samples = static_cast<int64_t>(indices.size());
      for (const int64_t index : indices) batch.targets.push_back(index / 1000);
    }

   private:
    DataShape shape_{.input = {1}, .num_classes = 4};
  };
  CHECK(compare_with_guessing(InOrder(), 0.5).error == 0.75);
  CHECK(compare_with_guessing(InOrder(), 0.5).sentence.empty());
  CHECK(!compare_with_guessing(InOrder(), 0.75).sentence.empty());
}

TEST_CASE("guessing: of labels the precision is judged, not the error, which rare labels make small") {
  const DataSet data = open_data("synthetic:7,labels=6,samples=4000");
  const std::string told = compare_with_guessing(*data.validation, 0.25, 0.24).sentence;
  CHECK(told.find("an average precision of 0.24 is no better than that of scores without meaning, which is about 0.2") == 0);
  CHECK(compare_with_guessing(*data.validation, 0.25, 0.4).sentence.empty());
  CHECK(compare_with_guessing(*data.validation, 0.25, 0.4).precision == doctest::Approx(0.2).epsilon(0.2));
  CHECK(compare_with_guessing(*data.validation, 0.25).sentence.empty());
}

TEST_CASE("guessing: labels that no validation sample has are told, for they have no precision") {
  class Bare : public DataSource {
   public:
    const DataShape& shape() const override { return shape_; }
    int64_t num_samples() const override { return 3; }
    void read(std::span<const int64_t> /*indices*/, Batch& batch) const override {
      batch.num_samples = 3;
      batch.numbers.assign(6, 0);
    }

   private:
    DataShape shape_{.input = {1}, .num_classes = 2, .labels = true};
  };
  CHECK(compare_with_guessing(Bare(), 0).sentence.find("no label is on any of the validation samples, so they have no average precision") ==
        0);
}

TEST_CASE("guessing: of a regression the mean is the answer") {
  class Numbers : public DataSource {
   public:
    const DataShape& shape() const override { return shape_; }
    int64_t num_samples() const override { return 3; }
    void read(std::span<const int64_t> /*indices*/, Batch& /*batch*/) const override { FAIL("no sample is needed"); }

   private:
    DataShape shape_{.input = {1}, .num_classes = 1, .regression = true};
  };
  CHECK(
      compare_with_guessing(Numbers(), 0.99).sentence.find("an error of 0.99 of a deviation is no better than always answering the mean") ==
      0);
  CHECK(compare_with_guessing(Numbers(), 0.9).sentence.empty());
}

}  // namespace cohort
