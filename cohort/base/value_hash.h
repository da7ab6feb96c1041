#pragma once
// The hash of a sequence of values, to tell whether two things are the same: 64 bits of XXH3, not against an adversary.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cohort {

/// Not for several threads at once.
class ValueHash {
 public:
  ValueHash();

  void add(const void* data, size_t bytes);
  void add(int64_t number) { add(&number, sizeof number); }
  /// With their numbers of elements, so that where one ends and the next begins counts too.
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
