#include "cohort/train/step/step_trace.h"

#include <algorithm>
#include <map>
#include <utility>

#include "cohort/base/text/json.h"

namespace cohort {

void StepTrace::begin_step(int64_t number) {
  current_ = {.number = number + 1};
  actions_.clear();
}

void StepTrace::span(const char* name, double start, double end) {
  if (end > start && current_.spans.size() < kMostSpans) current_.spans.push_back({name, name, start, end});
}

std::vector<TimedAction>* StepTrace::actions() { return actions_.size() < kMostSpans ? &actions_ : nullptr; }

void StepTrace::end_step(double step_seconds) {
  current_.step_seconds = step_seconds;
  for (const TimedAction& timed : actions_)
    current_.spans.push_back({action_text(timed.action), trace_category(timed.action), timed.start, timed.end});
  steps_.push_back(std::move(current_));
  if (steps_.size() > kKept) steps_.pop_front();
}

const StepTrace::Step* StepTrace::step_of(int64_t number) const {
  const auto found = std::find_if(steps_.begin(), steps_.end(), [&](const Step& step) { return step.number == number; });
  return found == steps_.end() ? nullptr : &*found;
}

StepTrace::Result StepTrace::median_step(Group& group) const {
  std::vector<std::pair<double, int64_t>> times;
  for (const Step& step : steps_) times.emplace_back(step.step_seconds, step.number);
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  if (!times.empty()) std::nth_element(times.begin(), middle, times.end());
  const std::string mine = times.empty() ? "0" : std::to_string(middle->second);
  Result result{.step = std::stoll(group.all_gather_text(mine, "the step of the trace").front()), .lanes = {}};

  Json own{{"host", group.ranks_of_my_host().empty() ? group.rank() : group.ranks_of_my_host().front()}, {"spans", Json::array()}};
  if (const Step* const step = step_of(result.step))
    for (const TraceSpan& span : step->spans) own["spans"].push_back({span.name, span.category, span.start, span.end});
  std::vector<Json> ranks;
  for (const std::string& text : group.all_gather_text(own.dump(), "the parts of a step")) ranks.push_back(Json::parse(text));

  std::map<int, double> start_of_host;
  for (const Json& rank : ranks)
    for (const Json& span : rank["spans"]) {
      const auto [at, is_new] = start_of_host.emplace(rank["host"].get<int>(), span[2].get<double>());
      at->second = std::min(at->second, span[2].get<double>());
    }
  for (const Json& rank : ranks) {
    std::vector<TraceSpan>& lane = result.lanes.emplace_back();
    for (const Json& span : rank["spans"]) {
      const double start = start_of_host.at(rank["host"].get<int>());
      lane.push_back(
          {span[0].get<std::string>(), span[1].get<std::string>(), span[2].get<double>() - start, span[3].get<double>() - start});
    }
  }
  return result;
}

namespace {

constexpr double StepRecord::* kTimes[] = {&StepRecord::step_seconds, &StepRecord::data_seconds, &StepRecord::compute_seconds,
                                           &StepRecord::exchange_seconds, &StepRecord::optimizer_seconds};

}  // namespace

void LocalRound::add_loss(double loss, int64_t own_samples, int64_t all_samples) {
  if (own_samples > 0) loss_sum_ += loss * static_cast<double>(own_samples);
  own_samples_ += own_samples;
  all_samples_ += all_samples;
}

void LocalRound::add(const StepRecord& step) {
  StepRecord sum = step;
  if (num_steps_ > 0)
    for (double StepRecord::* const time : kTimes) sum.*time += sum_.*time;
  sum_ = sum;
  ++num_steps_;
}

LocalRound::Total LocalRound::take() {
  Total total{.mean = sum_, .num_steps = num_steps_, .own_samples = own_samples_};
  total.mean.samples_per_second = static_cast<double>(all_samples_) / sum_.step_seconds;
  for (double StepRecord::* const time : kTimes) total.mean.*time /= static_cast<double>(num_steps_);
  *this = LocalRound();
  return total;
}

}  // namespace cohort
