#include "cohort/data/source/openers.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "tests/support/data_files.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

Batch read_all(const DataSource& source) {
  std::vector<int64_t> all(static_cast<size_t>(source.num_samples()));
  std::iota(all.begin(), all.end(), 0);
  Batch batch;
  source.read(all, batch);
  return batch;
}

/// Share of validation samples that the nearest class mean of train gets right.
double accuracy_of_class_means(const DataSet& data) {
  const size_t elements = static_cast<size_t>(data.train->shape().input_elements()),
               classes = static_cast<size_t>(data.train->shape().num_classes);
  const Batch train = read_all(*data.train), validation = read_all(*data.validation);
  std::vector<double> means(classes * elements);
  for (size_t i = 0; i < train.targets.size(); ++i) {
    for (size_t at = 0; at < elements; ++at)
      means[static_cast<size_t>(train.targets[i]) * elements + at] += train.values[i * elements + at];
  }
  int64_t right = 0;
  for (size_t i = 0; i < validation.targets.size(); ++i) {
    size_t best = 0;
    double best_product = -1e300;
    for (size_t c = 0; c < classes; ++c) {
      double product = 0;
      for (size_t at = 0; at < elements; ++at) product += means[c * elements + at] * validation.values[i * elements + at];
      if (product > best_product) best_product = product, best = c;
    }
    right += static_cast<int64_t>(best) == validation.targets[i];
  }
  return static_cast<double>(right) / static_cast<double>(validation.num_samples);
}

}  // namespace

TEST_CASE("synthetic: shapes, classes, samples") {
  const DataSet flat = open_synthetic("784", {});
  CHECK(flat.train->shape().input == std::vector<int64_t>{784});
  CHECK(flat.train->num_samples() == 9000);
  CHECK(flat.validation->num_samples() == 1000);
  const DataSet picture = open_synthetic("3x9x7,classes=4,samples=100,noise=0.5", {.validation_samples = 20});
  CHECK(picture.train->shape().input == std::vector<int64_t>{3, 9, 7});
  CHECK(picture.train->shape().num_classes == 4);
  CHECK(picture.train->num_samples() == 80);
  const DataSet text = open_synthetic("text,samples=50", {.context = 16});
  CHECK(text.train->shape().kind == DataShape::Kind::kText);
  CHECK(text.train->shape().input == std::vector<int64_t>{16});
  CHECK(text.train->num_samples() == 45);
}

TEST_CASE("synthetic: a sample is a function of seed and index alone") {
  for (const char* specification : {"33,samples=100", "2x5x6,samples=100", "2x5x6,labels=5,samples=100", "text,samples=100"}) {
    const DataSet data = open_synthetic(specification, {.context = 8, .seed = 5}),
                  again = open_synthetic(specification, {.context = 8, .seed = 5});
    const DataSet other = open_synthetic(specification, {.context = 8, .seed = 6});
    const Batch all = read_all(*data.train);
    Batch one;
    again.train->read(std::vector<int64_t>{61}, one);
    const auto same = [](const auto& whole, const auto& part, size_t at) {
      return std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(at * part.size()));
    };
    CHECK(same(all.values, one.values, 61));
    CHECK(same(all.tokens, one.tokens, 61));
    CHECK(same(all.targets, one.targets, 61));
    CHECK(same(all.numbers, one.numbers, 61));
    other.train->read(std::vector<int64_t>{61}, one);
    CHECK_FALSE((same(all.values, one.values, 61) && same(all.tokens, one.tokens, 61)));
    // The split moves no sample: the first of validation is the one after the last of train.
    const DataSet longer = open_synthetic(specification, {.context = 8, .validation_samples = 5, .seed = 5});
    data.validation->read(std::vector<int64_t>{0}, one);
    const Batch longer_all = read_all(*longer.train);
    CHECK(same(longer_all.values, one.values, 90));
    CHECK(same(longer_all.tokens, one.tokens, 90));
  }
}

TEST_CASE("synthetic: values have mean 0 and variance 1, noise is nearly normal, classes are balanced") {
  const DataSet data = open_synthetic("2x20x25,samples=1000,noise=2", {.seed = 3});
  const Batch batch = read_all(*data.train);
  double sum = 0, squares = 0;
  for (const float value : batch.values) sum += value, squares += static_cast<double>(value) * value;
  const double count = static_cast<double>(batch.values.size());
  CHECK(std::abs(sum / count) < 0.05);
  CHECK(squares / count == doctest::Approx(1).epsilon(0.02));
  std::map<int64_t, int> classes;
  for (const int64_t target : batch.targets) ++classes[target];
  CHECK(classes.size() == 10);
  for (const auto& [label, samples] : classes) CHECK(samples == 90);
  // At one position of one class only the noise varies: its deviation is 2 / sqrt(5), its share within one deviation near 68 %.
  double mean = 0, spread = 0;
  int within = 0;
  std::vector<double> values;
  for (size_t i = 0; i < 900; i += 10) {
    for (size_t at = 0; at < 4; ++at) values.push_back(batch.values[i * 1000 + at]);  // One block: one sign.
  }
  for (const double value : values) mean += value / static_cast<double>(values.size());
  for (const double value : values) spread += (value - mean) * (value - mean) / static_cast<double>(values.size());
  for (const double value : values) within += std::abs(value - mean) < std::sqrt(spread);
  CHECK(std::abs(mean) == doctest::Approx(1 / std::sqrt(5.0)).epsilon(0.25));
  CHECK(std::sqrt(spread) == doctest::Approx(2 / std::sqrt(5.0)).epsilon(0.15));
  CHECK(within / static_cast<double>(values.size()) == doctest::Approx(0.68).epsilon(0.12));
}

TEST_CASE("synthetic: pictures can be learnt, up to a point that noise sets") {
  CHECK(accuracy_of_class_means(open_synthetic("1x16x16,samples=500", {})) == 1.0);
  CHECK(accuracy_of_class_means(open_synthetic("64,samples=500,noise=0", {})) == 1.0);
  const double hard = accuracy_of_class_means(open_synthetic("64,samples=500,noise=200", {}));
  CHECK(hard < 0.5);
}

TEST_CASE("synthetic: a quarter of the samples has each label, and a label's pattern tells who has it") {
  const DataSet data = open_synthetic("2x16x16,labels=4,samples=2000,noise=0.5", {.seed = 2});
  CHECK(data.train->shape().labels);
  CHECK(data.train->shape().num_classes == 4);
  const Batch batch = read_all(*data.train);
  CHECK(batch.targets.empty());
  REQUIRE(batch.numbers.size() == 4 * 1800);
  double squares = 0;
  for (const float value : batch.values) squares += static_cast<double>(value) * value;
  // Those without a label, (3/4)^4 of all, have noise alone, a fifth of the variance.
  CHECK(squares / static_cast<double>(batch.values.size()) == doctest::Approx(1 - std::pow(0.75, 4) * 0.8).epsilon(0.05));
  for (size_t label = 0; label < 4; ++label) {
    double count = 0;
    std::vector<double> with(512), without(512);
    for (size_t i = 0; i < 1800; ++i) {
      const bool has_it = batch.numbers[4 * i + label] == 1;
      count += has_it;
      for (size_t at = 0; at < 512; ++at) (has_it ? with : without)[at] += static_cast<double>(batch.values[512 * i + at]);
    }
    CHECK(count / 1800 == doctest::Approx(0.25).epsilon(0.12));
    int64_t right = 0;
    double threshold = 0;
    std::vector<double> pattern(512);
    for (size_t at = 0; at < 512; ++at) {
      const double high = with[at] / count, low = without[at] / (1800 - count);
      pattern[at] = high - low, threshold += pattern[at] * (high + low) / 2;
    }
    for (size_t i = 0; i < 1800; ++i) {
      double score = -threshold;
      for (size_t at = 0; at < 512; ++at) score += pattern[at] * static_cast<double>(batch.values[512 * i + at]);
      right += (score > 0) == (batch.numbers[4 * i + label] == 1);
    }
    CHECK(right > 1600);
  }
}

TEST_CASE("synthetic: text is a chain of order 2 with at most four successors") {
  const DataSet data = open_synthetic("text,samples=2000", {.context = 32, .seed = 1});
  const Batch batch = read_all(*data.train);
  std::map<std::pair<int64_t, int64_t>, std::map<int64_t, int>> successors;
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    const bool first = i % 32 == 0;
    CHECK_MESSAGE((batch.targets[i] == ' ' || (batch.targets[i] >= 'a' && batch.targets[i] <= 'z')), batch.targets[i]);
    if (i % 32 < 31) REQUIRE(batch.targets[i] == batch.tokens[i + 1]);
    if (!first) ++successors[{batch.tokens[i - 1], batch.tokens[i]}][batch.targets[i]];
  }
  double bits = 0, total = 0;
  for (const auto& [pair, counts] : successors) {
    REQUIRE(counts.size() <= 4);
    double sum = 0;
    for (const auto& [next, count] : counts) sum += count;
    for (const auto& [next, count] : counts) bits -= count * std::log2(count / sum);
    total += sum;
  }
  CHECK(successors.size() > 300);
  CHECK(bits / total < 1.75);
  CHECK(bits / total > 1.4);
}

TEST_CASE("synthetic: seed= in the specification overrides the seed of the run") {
  const auto first = [](const std::string& specification, uint64_t seed) {
    Batch batch;
    open_synthetic(specification, {.seed = seed}).train->read(std::vector<int64_t>{0, 5}, batch);
    return batch.values;
  };
  CHECK(first("1x4x4", 3) != first("1x4x4", 4));
  CHECK(first("1x4x4,seed=3", 4) == first("1x4x4", 3));
  CHECK(synthetic_seed("text,seed=7", 1) == 7);
  CHECK(synthetic_seed("text", 1) == 1);
}

TEST_CASE("synthetic: wrong specifications") {
  const auto refusal = [](const std::string& specification) { return error_of([&] { open_synthetic(specification, {}); }); };
  for (const char* shape : {"abc", "1x28", "1x2x3x4", "0", "-5", "1x0x3", "1xx3", "28.5", "784 "}) {
    CHECK(mentions(refusal(shape), "expected a shape like 784"));
  }
  CHECK(mentions(refusal(""), "the path is missing"));
  CHECK(mentions(refusal("5000000"), "more than the limit of 4194304 values"));
  CHECK(mentions(refusal("9000000000x9000000000x9000000000"), "more than the limit"));
  CHECK(mentions(refusal("784,clases=3"), "unknown setting 'clases' (did you mean 'classes'?)"));
  CHECK(mentions(refusal("784,classes"), "expected a shape like 784"));
  CHECK(mentions(refusal("784,"), "expected a shape like 784"));
  CHECK(mentions(refusal("784,classes=1"), "classes=1: expected a whole number from 2 to 65536"));
  CHECK(mentions(refusal("784,samples=3000000000"), "samples=3000000000: expected a whole number from 2 to 2147483647"));
  CHECK(mentions(refusal("784,noise=-1"), "noise=-1: expected a number from 0 to 1000"));
  CHECK(mentions(refusal("784,noise=nan"), "noise=nan: expected a number"));
  CHECK(mentions(refusal("784,seed=-1"), "seed=-1: expected a whole number from 0"));
  CHECK(mentions(refusal("text,classes=3"), "unknown setting 'classes'"));
  CHECK(mentions(refusal("7,classes=3,labels=4"), "a sample has one of classes=N or any of labels=N; give one of the two"));
  CHECK(mentions(refusal("7,labels=4,classes=3"), "give one of the two"));
  CHECK(mentions(refusal("text,labels=4"), "unknown setting 'labels'"));
  CHECK(mentions(error_of([] { open_synthetic("text", {.context = 0}); }), "context: expected 1 to"));
}
