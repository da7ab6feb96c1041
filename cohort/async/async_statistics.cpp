#include "cohort/async/async_statistics.h"

#include <algorithm>
#include <set>
#include <utility>

#include "cohort/async/local_server.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json_fields.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr size_t kMaxStatisticsWorkers = size_t{1} << 20;

/// Lower bound of the bin of a staleness: 0, 1, 2, 4, 8, ...
int64_t staleness_bin(int64_t staleness) {
  int64_t from = staleness > 0 ? 1 : 0;
  while (from > 0 && from <= staleness / 2) from *= 2;
  return from;
}

/// The smallest staleness not exceeded by at least `fraction` of all pushes.
double staleness_quantile(const std::map<int64_t, int64_t>& counts, double fraction) {
  double total = 0, sum = 0;
  for (const auto& [staleness, pushes] : counts) total += static_cast<double>(pushes);
  for (const auto& [staleness, pushes] : counts) {
    sum += static_cast<double>(pushes);
    if (sum >= fraction * total) return static_cast<double>(staleness);
  }
  return kUnknown;
}

}  // namespace

AsyncStatistics::AsyncStatistics(int num_workers) { worker(num_workers - 1); }

AsyncRecord::Worker& AsyncStatistics::worker(int index) {
  while (std::ssize(workers_) <= index) workers_.push_back({.worker = std::ssize(workers_)});
  return workers_[static_cast<size_t>(index)];
}

void AsyncStatistics::add_push(int index, const WorkItem& item, const PushOutcome& outcome) {
  AsyncRecord::Worker& own = worker(index);
  ++own.pushes;
  own.samples += item.num_samples();
  ++staleness_[outcome.staleness];
  late_steps_ += outcome.late_steps;
  most_late_steps_ = std::max(most_late_steps_, outcome.late_steps);
}

void AsyncStatistics::add_seconds(int index, const AsyncRecord::Worker& more) {
  AsyncRecord::Worker& own = worker(index);
  own.computing_seconds += more.computing_seconds;
  own.waiting_seconds += more.waiting_seconds;
  own.moving_seconds += more.moving_seconds;
  own.pushing_seconds += more.pushing_seconds;
}

std::string AsyncStatistics::pushes_text(int index) {
  const int64_t pushes = worker(index).pushes;
  return concat(with_commas(pushes), pushes == 1 ? " push" : " pushes");
}

void AsyncStatistics::add_bytes(int64_t to_workers, int64_t to_server) {
  bytes_to_workers_ += to_workers;
  bytes_to_server_ += to_server;
}

AsyncRecord AsyncStatistics::record() const {
  AsyncRecord record{.bytes_to_workers = bytes_to_workers_, .bytes_to_server = bytes_to_server_, .workers = workers_};
  for (const AsyncRecord::Worker& worker : workers_) {
    record.pushes += worker.pushes;
    record.samples += worker.samples;
    record.lost += worker.lost;
    record.deaths += worker.deaths;
    record.left += worker.left;
  }
  std::map<int64_t, int64_t> bins;
  for (const auto& [staleness, pushes] : staleness_) bins[staleness_bin(staleness)] += pushes;
  for (const auto& [from, pushes] : bins) {
    record.staleness_from.push_back(from);
    record.pushes_of_staleness.push_back(pushes);
  }
  record.staleness_median = staleness_quantile(staleness_, 0.5);
  record.staleness_tail = staleness_quantile(staleness_, 0.99);
  if (record.pushes > 0) {
    record.mean_late_steps = late_steps_ / static_cast<double>(record.pushes);
    record.most_late_steps = most_late_steps_;
  }
  return record;
}

Json AsyncStatistics::state() const {
  Json workers = Json::array(), staleness = Json::array();
  for (const AsyncRecord::Worker& w : workers_)
    workers.push_back(
        {w.pushes, w.samples, w.lost, w.deaths, w.computing_seconds, w.waiting_seconds, w.moving_seconds, w.left, w.pushing_seconds});
  for (const auto& [late, pushes] : staleness_) staleness.push_back({late, pushes});
  return Json{{"workers", workers},
              {"staleness", staleness},
              {"late_steps", {late_steps_, most_late_steps_}},
              {"bytes", {bytes_to_workers_, bytes_to_server_}}};
}

void AsyncStatistics::load(const Json& state, const std::string& where) {
  const JsonFields fields(state, where);
  const auto rows = [&](const char* key, const std::set<size_t>& num_columns) -> const Json& {
    const Json& list = fields.array(key, kMaxStatisticsWorkers);
    for (const Json& row : list) {
      if (!row.is_array() || !num_columns.contains(row.size())) fields.refuse("invalid row in the worker statistics \"", key, "\"");
      for (const Json& number : row)
        if (!number.is_number() || !(number.get<double>() >= 0)) fields.refuse("invalid number in the worker statistics \"", key, "\"");
    }
    return list;
  };
  const std::vector<double> late = fields.numbers("late_steps", 2);
  const std::vector<int64_t> bytes = fields.naturals("bytes", 2);
  if (late.size() != 2 || bytes.size() != 2) fields.refuse("expected two numbers each in \"late_steps\" and \"bytes\"");
  const Json &workers = rows("workers", {9, 10, 8}), &staleness = rows("staleness", {2});
  if (workers.size() < workers_.size()) fields.refuse("statistics of ", workers.size(), " workers for a training of ", workers_.size());
  worker(static_cast<int>(workers.size()) - 1);  // Including those that joined later.
  for (size_t i = 0; i < workers_.size(); ++i) {
    Json row = workers[i];
    if (row.size() != 9) row.erase(size_t{2});  // Written by versions that counted dropped pushes.
    AsyncRecord::Worker& w = workers_[i];
    int64_t* const counts[] = {&w.pushes, &w.samples, &w.lost, &w.deaths};
    double* const seconds[] = {&w.computing_seconds, &w.waiting_seconds, &w.moving_seconds};
    for (size_t at = 0; at < 4; ++at) *counts[at] = row[at].get<int64_t>();
    for (size_t at = 0; at < 3; ++at) *seconds[at] = row[4 + at].get<double>();
    if (row.size() < 9) continue;  // Written by versions without the last two columns.
    w.left = row[7].get<int64_t>();
    w.pushing_seconds = row[8].get<double>();
  }
  staleness_.clear();
  for (const Json& row : staleness) staleness_[row[0].get<int64_t>()] += row[1].get<int64_t>();
  late_steps_ = late[0];
  most_late_steps_ = late[1];
  bytes_to_workers_ = bytes[0];
  bytes_to_server_ = bytes[1];
}

AppliedPush apply_push(AsyncMode& mode, Assignment& push, const StepNumbers& numbers, AsyncStatistics& statistics, WorkQueue& queue) {
  const PushOutcome outcome = mode.push(push, numbers);
  statistics.add_push(push.worker, push.item, outcome);
  queue.finish(push.item);
  return {push.item, push.loss, outcome};
}

AppliedPush merge_pushes(LocalServer& server, std::vector<Assignment*>& pushes, AsyncStatistics& statistics, WorkQueue& queue) {
  std::sort(pushes.begin(), pushes.end(), [](const Assignment* a, const Assignment* b) {
    return std::pair(a->item.share, a->item.step) < std::pair(b->item.share, b->item.step);
  });
  const std::vector<PushOutcome> outcomes = server.merge(pushes);
  for (size_t i = 0; i < pushes.size(); ++i) {
    statistics.add_push(pushes[i]->worker, pushes[i]->item, outcomes[i]);
    queue.finish(pushes[i]->item);
  }
  return combined_push(pushes);
}

}  // namespace cohort
