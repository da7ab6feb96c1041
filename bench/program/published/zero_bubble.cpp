// The settings of the zero-bubble paper: a row is a pipeline of equal stages; the plan is a schedule within a limit of memory.
//
//  1. Each schedule that the runtime has is made for the row's times and replayed: 1f1b, interleaved, zb-h1, zb-v.
//  2. search_zero_bubble() finds schedules within p and within 2p activations of one micro-batch, those of ZB-1p and ZB-2p.
//  3. The objective is the bubble of the longest stage of the one within the limit: of all schedules with one stage a rank.
//
// ZB-H2 is a schedule by hand within 2p; the search at that limit stands in for it.
//
// Source: Qi et al., "Zero Bubble Pipeline Parallelism" (ICLR 2024), and the settings in its repository
// (sail-sg/zero-bubble-pipeline-parallelism).
#include "bench/program/published/zero_bubble.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "bench/program/published/published_instances.h"
#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/csv.h"
#include "cohort/schedule/simulate.h"

namespace cohort {
namespace {

constexpr int kMostStages = 512, kMostMicroBatches = 4096;
constexpr int64_t kMostPairs = 1 << 17;  // Pairs of stage and micro-batch.
constexpr double kMostTime = 1e15, kClose = 1e-9;

struct Setting {
  ZeroBubbleSetting times;
  int chunks = 2;  ///< Chunks of the interleaved schedule.
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
    const int chunks = num_stages_of(name, times_.num_stages) / times_.num_stages;
    const StageCosts costs = zero_bubble_costs(times_, chunks);
    const PipelineShape shape = {
        .num_ranks = times_.num_stages, .num_micro_batches = times_.num_micro_batches, .chunks = chunks, .edges = {}, .costs = &costs};
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

// Split-backward schedules of equal stages in a chain: forwards F, input parts I, weight parts W, within a limit of memory.
//
//  1. A list schedule plays all stages at once. A free stage takes an I that is ready, else an F that is ready and that memory and its
//     allowance of micro-batches under way leave room for, else a W. A W is started only where nothing else is known to be ready before a
//     share `delay` of it has passed. A stage whose memory is full does a W.
//  2. The allowance of a stage is what a micro-batch needs to go down and come back, ceil((p - 1 - i) (F + I + 2 C) / F) + 1 forwards,
//     and a few more or fewer; `delay` has a few values, the same for all stages. The shortest longest stage wins.
//  3. From the best of these the rules of one stage at a time are changed while the longest stage gets shorter.
//  4. Where memory is for p to 2 p micro-batches the order of ZB-H1 is tried, too.
//
// Bound: between the first F of stage 0 and its first I there is nothing but forwards for it to do, at most as many as memory holds;
// between its last F and that micro-batch's I nothing but what memory holds. What is left of the two journeys is idle time. And the last
// stage has all F and I to do between the first F and the last I of stage 0.
//
// Cost: O(actions x stages) a list schedule, a few dozen of these, fewer for large settings (kMostWork). Source: Qi et al., "Zero Bubble
// Pipeline Parallelism" (ICLR 2024), whose heuristic ZB-1p and ZB-2p have the same objective and limits. We differ in the rules, in that
// allowances are tried instead of two forms of warm-up, and in the bound, which proves ours and theirs at p activations.
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kMostWork = 2.5e6, kWorkOfAction = 8;

/// The state of one stage.
struct Rules {
  int allowance = 1;
  double delay = 1;            ///< A weight part may delay what is known to be ready soon by this share of the part's time.
  bool forward_waits = false;  ///< A forward may not delay an input part that is known to be ready before its end.
  bool forward_first = false;
};

class Player {
 public:
  Player(const ZeroBubbleSetting& setting, double limit, const std::vector<Rules>& rules)
      : setting_(setting), limit_(limit), rules_(rules), wake_(rules.size()), stages_(rules.size()) {
    for (Stage& stage : stages_) {
      stage.forward_ready.assign(setting.num_micro_batches, &stage == &stages_[0] ? 0 : kNever);
      stage.input_ready.assign(setting.num_micro_batches, kNever);
      stage.actions.reserve(3 * static_cast<size_t>(setting.num_micro_batches));
    }
  }

  /// Returns the time of the longest stage.
  double play() {
    for (int left = 3 * setting_.num_micro_batches * setting_.num_stages; left > 0;) {
      const auto next = std::min_element(wake_.begin(), wake_.end());
      if (*next == kNever) return kNever;  // Does not happen: every rule leaves an action.
      if (step(static_cast<int>(next - wake_.begin()))) --left;
    }
    double longest = 0;
    for (const Stage& stage : stages_) {
      longest = std::max(longest, stage.free - stage.first);
      makespan_ = std::max(makespan_, stage.free);
    }
    return longest;
  }

  double makespan() const { return makespan_; }
  double peak() const { return peak_; }
  std::vector<std::vector<Action>> actions() {
    std::vector<std::vector<Action>> all;
    for (Stage& stage : stages_) all.push_back(std::move(stage.actions));
    return all;
  }

 private:
  struct Stage {
    double free = 0, first = -1, held = 0;
    int forwards = 0, inputs = 0, weights = 0;
    std::vector<double> forward_ready, input_ready;
    std::vector<Action> actions;
  };

  bool room(const Stage& stage) const { return stage.held + 1 <= limit_ + kClose; }

  /// Starts an action of a stage that is free at its wake time, or sets when to look again.
  bool step(int i) {
    Stage& stage = stages_[i];
    const Rules& rules = rules_[i];
    const double now = wake_[i];
    const double input = stage.inputs < stage.forwards ? stage.input_ready[stage.inputs] : kNever;
    const bool more = stage.forwards < setting_.num_micro_batches;
    const double arrives = more ? stage.forward_ready[stage.forwards] : kNever;
    const bool may_forward = more && stage.forwards - stage.inputs < rules.allowance;
    const double forward = may_forward && room(stage) ? arrives : kNever;
    if (input <= now && !(rules.forward_first && forward <= now)) return start(i, ActionKind::kBackwardInput);
    const bool waits = rules.forward_waits && input > now && input < now + setting_.forward;
    if (forward <= now && !waits) return start(i, ActionKind::kForward);
    const double known = waits ? input : std::min(input, forward);
    // If only memory delays a forward, a weight part frees it.
    const bool full = may_forward && !room(stage) && arrives <= now;
    if (stage.weights < stage.inputs && (full || known >= now + (1 - rules.delay) * setting_.backward_weight))
      return start(i, ActionKind::kBackwardWeight);
    wake_[i] = known;
    return false;
  }

  bool start(int i, ActionKind kind) {
    Stage& stage = stages_[i];
    const double now = wake_[i];
    if (stage.first < 0) stage.first = now;
    double end = now;
    if (kind == ActionKind::kForward) {
      const int k = stage.forwards++;
      stage.actions.push_back({kind, i, k});
      end += setting_.forward;
      peak_ = std::max(peak_, stage.held += 1);
      if (i + 1 < setting_.num_stages) arrive(i + 1, stages_[i + 1].forward_ready[k], end + setting_.transfer);
      else stage.input_ready[k] = end;
    } else if (kind == ActionKind::kBackwardInput) {
      const int k = stage.inputs++;
      stage.actions.push_back({kind, i, k});
      end += setting_.backward_input;
      stage.held -= 1 - setting_.kept_share;
      if (i > 0) arrive(i - 1, stages_[i - 1].input_ready[k], end + setting_.transfer);
    } else {
      stage.actions.push_back({kind, i, stage.weights++});
      end += setting_.backward_weight;
      stage.held -= setting_.kept_share;
    }
    stage.free = wake_[i] = end;
    return true;
  }

  void arrive(int at, double& ready, double time) {
    ready = time;
    wake_[at] = std::max(stages_[at].free, std::min(wake_[at], time));
  }

  const ZeroBubbleSetting& setting_;
  double limit_;
  double makespan_ = 0, peak_ = 0;
  const std::vector<Rules>& rules_;  ///< The rules of each stage.
  std::vector<double> wake_;         ///< When each stage looks for its next action.
  std::vector<Stage> stages_;
};

class Search {
 public:
  Search(const ZeroBubbleSetting& setting, double limit)
      : setting_(setting), limit_(limit), enough_(zero_bubble_bound(setting, limit) * (1 + kClose)) {
    best_.longest_stage = kNever;
  }

  ZeroBubblePlan run() {
    // The best of the paper's settings are near these.
    for (const auto& [slack, delay, forward_first] : {std::tuple(-1, 1.0, false), {-1, 0.0, false}, {0, 1.0, false}, {0, 1.0, true}}) {
      starts_.emplace_back();
      try_rules(same_rules(1, slack, delay, forward_first), starts_.back());
    }
    // The first stage, which waits longest for the first input part, needs other rules than the rest.
    std::vector<Rules> mixed = same_rules(1, 0, 0.5, true);
    mixed.front() = same_rules(1, 0, 1, false).front();
    mixed.front().forward_waits = true;
    starts_.emplace_back();
    try_rules(mixed, starts_.back());
    std::sort(starts_.begin(), starts_.end(), [](const Start& a, const Start& b) { return a.longest_stage < b.longest_stage; });
    improving_ = true;
    improve(starts_.front());
    Start other;
    for (const double depth : {1.0, 1.1, 0.9, 1.5, 2.0})
      for (const int slack : {0, -1, 1, 2})
        for (const double delay : {1.0, 0.5, 0.25, 0.0})
          for (const bool forward_first : {false, true}) try_rules(same_rules(depth, slack, delay, forward_first), other);
    improve(other);
    for (Start& start : starts_) improve(start);
    try_order_of_h1();
    best_.schedule.name = "zero-bubble";
    best_.schedule.num_stages = setting_.num_stages;
    best_.schedule.num_micro_batches = setting_.num_micro_batches;
    best_.schedule.edges = chain_edges(setting_.num_stages);
    return std::move(best_);
  }

 private:
  std::vector<Rules> same_rules(double depth, int slack, double delay, bool forward_first) const {
    std::vector<Rules> rules;
    for (int below = setting_.num_stages - 1; below >= 0; --below) {
      const double journey = below * (setting_.forward + setting_.backward_input + 2 * setting_.transfer);
      const double allowance = std::ceil(depth * journey / setting_.forward - kClose) + 1 + slack;
      rules.push_back({static_cast<int>(std::clamp<double>(allowance, 1, setting_.num_micro_batches)), delay, false, forward_first});
    }
    return rules;
  }

  /// Within p activations the order made by hand is hard to beat, and in long pipelines the starts may be worse.
  void try_order_of_h1() {
    const int p = setting_.num_stages;
    if (best_.longest_stage <= enough_ || limit_ < p || limit_ >= 2 * p) return;
    const PipelineShape shape = {.num_ranks = p, .num_micro_batches = setting_.num_micro_batches, .edges = {}};
    ZeroBubblePlan by_hand = timed_zero_bubble(setting_, make_schedule("zb-h1", shape));
    if (by_hand.longest_stage < best_.longest_stage) best_ = std::move(by_hand);
  }

  struct Start {
    double longest_stage = kNever;
    std::vector<Rules> rules;
  };

  /// Whether the rules are better than those of `start`, which takes them then.
  bool try_rules(const std::vector<Rules>& rules, Start& start) {
    // The starts are tried whatever they take.
    if (best_.longest_stage <= enough_ || (work_ > kMostWork && improving_)) return false;
    work_ += 3.0 * setting_.num_micro_batches * setting_.num_stages * (kWorkOfAction + setting_.num_stages);
    Player player(setting_, limit_, rules);
    const double longest = player.play();
    if (!(longest < start.longest_stage)) return false;
    start = {longest, rules};
    if (longest < best_.longest_stage) {
      best_.longest_stage = longest;
      best_.makespan = player.makespan();
      best_.peak = player.peak();
      best_.schedule.actions = player.actions();
    }
    return true;
  }

  void improve(Start& start) {
    for (bool better = true; better;) {
      better = false;
      for (size_t i = 0; i < start.rules.size(); ++i) better = change_stage(i, start) || better;
    }
  }

  bool change_stage(size_t i, Start& start) {
    bool better = false;
    const auto change = [&](const auto& how) {
      std::vector<Rules> rules = start.rules;
      how(rules[i]);
      better = try_rules(rules, start) || better;
    };
    change([](Rules& rules) { ++rules.allowance; });
    change([](Rules& rules) { rules.allowance = std::max(1, rules.allowance - 1); });
    change([](Rules& rules) { rules.forward_first = !rules.forward_first; });
    for (const double delay : {1.0, 0.5, 0.0}) change([&](Rules& rules) { rules.delay = delay; });
    return better;
  }

  const ZeroBubbleSetting& setting_;
  double limit_, enough_, work_ = 0;
  ZeroBubblePlan best_;
  std::vector<Start> starts_;
  bool improving_ = false;
};

}  // namespace

double zero_bubble_bound(const ZeroBubbleSetting& s, double limit) {
  const double work = s.num_micro_batches * (s.forward + s.backward_input + s.backward_weight);
  const double journey = (s.num_stages - 1) * (s.forward + s.backward_input + 2 * s.transfer);
  const double held = std::floor(limit + kClose);
  const double out = journey - (std::min<double>(held, s.num_micro_batches) - 1) * s.forward;
  // An activation holds an input and a weight part, or, kept in part, a weight part alone.
  const double per_activation =
      std::max(s.backward_input + s.backward_weight, s.kept_share > 0 ? s.backward_weight / s.kept_share : kNever);
  const double most = (s.num_micro_batches - 1) * (s.backward_input + s.backward_weight);
  const double home = journey - std::min(most, (limit - 1) * per_activation);
  // The last stage has all forwards and input parts to do while the first waits for its last input part.
  const double path = journey + s.num_micro_batches * (s.forward + s.backward_input) + s.backward_weight;
  // With so few micro-batches that all may be under way at once the two journeys may be one.
  const bool apart = s.num_micro_batches > held;
  return std::max(path, work + (apart ? std::max(0.0, out) + std::max(0.0, home) : std::max({0.0, out, home})));
}

ZeroBubblePlan search_zero_bubble(const ZeroBubbleSetting& setting, double limit) {
  if (!(limit >= 1)) fail(ErrorCode::kInfeasible, "a stage needs the activations of one micro-batch, and the limit is ", limit);
  return Search(setting, limit).run();
}

ZeroBubblePlan timed_zero_bubble(const ZeroBubbleSetting& setting, Schedule schedule) {
  const int chunks = schedule.num_stages / schedule.num_ranks();
  StageCosts costs = zero_bubble_costs(setting, chunks);
  ZeroBubblePlan plan;
  const Timeline timeline = simulate(schedule, costs);
  plan.makespan = timeline.makespan;
  for (const std::vector<TimedAction>& rank : timeline.ranks) {
    plan.longest_stage = std::max(plan.longest_stage, rank.back().end - rank.front().start);
    double held = 0;
    for (const TimedAction& timed : rank) {
      const ActionKind kind = timed.action.kind;
      held += (kind == ActionKind::kForward         ? 1
               : kind == ActionKind::kBackward      ? -1
               : kind == ActionKind::kBackwardInput ? setting.kept_share - 1
                                                    : -setting.kept_share) /
              chunks;
      plan.peak = std::max(plan.peak, held);
    }
  }
  plan.schedule = std::move(schedule);
  return plan;
}

StageCosts zero_bubble_costs(const ZeroBubbleSetting& setting, int chunks) {
  const auto num_stages = static_cast<size_t>(setting.num_stages) * chunks;
  StageCosts costs;
  costs.forward.assign(num_stages, setting.forward / chunks);
  costs.backward_input.assign(num_stages, setting.backward_input / chunks);
  costs.backward_weight.assign(num_stages, setting.backward_weight / chunks);
  costs.transfer = [transfer = setting.transfer](int, int) { return transfer; };
  return costs;
}

}  // namespace cohort
