// The settings of the zero-bubble paper: a row is a pipeline of equal stages; the plan is a schedule within a limit of memory.
//
//  1. Each schedule that the runtime has is made for the row's times and replayed: 1f1b, interleaved, zb-h1, zb-v.
//  2. zero_bubble_search.cpp finds schedules within p and within 2p activations of one micro-batch, those of ZB-1p and ZB-2p.
//  3. The objective is the bubble of the longest stage of the one within the limit: of all schedules with one stage a rank.
//
// ZB-H2 is a schedule by hand within 2p; the search at that limit stands in for it.
//
// Source: Qi et al., "Zero Bubble Pipeline Parallelism" (ICLR 2024), and the settings in its repository
// (sail-sg/zero-bubble-pipeline-parallelism).

#include "cohort/bench/published/zero_bubble.h"

#include "cohort/bench/published/published_instances.h"

#include <algorithm>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/csv.h"

namespace cohort {
namespace {

constexpr int kMostStages = 512, kMostMicroBatches = 4096;
constexpr int64_t kMostPairs = 1 << 17;  // Of stages and micro-batches.
constexpr double kMostTime = 1e15, kClose = 1e-9;

struct Setting {
  ZeroBubbleSetting times;
  int chunks = 2;  ///< Of the interleaved schedule.
};

int count_up_to(const CsvRow& row, const char* column, int most) {
  const int64_t count = row.count(column);
  if (count > most) row.refuse(column, concat("a whole number from 1 to ", most));
  return static_cast<int>(count);
}

double time_of(const CsvRow& row, const char* column, bool may_be_0 = false) {
  const double time = may_be_0 ? row.at_least_0(column) : row.positive(column);
  if (time > kMostTime || (time > 0 && time < 1 / kMostTime)) row.refuse(column, "a time from 1e-15 to 1e15");
  return time;
}

Setting setting_of(const CsvRow& row) {
  Setting setting;
  ZeroBubbleSetting& times = setting.times;
  times.num_stages = count_up_to(row, "stages", kMostStages);
  times.num_micro_batches = count_up_to(row, "microbatches", kMostMicroBatches);
  if (int64_t{times.num_stages} * times.num_micro_batches > kMostPairs)
    row.refuse("microbatches", concat("at most ", kMostPairs, " pairs of stage and micro-batch"));
  times.forward = time_of(row, "forward");
  times.backward_input = time_of(row, "backward_input");
  times.backward_weight = time_of(row, "backward_weight");
  times.transfer = time_of(row, "transfer", true);
  // The inputs of products are kept until the weight part; attention's and the rest are free after the input part.
  if (row.has("hidden")) {
    const auto hidden = static_cast<double>(row.count("hidden"));
    const double scores = 5.0 * static_cast<double>(row.count("heads")) * static_cast<double>(row.count("sequence_length"));
    times.kept_share = 32 * hidden / (34 * hidden + scores);
  }
  const int64_t layers = row.has("layers") ? row.count("layers") : int64_t{setting.chunks} * times.num_stages;
  if (layers % times.num_stages == 0) setting.chunks = static_cast<int>(std::clamp<int64_t>(layers / times.num_stages, 1, 8));
  return setting;
}

class Planner {
 public:
  explicit Planner(const Setting& setting) : setting_(setting), times_(setting.times) {
    work_ = times_.num_micro_batches * (times_.forward + times_.backward_input + times_.backward_weight);
  }

  InstanceAnswer plan(double limit) {
    const int p = times_.num_stages;
    for (const std::string& name :
         {std::string("1f1b"), concat("interleaved:", setting_.chunks), std::string("zb-h1"), std::string("zb-v")})
      add_named(name);
    InstanceAnswer answer;
    const auto search = [&](double memory, const std::string& name) {
      const double start = steady_seconds();
      const ZeroBubblePlan found = search_zero_bubble(times_, memory);
      answer.search_seconds = steady_seconds() - start;
      add(name, found, answer.search_seconds);
      return found;
    };
    for (const int times : {1, 2})
      if (limit != times * p) search(times * p, concat("searched within ", times * p));
    const ZeroBubblePlan found = search(limit, concat("searched within ", limit));
    const double bound = zero_bubble_bound(times_, limit);
    answer.objective = bubble(found.longest_stage);
    answer.lower_bound = std::min(bubble(bound), answer.objective);
    answer.bound_by = bound > work_ ? "critical path" : "area";
    answer.optimal = found.longest_stage <= bound * (1 + kClose);
    answer.plan = {{"layout", "single"},
                   {"memory", limit},
                   {"peak", found.peak},
                   {"schedules", std::move(schedules_)},
                   {"order", order_json(found.schedule)},
                   {"table", to_json(found.schedule)}};
    return answer;
  }

 private:
  double bubble(double time) const { return (time - work_) / time; }

  void add_named(const std::string& name) {
    const double start = steady_seconds();
    const int pieces = num_stages_of(name, times_.num_stages) / times_.num_stages;
    const StageCosts costs = zero_bubble_costs(times_, pieces);
    const PipelineShape shape = {
        .num_ranks = times_.num_stages, .num_micro_batches = times_.num_micro_batches, .chunks = pieces, .edges = {}, .costs = &costs};
    const ZeroBubblePlan timed = timed_zero_bubble(times_, make_schedule(name, shape));
    add(name, timed, steady_seconds() - start);
  }

  void add(const std::string& name, const ZeroBubblePlan& plan, double seconds) {
    schedules_.push_back({{"name", name},
                          {"bubble", bubble(plan.makespan)},
                          {"bubble_of_longest_stage", bubble(plan.longest_stage)},
                          {"peak", plan.peak},
                          {"seconds", seconds}});
  }

  /// F3, B3 (input part), W3.
  static Json order_json(const Schedule& schedule) {
    Json ranks = Json::array();
    for (const std::vector<Action>& actions : schedule.actions) {
      Json rank = Json::array();
      for (const Action& action : actions) {
        const bool input = action.kind == ActionKind::kBackwardInput;
        rank.push_back(concat(action.kind == ActionKind::kForward ? 'F' : input ? 'B' : 'W', action.micro_batch));
      }
      ranks.push_back(std::move(rank));
    }
    return ranks;
  }

  const Setting& setting_;
  const ZeroBubbleSetting& times_;
  double work_ = 0;
  Json schedules_ = Json::array();
};

}  // namespace

std::vector<InstanceAnswer> solve_zero_bubble(const std::string& path, const InstanceOptions& options) {
  std::vector<Setting> settings;
  for (const CsvRow& row : read_csv(path)) {
    settings.push_back(setting_of(row));
    if (options.memory_bytes && *options.memory_bytes < 1)
      fail(ErrorCode::kInfeasible, row.where(), ": a stage keeps the activations of a micro-batch, and memory is for ",
           *options.memory_bytes, " of them; no schedule fits below 1");
  }
  if (settings.empty()) fail(ErrorCode::kBadInput, path, ": no rows; expected a header and settings");
  std::vector<InstanceAnswer> answers;
  for (const Setting& setting : settings)
    answers.push_back(Planner(setting).plan(options.memory_bytes.value_or(2 * setting.times.num_stages)));
  return answers;
}

}  // namespace cohort
