#include "cohort/parallel/update_rule.h"

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

}  // namespace
}  // namespace cohort
