#include "cohort/data/fingerprint.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace cohort {
namespace {

class Hash {
 public:
  Hash() : state_(XXH3_createState(), XXH3_freeState) { XXH3_64bits_reset(state_.get()); }

  void add(const void* data, size_t bytes) { XXH3_64bits_update(state_.get(), data, bytes); }
  void add(int64_t number) { add(&number, sizeof number); }
  void add(const std::string& text) {
    add(static_cast<int64_t>(text.size()));
    add(text.data(), text.size());
  }
  template <typename Number>
  void add(const std::vector<Number>& numbers) {
    add(static_cast<int64_t>(numbers.size()));
    add(numbers.data(), numbers.size() * sizeof(Number));
  }
  std::string text() const {
    char out[17];
    std::snprintf(out, sizeof out, "%016llx", static_cast<unsigned long long>(XXH3_64bits_digest(state_.get())));
    return out;
  }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

void add_shape(const DataShape& shape, Hash& hash) {
  hash.add(static_cast<int64_t>(shape.kind));
  hash.add(shape.input);
  hash.add(shape.num_classes);
  for (const std::string& name : shape.class_names) hash.add(name);
}

void add_samples(const DataSource& source, Hash& hash) {
  constexpr int64_t kSamplesOfRead = 256;
  const int64_t num_samples = source.num_samples(), elements = std::max<int64_t>(1, source.shape().input_elements());
  const int64_t count = std::min(num_samples, std::max<int64_t>(2, kFingerprintValues / elements));
  hash.add(num_samples);
  Batch batch;
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) {
    // i-th of `count` from the first to the last; all of them where count is their number.
    indices.push_back(count > 1 ? i * (num_samples - 1) / (count - 1) : 0);
    if (std::ssize(indices) < kSamplesOfRead && i + 1 < count) continue;
    source.read(indices, batch);
    hash.add(batch.values);
    hash.add(batch.tokens);
    hash.add(batch.targets);
    indices.clear();
  }
}

}  // namespace

std::string data_fingerprint(const DataSet& data) {
  Hash hash;
  add_shape(data.train->shape(), hash);
  add_samples(*data.train, hash);
  add_samples(*data.validation, hash);
  return hash.text();
}

}  // namespace cohort
