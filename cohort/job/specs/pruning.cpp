#include "cohort/job/specs/pruning.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr double kBeginPart = 0.1;
constexpr int64_t kNumPrunings = 50;

}  // namespace

std::optional<Pruning> parse_pruning(const std::string& text) {
  if (text.empty() || text == "none") return {};
  if (text == "2:4") return Pruning{Pruning::Granularity::kTwoOfFour, 0.5, true};
  const size_t colon = text.find(':');
  const std::string granularity = text.substr(0, colon);
  if (granularity == "channel")
    fail(ErrorCode::kBadInput, name_settings("--prune "), quote_text(text),
         ": channels are taken out of a trained model, not while it trains: cohort compress prune RUN --granularity channel");
  if (granularity != "weight")
    fail(ErrorCode::kBadInput, name_settings("--prune "), quote_text(text), did_you_mean(granularity, {"weight", "2:4", "none"}),
         ": expected weight:SPARSITY such as weight:0.9, 2:4 or none");
  const std::string suffix = ":uniform";
  const bool is_uniform = text.ends_with(suffix);
  const std::string number =
      colon == std::string::npos ? "" : text.substr(colon + 1, text.size() - colon - 1 - (is_uniform ? suffix.size() : 0));
  const std::optional<double> value = parse_number(number);
  if (!value || !(*value > 0 && *value < 1))
    fail(ErrorCode::kBadInput, name_settings("--prune "), quote_text(text),
         ": the sparsity is the part of the weights that becomes zero, above 0 and below 1, as in weight:0.9, or weight:0.9:uniform for "
         "that part of each matrix");
  return Pruning{Pruning::Granularity::kWeight, *value, is_uniform};
}

PruningSchedule::PruningSchedule(const Pruning& pruning, double until, bool has_trained_weights, int64_t total_steps)
    : sparsity_(pruning.sparsity) {
  const auto steps = static_cast<double>(std::max<int64_t>(1, total_steps));
  // At the latest in the last step, so that there is at least one pruning.
  const auto number_of = [&](double part) { return std::clamp<int64_t>(std::llround(part * steps) - 1, 0, std::llround(steps) - 1); };
  end_ = number_of(until);
  begin_ = has_trained_weights ? 0 : std::min(number_of(std::min(kBeginPart, until / 2)), end_);
  interval_ = std::max<int64_t>(1, (end_ - begin_) / kNumPrunings);
}

std::optional<double> PruningSchedule::at(int64_t number) const {
  if (number < begin_) return {};
  if (number >= end_) return (number - end_) % interval_ == 0 ? std::optional(sparsity_) : std::nullopt;
  if ((number - begin_) % interval_ != 0) return {};
  // Counted from one interval before the first pruning, so that it already prunes; the schedule still ends at `end_`.
  const double done = static_cast<double>(number - begin_ + 1) / static_cast<double>(end_ - begin_ + 1);
  const double left = 1 - done;
  return sparsity_ * (1 - left * left * left);
}

}  // namespace cohort
