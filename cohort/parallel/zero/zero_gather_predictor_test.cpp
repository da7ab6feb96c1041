#include "cohort/parallel/zero/zero_gather.h"

#include <doctest/doctest.h>

namespace cohort {
namespace {

using Events = std::vector<int>;

void run(UsePredictor& predictor, const Events& events) {
  for (const int event : events) predictor.note(event);
}

TEST_CASE("a repeated step is predicted to its end") {
  UsePredictor predictor;
  CHECK(predictor.ahead(9).empty());
  const Events step = {0, 2, 2, 4, 5, 3, 3, 1};  // Forward even, backward odd; repeats count once.
  run(predictor, step);
  predictor.note(UsePredictor::kEnd);
  run(predictor, {0, 2});
  CHECK(predictor.ahead(9) == Events{4, 5, 3, 1});
  CHECK(predictor.ahead(2) == Events{4, 5});
  run(predictor, {4, 5, 3, 1});
  CHECK(predictor.ahead(9).empty());
}

TEST_CASE("training and evaluation keep their own orders") {
  UsePredictor predictor;
  const Events training = {0, 2, 4, 5, 3, 1}, evaluation = {1, 3, 5, 1, 3, 5};
  for (int repeat = 0; repeat < 2; ++repeat) {
    run(predictor, training);
    predictor.note(UsePredictor::kEnd);
    run(predictor, evaluation);
    predictor.note(UsePredictor::kEnd);
  }
  run(predictor, {0, 2});
  CHECK(predictor.ahead(4) == Events{4, 5, 3, 1});
  run(predictor, {4, 5, 3, 1});
  predictor.note(UsePredictor::kEnd);
  run(predictor, {1, 3});
  CHECK(predictor.ahead(3) == Events{5});  // After two rounds the evaluation ended.
  predictor.forget();
  CHECK(predictor.ahead(3).empty());
}

TEST_CASE("endless repetition is cut at the asked length") {
  UsePredictor predictor;
  run(predictor, {1, 2, 3, 1, 2, 3, 1, 2});
  CHECK(predictor.ahead(7) == Events{3, 1, 2, 3, 1, 2, 3});
}

}  // namespace
}  // namespace cohort
