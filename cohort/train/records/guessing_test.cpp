#include "cohort/train/records/guessing.h"

#include <doctest/doctest.h>

#include <cmath>

#include "cohort/data/source.h"

using namespace cohort;

TEST_CASE("guessing: an error like that of one answer for all is told, a better one is not") {
  const DataSet data = open_data("synthetic:7,classes=4,samples=400");
  const std::string told = guessing_sentence(*data.validation, 0.76);
  CHECK(told.find("an accuracy of 24 % is no better than always answering class ") == 0);
  CHECK(told.find("--lr") != std::string::npos);
  CHECK(guessing_sentence(*data.validation, 0.4).empty());
  CHECK(guessing_sentence(*data.validation, std::nan("")).empty());
}

TEST_CASE("guessing: of labels the precision is judged, not the error, which rare labels make small") {
  const DataSet data = open_data("synthetic:7,labels=6,samples=4000");
  const std::string told = guessing_sentence(*data.validation, 0.25, 0.24);
  CHECK(told.find("an average precision of 0.24 is no better than that of scores without meaning, which is about 0.2") == 0);
  CHECK(guessing_sentence(*data.validation, 0.25, 0.4).empty());
  CHECK(guessing_sentence(*data.validation, 0.25).empty());
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
  CHECK(guessing_sentence(Bare(), 0).find("no label is on any of the validation samples, so they have no average precision") == 0);
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
  CHECK(guessing_sentence(Numbers(), 0.99).find("an error of 0.99 of a deviation is no better than always answering the mean") == 0);
  CHECK(guessing_sentence(Numbers(), 0.9).empty());
}
