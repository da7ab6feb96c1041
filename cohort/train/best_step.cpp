#include "cohort/train/best_step.h"

#include <cmath>

#include "cohort/base/text/json.h"

namespace cohort {
namespace {

Json to_json(const EvaluatedStep& evaluated) {
  if (evaluated.step < 0) return nullptr;
  Json json{{"step", evaluated.step},
            {"val_loss", evaluated.val_loss},
            {"val_error", std::isfinite(evaluated.val_error) ? Json(evaluated.val_error) : Json(nullptr)}};
  if (std::isfinite(evaluated.val_precision)) json["val_precision"] = evaluated.val_precision;
  return json;
}

EvaluatedStep evaluated_from(const Json& json) {
  EvaluatedStep evaluated;
  if (!json.is_object()) return evaluated;
  evaluated.step = json.value("step", evaluated.step);
  evaluated.val_loss = json.value("val_loss", evaluated.val_loss);
  if (json.contains("val_error") && json["val_error"].is_number()) evaluated.val_error = json["val_error"].get<double>();
  if (json.contains("val_precision") && json["val_precision"].is_number()) evaluated.val_precision = json["val_precision"].get<double>();
  return evaluated;
}

}  // namespace

bool BestStep::add(const EvaluatedStep& evaluated) {
  last_ = evaluated;
  is_better_ = evaluated.val_loss < best_.val_loss;
  if (!is_better_) ++evaluations_since_;
  return is_better_;
}

void BestStep::saved(int64_t step) {
  if (last_.step != step || !is_better_) return;
  best_ = last_;
  is_better_ = false;
  evaluations_since_ = 0;
}

Json BestStep::state() const { return {{"last", to_json(last_)}, {"best", to_json(best_)}, {"evaluations_since", evaluations_since_}}; }

void BestStep::load(const Json& state) {
  last_ = evaluated_from(state.value("last", Json()));
  best_ = evaluated_from(state.value("best", Json()));
  evaluations_since_ = state.value("evaluations_since", int64_t{0});
}

}  // namespace cohort
