#include "cohort/job/specs/batch_schedule.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/setting_name.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr int64_t kMostSteps = INT64_C(1) << 40, kLargestFactor = 1 << 16;
constexpr size_t kMostStages = 1000;

}  // namespace

std::vector<BatchStage> parse_batch_schedule(const std::string& text) {
  const auto refuse = [&](const auto&... why) {
    fail(ErrorCode::kBadInput, name_settings("--batch-schedule "), quote_text(text), ": ", why...,
         "; expected STEP:FACTOR,... as 600:4,900:16, after 600 steps 4 times the batch, after 900 steps 16 times");
  };
  std::vector<BatchStage> stages;
  for (const std::string& part : split(text, ',')) {
    const auto [first, second] = split_once(part, ':');
    const auto step = parse_integer(first);
    const auto factor = parse_integer(second.value_or(""));
    if (!step || !factor) refuse(quote_text(part), " is not STEP:FACTOR, two whole numbers");
    if (*step < 1 || *step > kMostSteps) refuse("step ", *step, " is not from 1 to ", kMostSteps);
    if (*factor < 1 || *factor > kLargestFactor) refuse("factor ", *factor, " is not from 1 to ", kLargestFactor);
    if (!stages.empty() && *step <= stages.back().first_step) refuse("step ", *step, " comes after ", stages.back().first_step);
    if (*factor == (stages.empty() ? 1 : stages.back().factor)) refuse("factor ", *factor, " at step ", *step, " changes nothing");
    if (stages.size() == kMostStages) refuse("more than ", kMostStages, " stages");
    stages.push_back({*step, *factor});
  }
  return stages;
}

std::string batch_schedule_text(const std::vector<BatchStage>& stages, int64_t end_step) {
  std::vector<std::string> parts;
  for (const BatchStage& stage : stages)
    if (stage.first_step < end_step) parts.push_back(concat(stage.first_step, ":", stage.factor));
  return join(parts, ",");
}

int64_t batch_factor_at(const std::vector<BatchStage>& stages, int64_t step) {
  int64_t factor = 1;
  for (const BatchStage& stage : stages)
    if (stage.first_step <= step) factor = stage.factor;
  return factor;
}

double batches_before(const std::vector<BatchStage>& stages, double steps) {
  double batches = 0, from = 0, factor = 1;
  for (const BatchStage& stage : stages) {
    const auto first = static_cast<double>(stage.first_step);
    if (first >= steps) break;
    batches += factor * (first - from);
    from = first;
    factor = static_cast<double>(stage.factor);
  }
  return batches + factor * (steps - from);
}

int64_t largest_batch_factor(const std::vector<BatchStage>& stages) {
  int64_t largest = 1;
  for (const BatchStage& stage : stages) largest = std::max(largest, stage.factor);
  return largest;
}

}  // namespace cohort
