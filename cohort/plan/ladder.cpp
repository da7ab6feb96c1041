// The fallback options (--ladder): from what was asked for to what trains, one after the other.
//
//   1. The base is the layout that was typed, or plain data parallelism over all workers: nothing divided, recomputed or accumulated.
//   2. Each option frees or sets one kind of choice (keys of SearchRequest::fixed) and leaves the rest. Where that alone does not fit, it
//      is also tried with accumulation; `options` then says so.
//   3. An option is searched for the least memory without limits, which shows how much is missing, and, where that fits, for the objective
//      within the limits. A plan that fits leaves kMargin of the limit free.
//   4. A smaller batch and more workers are found by bisection over searches, so each reported number fits.
//   5. Other inputs and models come from the profiles of FallbackSources.
//
// Cost: about 24 searches of at most kSearchSeconds, milliseconds each for a model of a dozen layers. The order is that of
// docs/guide/planning.md.
#include "cohort/plan/ladder.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/plan.h"

namespace cohort {
namespace {

constexpr const char* kAll = "all of these";
constexpr double kSearchSeconds = 0.4;
// In 44 short trainings of five models the peak was 0.80 to 0.99 of the forecast; the margin is for other models.
constexpr double kMargin = 0.03;
constexpr const char* kSmallerBatch = "smaller batch";
constexpr const char* kMoreWorkers = "more workers";

using Keys = std::map<std::string, std::string>;

class FallbackSearch {
 public:
  FallbackSearch(const SearchRequest& request, const std::atomic<bool>* stop, const std::function<void()>& look)
      : request_(request), stop_(stop), look_(look), workers_(request.most_workers()) {
    allowed_ = request.problem;
    for (DeviceKind& device : request_.problem.cluster.devices) device.memory_bytes = less_margin(device.memory_bytes);
    request_.problem.memory_limit_bytes = less_margin(request_.problem.memory_limit_bytes);
    request_.num_runners_up = 0, request_.search_seconds = kSearchSeconds;
    const auto given = [&](const char* key, const std::string& fallback) {
      const auto found = request.fixed.find(key);
      return found == request.fixed.end() ? fallback : found->second;
    };
    const bool has_degrees = request.fixed.contains("dp") || request.fixed.contains("pp") || request.fixed.contains("tp");
    std::set<std::string> precisions;
    for (const ProfilePoint& point : request.problem.profile.points) precisions.insert(point.precision);
    precision_ = given("precision", precisions.contains("fp32") || precisions.empty() ? "fp32" : *precisions.begin());
    precisions.erase(precision_);
    other_precisions_.assign(precisions.begin(), precisions.end());
    base_ = request.fixed;
    base_["dp"] = given("dp", std::to_string(has_degrees ? 1 : workers_));
    base_["pp"] = given("pp", "1"), base_["tp"] = given("tp", "1"), base_["zero"] = given("zero", "0");
    base_["recompute"] = given("recompute", "none"), base_["compress"] = given("compress", "none");
    base_["accumulate"] = given("accumulate", "1"), base_["precision"] = precision_;
    if (base_["pp"] != "1") base_["microbatches"] = given("microbatches", "1");
  }

  FallbackOptions run(const FallbackSources& sources) {
    FallbackOptions out;
    const SearchRequest as_it_is = with(base_);
    if (workers_ > request_.problem.cluster.num_devices() || !least_memory(as_it_is)) refuse(as_it_is);
    add(out, [&] { return search_option("as it is", as_it_is); });
    if (!out.rungs.empty()) out.constraint = constraint_of(*out.rungs.front().plan);
    for (const auto& [name, keys] : kinds_of_choice()) add(out, [&, &name = name, &keys = keys] { return option_of_kind(name, keys); });
    add(out, [&] { return search_option(kAll, all_free()); });
    if (request_.objective != Objective::kTimeToGoal) add(out, [&] { return smaller_batch(); });
    if (out.rungs.empty() || !out.rungs.front().fits) add(out, [&] { return more_workers(); });
    for (const FallbackVariants& kind : sources.variants) {
      const bool nothing_fits = std::none_of(out.rungs.begin(), out.rungs.end(), [](const FallbackOption& option) { return option.fits; });
      if (!kind.is_last_resort || nothing_fits) add(out, [&] { return variant_of(kind); });
    }
    if (!sources.longer.empty()) note_both_ways(out, sources.longer);
    out.notes.insert(out.notes.end(), sources.notes.begin(), sources.notes.end());
    out.is_stopped = is_over();
    return out;
  }

 private:
  static int64_t less_margin(int64_t bytes) { return static_cast<int64_t>(static_cast<double>(bytes) / (1 + kMargin)); }

  /// Throws the Error of the search.
  void refuse(const SearchRequest& as_it_is) const {
    if (!is_over()) search_plan(without_memory_limits(as_it_is), nullptr, stop_);
  }

  bool is_over() const {
    if (look_) look_();
    return stop_ && stop_->load();
  }

  /// Adds an option unless it was cut short or repeats an earlier one.
  void add(FallbackOptions& out, const std::function<FallbackOption()>& make) const {
    if (is_over()) return;
    FallbackOption option = make();
    // Two kinds of choice may end in the same layout; only for all of them together that is worth a row.
    const auto is_same = [&](const FallbackOption& one) { return one.options == option.options; };
    const bool is_news = out.rungs.empty() ||
                         (!option.options.empty() && (option.name == kAll || std::none_of(out.rungs.begin(), out.rungs.end(), is_same)));
    if (option.plan && !out.rungs.empty() && option.is_same_training && option.note.empty() && is_no_better(option, out.rungs.front()))
      option.note = "no better than as it is: neither faster nor smaller";
    if (!is_over() && option.plan && is_news) out.rungs.push_back(std::move(option));
  }

  static bool is_no_better(const FallbackOption& option, const FallbackOption& base) {
    const StepForecast &its = option.plan->forecast, &before = base.plan->forecast;
    return its.step_seconds >= before.step_seconds && its.peak_memory_bytes() >= before.peak_memory_bytes();
  }

  SearchRequest with(const Keys& fixed) const {
    SearchRequest out = request_;
    out.fixed = fixed;
    return out;
  }
  SearchRequest all_free() const {
    Keys fixed = {{"compress", base_.at("compress")}};
    if (request_.fixed.contains("precision")) fixed["precision"] = precision_;
    return with(fixed);
  }

  /// The options that change neither the model, its samples nor the machines.
  std::vector<std::pair<std::string, Keys>> kinds_of_choice() const {
    std::vector<std::pair<std::string, Keys>> out;
    const auto kind = [&](const std::string& name, const std::vector<std::pair<std::string, std::string>>& changes) {
      Keys keys = base_;
      for (const auto& [key, value] : changes) {
        if (value.empty()) keys.erase(key);
        else keys[key] = value;
      }
      if (keys != base_) out.emplace_back(name, std::move(keys));
    };
    const std::string free;
    if (base_.at("pp") == "1") kind("micro-batches, accumulated", {{"accumulate", free}});
    else kind("smaller micro-batches", {{"microbatches", free}});
    kind("recompute", {{"recompute", free}});
    if (base_.at("dp") != "1")
      for (const char* zero : {"1", "2", "3"}) kind(concat("ZeRO ", zero), {{"zero", zero}});
    for (const std::string& precision : other_precisions_) kind(precision, {{"precision", precision}});
    if (workers_ < 2) return out;
    const int layers = static_cast<int>(request_.problem.profile.layers.size());
    const std::vector<std::pair<std::string, std::string>> cut = {{"schedule", free}, {"split", free}, {"microbatches", free},
                                                                  {"zero", "0"},      {"order", free}, {"sequence", free}};
    const auto degrees = [&](const std::string& dp, const std::string& pp, const std::string& tp) {
      auto changes = cut;
      changes.insert(changes.end(), {{"dp", dp}, {"pp", pp}, {"tp", tp}});
      return changes;
    };
    if (layers > 1) kind("pipeline", degrees("1", std::to_string(std::min(workers_, layers)), "1"));
    int tensor = 1;
    for (const ProfilePoint& point : request_.problem.profile.points)
      if (workers_ % point.tp == 0) tensor = std::max(tensor, point.tp);
    if (tensor > 1) kind("divided layers", degrees(std::to_string(workers_ / tensor), "1", std::to_string(tensor)));
    if (workers_ > 3) {
      auto changes = degrees(free, free, free);
      changes.emplace_back("zero", free);
      kind("hybrid", changes);
    }
    return out;
  }

  std::optional<RankedPlan> least_memory(const SearchRequest& request) const {
    SearchRequest asked = without_memory_limits(request);
    asked.objective = Objective::kMemory;
    if (request.objective == Objective::kTimeToGoal) asked.problem.global_batch = request.steps_curve.front().batch_size;
    asked.steps_curve.clear();
    const auto answer = search_plan_if_any(asked, nullptr, stop_);
    return answer ? std::optional(answer->best) : std::nullopt;
  }

  /// The plan with its forecast under the limits of `request`.
  static RankedPlan within_limits(const SearchRequest& request, RankedPlan plan) {
    PlanProblem problem = request.problem;
    problem.global_batch = plan.global_batch;
    plan.forecast = forecast_step(problem, plan.candidate);
    return plan;
  }

  bool can_fit(const SearchRequest& request) const {
    const auto least = least_memory(request);
    return least && within_limits(request, *least).forecast.fits;
  }

  FallbackOption search_option(const std::string& name, const SearchRequest& request) const {
    FallbackOption out{.name = name};
    const std::optional<RankedPlan> least = least_memory(request);
    if (!least) return out;
    out.plan = within_limits(request, *least);
    out.fits = out.plan->forecast.fits;
    const GoalSteps* point = nullptr;
    for (const GoalSteps& each : request.steps_curve)
      if (each.batch_size == out.plan->global_batch) point = &each;
    if (const auto answer = out.fits ? search_plan_if_any(request, nullptr, stop_) : std::nullopt) {
      out.plan = answer->best;
      if (request.objective == Objective::kTimeToGoal) out.seconds_to_goal = out.plan->objective;
    }
    if (!out.seconds_to_goal && request.objective == Objective::kTimeToGoal && point)
      out.seconds_to_goal = point->steps * out.plan->forecast.step_seconds;
    out.options = options_of(request, *out.plan);
    return out;
  }

  FallbackOption option_of_kind(const std::string& name, const Keys& keys) const {
    FallbackOption alone = search_option(name, with(keys));
    const bool may_accumulate =
        !request_.fixed.contains("accumulate") && keys.contains("accumulate") && keys.contains("pp") && keys.at("pp") == "1";
    if (alone.fits || !may_accumulate) return alone;
    Keys more = keys;
    more.erase("accumulate");
    FallbackOption both = search_option(name, with(more));
    if (!both.fits) return alone;
    both.note = "with accumulation";
    return both;
  }

  std::string options_of(const SearchRequest& request, const RankedPlan& plan) const {
    Layout layout = layout_of(request.problem.profile, plan);
    std::vector<std::string> words;
    const int accumulate = layout.accumulate;
    const std::string precision = layout.precision;
    layout.accumulate = 0, layout.precision.clear(), layout.stages.clear();
    const std::string text = to_text(layout);
    const bool is_plain = text == "single" || text == concat("dp=", layout.dp);
    const bool was_typed = base_.at("dp") != std::to_string(workers_) || base_.at("zero") != "0" || base_.at("recompute") != "none";
    if (!is_plain || was_typed) words.push_back("--layout " + shell_quoted(text));
    if (layout.num_ranks() != workers_) words.push_back(concat("--workers ", layout.num_ranks()));
    if (std::to_string(accumulate) != base_.at("accumulate")) words.push_back(concat("--accumulate ", accumulate));
    if (precision != precision_) words.push_back("--precision " + precision);
    if (plan.global_batch != request_.problem.global_batch) words.push_back(concat("--global-batch ", plan.global_batch));
    return join(words, " ");
  }

  /// What limits the memory of the first option.
  std::string constraint_of(const RankedPlan& plan) const {
    PlanProblem allowed = allowed_;
    allowed.global_batch = plan.global_batch;
    const StepForecast forecast = forecast_step(allowed, plan.candidate);
    const WorkerForecast& worker = forecast.tightest_worker();
    const StepMemory& memory = worker.memory;
    std::vector<std::pair<int64_t, std::string>> parts = {{memory.weights + memory.gradients + memory.buckets, "weights and gradients"},
                                                          {memory.optimizer, "the optimizer's state"},
                                                          {memory.stash + memory.recompute + memory.working, "activations"},
                                                          {memory.buffers + memory.overhead, "the process itself"}};
    std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<std::string> texts;
    for (const auto& [bytes, what] : parts)
      if (bytes > memory.total() / 100) texts.push_back(concat(human_bytes(bytes), " of ", what));
    Layout layout = plan.candidate.layout;
    layout.accumulate = 0, layout.precision.clear(), layout.recompute = recompute_text(plan.candidate.recompute);
    layout.shares.clear();
    const bool fits = plan.forecast.fits;
    return concat(to_text(layout), " needs ", human_bytes(memory.total()), " a rank, and ", human_bytes(worker.memory_limit),
                  fits            ? " are allowed: "
                  : forecast.fits ? concat(" are allowed, ", 100 * kMargin, " % of which a forecast may miss, so memory binds: ")
                                  : " are allowed, so memory binds: ",
                  join(texts, ", "));
  }

  /// The largest batch of at most `most` samples that fits; 0: none.
  int64_t largest_batch(SearchRequest request, int64_t most) const {
    const auto does = [&](int64_t batch) {
      request.problem.global_batch = batch;
      return can_fit(request);
    };
    if (does(most)) return most;
    int64_t fits = 0, fails = most;
    while (fails - fits > std::max<int64_t>(1, fits / 32) && !is_over()) {
      const int64_t middle = fits + (fails - fits) / 2;
      (does(middle) ? fits : fails) = middle;
    }
    return fits;
  }

  FallbackOption smaller_batch() const {
    const FallbackOption none{.name = kSmallerBatch};
    SearchRequest request = with(base_);
    const int64_t now = request.problem.global_batch, found = largest_batch(request, now);
    if (found == 0 || found == now) return none;
    // Rounded to equal shares where each replica gets a sample.
    const int64_t dp = std::max<int64_t>(1, parse_integer(base_.at("dp")).value_or(1));
    request.problem.global_batch = found >= dp ? found / dp * dp : found;
    FallbackOption out = search_option(kSmallerBatch, request);
    out.is_same_training = false;
    out.note = "another training: more steps, another learning rate";
    return out;
  }

  SearchRequest on_workers(int workers) const {
    SearchRequest out = all_free();
    out.fixed["precision"] = precision_;
    out.problem.cluster = with_hosts_for(std::move(out.problem.cluster), workers);
    out.num_workers = workers;
    return out;
  }

  FallbackOption more_workers() const {
    const auto fits = least_number(workers_, [&](int workers) { return !is_over() && can_fit(on_workers(workers)); });
    if (!fits) return {.name = kMoreWorkers};
    FallbackOption out = search_option(kMoreWorkers, on_workers(*fits));
    if (out.plan && out.plan->candidate.layout.num_ranks() <= workers_) return {.name = kMoreWorkers};  // An option above is the same.
    out.is_same_training = false;
    out.note = concat(*fits, " like these");
    return out;
  }

  FallbackOption variant_of(const FallbackVariants& kind) const {
    FallbackOption last{.name = kind.name};
    for (const FallbackVariant& variant : kind.variants) {
      if (is_over()) break;
      Keys accumulated = base_;
      if (!request_.fixed.contains("accumulate") && base_.at("pp") == "1") accumulated.erase("accumulate");
      try {
        const ModelProfile profile = variant.profile();
        for (SearchRequest request : {with(base_), with(accumulated), all_free()}) {
          request.problem.profile = profile;
          last = search_option(kind.name, request);
          last.is_same_training = false;
          last.options = last.options.empty() ? variant.options : variant.options + " " + last.options;
          if (!last.fits) continue;
          SearchRequest whole = with(base_);
          whole.problem.profile = profile;
          const int64_t batch = largest_batch(whole, whole.problem.global_batch);
          if (batch > 0 && batch < whole.problem.global_batch) last.note = concat("a batch of ", batch, " would fit without more");
          if (batch == whole.problem.global_batch) last.note = concat("the batch of ", batch, " fits whole");
          return last;
        }
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kBadInput) throw;  // An invalid size of the model.
      }
    }
    return last;
  }

  void note_both_ways(FallbackOptions& out, const std::string& longer) const {
    const auto found = [&](const char* name) {
      return std::find_if(out.rungs.begin(), out.rungs.end(),
                          [&](const FallbackOption& option) { return option.name == name && option.fits; });
    };
    const auto batch = found(kSmallerBatch), workers = found(kMoreWorkers);
    std::vector<std::string> ways;
    if (batch != out.rungs.end())
      ways.push_back(concat("a batch of ", batch->plan->global_batch, " on ", workers_, workers_ == 1 ? " worker" : " workers"));
    if (workers != out.rungs.end())
      ways.push_back(concat(workers->plan->candidate.layout.num_ranks(), " workers for the batch of ", workers->plan->global_batch));
    if (!ways.empty()) out.notes.push_back(concat(longer, ": ", join(ways, ", or ")));
  }

  SearchRequest request_;  ///< With limits reduced by the margin.
  PlanProblem allowed_;    ///< With the limits that were asked for.
  const std::atomic<bool>* stop_;
  const std::function<void()>& look_;
  int workers_;
  std::string precision_;
  std::vector<std::string> other_precisions_;
  Keys base_;
};

}  // namespace

const FallbackOption* FallbackOptions::fastest() const {
  const FallbackOption* best = nullptr;
  for (const FallbackOption& option : rungs) {
    if (!option.fits || !option.is_same_training) continue;
    const auto cost = [](const FallbackOption& one) { return one.seconds_to_goal.value_or(one.plan->forecast.step_seconds); };
    if (!best || cost(option) < cost(*best)) best = &option;
  }
  return best;
}

SearchRequest without_memory_limits(SearchRequest request) {
  constexpr int64_t kUnlimited = INT64_C(1) << 60;
  for (DeviceKind& device : request.problem.cluster.devices) device.memory_bytes = kUnlimited;
  if (request.problem.memory_limit_bytes > 0) request.problem.memory_limit_bytes = kUnlimited;
  return request;
}

FallbackOptions find_fallback_options(const SearchRequest& request, const FallbackSources& sources, const std::atomic<bool>* stop,
                                      const std::function<void()>& look) {
  return FallbackSearch(request, stop, look).run(sources);
}

namespace {

std::string padded(const std::string& text, size_t width, bool right) {
  const std::string space(width > text.size() ? width - text.size() : 0, ' ');
  return right ? space + text : text + space;
}

}  // namespace

std::string fallback_text(const FallbackOptions& ladder) {
  std::string out = ladder.constraint.empty() ? "" : ladder.constraint + "\n\n";
  const bool has_goal = std::any_of(ladder.rungs.begin(), ladder.rungs.end(),
                                    [](const FallbackOption& option) { return option.seconds_to_goal.has_value(); });
  const auto row = [&](const std::string& name, const std::string& memory, const std::string& step, const std::string& goal,
                       const std::string& fits, const std::string& options) {
    out += concat(padded(name, 27, false), padded(memory, 11, true), padded(step, 11, true), has_goal ? padded(goal, 11, true) : "", "  ",
                  padded(fits, 5, false), options, "\n");
  };
  row("what to do", "a rank", "a step", "to goal", "fits", "options");
  for (const FallbackOption& option : ladder.rungs) {
    const StepForecast& forecast = option.plan->forecast;
    row(option.name, human_bytes(forecast.peak_memory_bytes()), human_seconds(forecast.step_seconds),
        option.seconds_to_goal ? human_seconds(*option.seconds_to_goal) : "", option.fits ? "yes" : "no",
        option.note.empty()      ? option.options
        : option.options.empty() ? concat("(", option.note, ")")
                                 : concat(option.options, "  (", option.note, ")"));
  }
  if (!ladder.notes.empty()) out += "\n";
  for (const std::string& note : ladder.notes) out += concat("- ", note, "\n");
  if (ladder.is_stopped) out += "\nStopped: ways out that would come below were not looked at.\n";
  return out;
}

Json to_json(const FallbackOptions& ladder) {
  Json rungs = Json::array();
  for (const FallbackOption& option : ladder.rungs)
    rungs.push_back({{"name", option.name},
                     {"options", option.options},
                     {"fits", option.fits},
                     {"predicted_peak_memory_bytes", option.plan->forecast.peak_memory_bytes()},
                     {"predicted_step_seconds", option.plan->forecast.step_seconds},
                     {"seconds_to_goal", option.seconds_to_goal ? Json(*option.seconds_to_goal) : Json(nullptr)},
                     {"num_workers", option.plan->candidate.layout.num_ranks()},
                     {"global_batch", option.plan->global_batch},
                     {"note", option.note}});
  return {{"event", "ladder"},
          {"constraint", ladder.constraint},
          {"rungs", std::move(rungs)},
          {"notes", ladder.notes},
          {"complete", !ladder.is_stopped}};
}

}  // namespace cohort
