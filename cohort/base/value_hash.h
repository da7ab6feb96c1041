#pragma once
// The 64-bit XXH3 hash of a sequence of values; not cryptographic.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cohort {

/// Not thread-safe.
class ValueHash {
 public:
  ValueHash();

  void add(const void* data, size_t bytes);
  void add(int64_t number) { add(&number, sizeof number); }
  /// Adds the number of elements first, so that boundaries between values matter.
  void add(const std::string& text) {
    add(static_cast<int64_t>(text.size()));
    add(text.data(), text.size());
  }
  template <typename Number>
  void add(const std::vector<Number>& numbers) {
    add(static_cast<int64_t>(numbers.size()));
    add(numbers.data(), numbers.size() * sizeof(Number));
  }

  /// 16 hexadecimal digits.
  std::string text() const;

 private:
  struct State;
  std::unique_ptr<State, void (*)(State*)> state_;
};

}  // namespace cohort
