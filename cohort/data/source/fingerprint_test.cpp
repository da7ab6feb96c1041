#include "cohort/data/source/fingerprint.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "cohort/base/files/file.h"
#include "cohort/data/source/source.h"

using namespace cohort;

namespace {

/// Pictures of one number a pixel, all of which can be set.
class Numbers : public DataSource {
 public:
  Numbers(int64_t num_samples, int64_t side)
      : values(static_cast<size_t>(num_samples * side * side)), targets(static_cast<size_t>(num_samples)) {
    shape_ = {DataShape::Kind::kImage, {1, side, side}, 2, {}};
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 251);
  }
  const DataShape& shape() const override { return shape_; }
  int64_t num_samples() const override { return std::ssize(targets); }
  void read(std::span<const int64_t> indices, Batch& batch) const override {
    const auto size = static_cast<size_t>(shape_.input_elements());
    batch.values.clear(), batch.targets.clear();
    for (const int64_t index : indices) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(index) * size);
      batch.values.insert(batch.values.end(), begin, begin + static_cast<std::ptrdiff_t>(size));
      batch.targets.push_back(targets[static_cast<size_t>(index)]);
    }
    batch.num_samples = std::ssize(indices);
    num_read += batch.num_samples;
  }
  DataShape shape_;
  std::vector<float> values;
  std::vector<int64_t> targets;
  mutable int64_t num_read = 0;
};

std::string fingerprint_of(const Numbers& train, const Numbers& validation = Numbers(3, 2)) {
  return data_fingerprint({"name", std::make_shared<Numbers>(train), std::make_shared<Numbers>(validation)});
}

}  // namespace

TEST_CASE("data_fingerprint: one number, one label, the order or the division of the samples makes another") {
  const Numbers base(1000, 4);
  const std::string expected = fingerprint_of(base);
  CHECK(expected.size() == 16);
  CHECK(fingerprint_of(base) == expected);
  for (const size_t at : {size_t{0}, size_t{777}, base.values.size() - 1}) {
    Numbers other = base;
    other.values[at] += 1;
    CHECK(fingerprint_of(other) != expected);
  }
  for (const size_t at : {size_t{0}, size_t{500}, size_t{999}}) {
    Numbers other = base;
    other.targets[at] = 1;
    CHECK(fingerprint_of(other) != expected);
  }
  Numbers swapped = base;
  std::swap(swapped.values[0], swapped.values[16]);
  CHECK(fingerprint_of(swapped) != expected);
  Numbers validation(3, 2);
  validation.targets[2] = 1;
  CHECK(fingerprint_of(base, validation) != expected);
  CHECK(fingerprint_of(base, Numbers(4, 2)) != expected);
  Numbers named = base;
  named.shape_.class_names = {"a", "b"};
  CHECK(fingerprint_of(named) != expected);
  Numbers flat = base;
  flat.shape_.input = {16};
  CHECK(fingerprint_of(flat) != expected);
}

TEST_CASE("data_fingerprint: of large data a bounded part is read, the ends among them") {
  const auto base = std::make_shared<Numbers>(20'000, 32);  // 20 million numbers.
  const auto validation = std::make_shared<Numbers>(3, 2);
  const std::string expected = data_fingerprint({"", base, validation});
  CHECK(base->num_read == kFingerprintValues / (32 * 32));
  for (const size_t at : {size_t{0}, base->values.size() - 1}) {
    base->values[at] += 1;
    CHECK(data_fingerprint({"", base, validation}) != expected);
    base->values[at] -= 1;
  }
  CHECK(data_fingerprint({"", base, validation}) == expected);
}

TEST_CASE("data_fingerprint: seed and context make other data, the name does not") {
  const auto of = [](const std::string& data, uint64_t seed, int64_t context = 8) {
    return data_fingerprint(open_data(data, {.context = context, .seed = seed}));
  };
  CHECK(of("synthetic:1x8x8,samples=100", 1) == of("synthetic:1x8x8,classes=10,samples=100", 1));
  CHECK(of("synthetic:1x8x8,samples=100", 1) != of("synthetic:1x8x8,samples=100", 2));
  CHECK(of("synthetic:text,samples=100", 1) != of("synthetic:text,samples=100", 1, 16));
  // Known, so that a version that hashes otherwise is seen: it would refuse to go on with every run.
  CHECK(of("synthetic:1x4x4,classes=2,samples=20", 1) == "3ab0d1a9e1cf5810");
}
