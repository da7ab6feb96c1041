#include "cohort/parallel/optimizer/update.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

namespace cohort {
namespace {

TEST_CASE("an element's bits do not depend on where the arrays are cut") {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const auto kind : {UpdateRule::Kind::kSgd, UpdateRule::Kind::kMomentum, UpdateRule::Kind::kNesterov, UpdateRule::Kind::kAdam,
                          UpdateRule::Kind::kAdamW}) {
    UpdateRule rule;
    rule.kind = kind;
    rule.weight_decay = 0.01;
    for (const size_t count : {1, 7, 40, 2048, 5000, 5013}) {
      std::vector<float> gradient(count), weights(count), first(count), second(count);
      for (size_t i = 0; i < count; ++i) {
        gradient[i] = normal(random), weights[i] = normal(random), first[i] = normal(random);
        second[i] = std::abs(normal(random));
      }
      const UpdateArguments arguments{.learning_rate = 0.05, .gradient_factor = 0.3, .num_updates = 3};
      std::vector<float> whole = weights, whole_first = first, whole_second = second, cut = weights, cut_first = first, cut_second = second;
      float* const slots[] = {whole_first.data(), whole_second.data()};
      update(rule, arguments, whole.data(), gradient.data(), slots, count);
      for (size_t begin = 0, piece = 1; begin < count; begin += piece, piece = piece * 2 + 1) {
        float* const at[] = {cut_first.data() + begin, cut_second.data() + begin};
        update(rule, arguments, cut.data() + begin, gradient.data() + begin, at, std::min(piece, count - begin));
      }
      CHECK(whole == cut);
      CHECK(whole_first == cut_first);
      CHECK(whole_second == cut_second);
    }
  }
}

TEST_CASE_TEMPLATE("an update by a sum has the bits of the update by the stored sum", T, float, double) {
  std::mt19937 random(2);
  std::normal_distribution<T> normal;
  for (const auto kind : {UpdateRule::Kind::kSgd, UpdateRule::Kind::kMomentum, UpdateRule::Kind::kNesterov, UpdateRule::Kind::kAdam,
                          UpdateRule::Kind::kAdamW}) {
    UpdateRule rule;
    rule.kind = kind;
    rule.weight_decay = 0.01;
    for (const size_t num_gradients : {1, 2, 3, 5})
      for (const size_t count : {0, 1, 17, 1024, 3001}) {
        std::vector<std::vector<T>> gradients(num_gradients, std::vector<T>(count));
        std::vector<T> sum(count), weights(count), first(count), second(count);
        std::vector<const T*> arrays;
        for (std::vector<T>& gradient : gradients) {
          for (T& value : gradient) value = normal(random);
          arrays.push_back(gradient.data());
        }
        for (size_t i = 0; i < count; ++i) {
          sum[i] = gradients[0][i];
          for (size_t g = 1; g < num_gradients; ++g) sum[i] += gradients[g][i];
          weights[i] = normal(random), first[i] = normal(random), second[i] = std::abs(normal(random));
        }
        const UpdateArguments arguments{.learning_rate = 0.05, .gradient_factor = 0.3, .num_updates = 3};
        std::vector<T> other = weights, other_first = first, other_second = second;
        T* const slots[] = {first.data(), second.data()};
        T* const other_slots[] = {other_first.data(), other_second.data()};
        update(rule, arguments, weights.data(), sum.data(), slots, count);
        update_by_sum(rule, arguments, other.data(), arrays.data(), num_gradients, other_slots, count);
        CHECK(weights == other);
        CHECK(first == other_first);
        CHECK(second == other_second);
      }
  }
}

}  // namespace
}  // namespace cohort
