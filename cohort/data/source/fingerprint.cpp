#include "cohort/data/source/fingerprint.h"

#include <algorithm>
#include <vector>

#include "cohort/base/value_hash.h"

namespace cohort {
namespace {

void add_shape(const DataShape& shape, ValueHash& hash) {
  hash.add(static_cast<int64_t>(shape.kind));
  hash.add(shape.input);
  hash.add(shape.num_classes);
  for (const std::string& name : shape.class_names) hash.add(name);
}

void add_samples(const DataSource& source, ValueHash& hash) {
  constexpr int64_t kSamplesOfRead = 256;
  const int64_t num_samples = source.num_samples(), elements = std::max<int64_t>(1, source.shape().input_elements());
  const int64_t count = std::min(num_samples, std::max<int64_t>(2, kFingerprintValues / elements));
  hash.add(num_samples);
  Batch batch;
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) {
    // Evenly spaced from the first to the last.
    indices.push_back(count > 1 ? i * (num_samples - 1) / (count - 1) : 0);
    if (std::ssize(indices) < kSamplesOfRead && i + 1 < count) continue;
    source.read(indices, batch);
    hash.add(batch.values);
    hash.add(batch.tokens);
    hash.add(batch.targets);
    if (source.shape().has_numbers()) hash.add(batch.numbers);
    indices.clear();
  }
}

}  // namespace

std::string data_fingerprint(const DataSet& data) {
  ValueHash hash;
  add_shape(data.train->shape(), hash);
  add_samples(*data.train, hash);
  add_samples(*data.validation, hash);
  return hash.text();
}

}  // namespace cohort
