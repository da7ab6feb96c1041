#include "cohort/base/value_hash.h"

#include <cstdio>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace cohort {

struct ValueHash::State {
  XXH3_state_t xxh3;
};

ValueHash::ValueHash() : state_(new State, [](State* state) { delete state; }) { XXH3_64bits_reset(&state_->xxh3); }

void ValueHash::add(const void* data, size_t bytes) {
  if (bytes > 0) XXH3_64bits_update(&state_->xxh3, data, bytes);
}

std::string ValueHash::text() const { return hexadecimal_digits(XXH3_64bits_digest(&state_->xxh3)); }

}  // namespace cohort
