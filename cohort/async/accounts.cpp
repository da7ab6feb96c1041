#include "cohort/async/accounts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr size_t kMostWorkers = size_t{1} << 20;

/// 0, 1, 2, 4, 8, ...: where the bin of a staleness begins.
int64_t bin_of(int64_t staleness) {
  int64_t from = staleness > 0 ? 1 : 0;
  while (from > 0 && from <= staleness / 2) from *= 2;
  return from;
}

/// The smallest staleness that at least this part of all pushes does not exceed.
double quantile(const std::map<int64_t, int64_t>& counts, double part) {
  double total = 0, sum = 0;
  for (const auto& [staleness, pushes] : counts) total += static_cast<double>(pushes);
  for (const auto& [staleness, pushes] : counts) {
    sum += static_cast<double>(pushes);
    if (sum >= part * total) return static_cast<double>(staleness);
  }
  return kUnknown;
}

}  // namespace

Accounts::Accounts(int num_workers) { of(num_workers - 1); }

AsyncRecord::Worker& Accounts::of(int worker) {
  while (std::ssize(workers_) <= worker) workers_.push_back({.worker = std::ssize(workers_)});
  return workers_[static_cast<size_t>(worker)];
}

void Accounts::push(int worker, const Ticket& ticket, const PushOutcome& outcome) {
  AsyncRecord::Worker& own = of(worker);
  ++own.pushes;
  own.samples += ticket.num_samples();
  ++staleness_[outcome.staleness];
  late_steps_ += outcome.late_steps;
  most_late_steps_ = std::max(most_late_steps_, outcome.late_steps);
}

void Accounts::spent(int worker, const AsyncRecord::Worker& more) {
  AsyncRecord::Worker& own = of(worker);
  own.computing_seconds += more.computing_seconds;
  own.waiting_seconds += more.waiting_seconds;
  own.moving_seconds += more.moving_seconds;
  own.pushing_seconds += more.pushing_seconds;
}

std::string Accounts::pushes_text(int worker) {
  const int64_t pushes = of(worker).pushes;
  return concat(with_commas(pushes), pushes == 1 ? " push" : " pushes");
}

void Accounts::moved(int64_t to_workers, int64_t to_server) {
  bytes_to_workers_ += to_workers;
  bytes_to_server_ += to_server;
}

AsyncRecord Accounts::record() const {
  AsyncRecord record{.bytes_to_workers = bytes_to_workers_, .bytes_to_server = bytes_to_server_, .workers = workers_};
  for (const AsyncRecord::Worker& worker : workers_) {
    record.pushes += worker.pushes;
    record.samples += worker.samples;
    record.lost += worker.lost;
    record.deaths += worker.deaths;
    record.left += worker.left;
  }
  std::map<int64_t, int64_t> bins;
  for (const auto& [staleness, pushes] : staleness_) bins[bin_of(staleness)] += pushes;
  for (const auto& [from, pushes] : bins) {
    record.staleness_from.push_back(from);
    record.pushes_of_staleness.push_back(pushes);
  }
  record.staleness_median = quantile(staleness_, 0.5);
  record.staleness_tail = quantile(staleness_, 0.99);
  if (record.pushes > 0) {
    record.mean_late_steps = late_steps_ / static_cast<double>(record.pushes);
    record.most_late_steps = most_late_steps_;
  }
  return record;
}

Json Accounts::state() const {
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

void Accounts::load(const Json& state, const std::string& where) {
  const auto refuse = [&] { fail(ErrorCode::kBadInput, where, ": the accounts of the workers are damaged"); };
  const auto rows = [&](const char* key, const std::set<size_t>& columns) {
    const Json list = state.is_object() ? state.value(key, Json()) : Json();
    if (!list.is_array()) refuse();
    for (const Json& row : list) {
      if (!row.is_array() || !columns.contains(row.size())) refuse();
      for (const Json& number : row)
        if (!number.is_number() || !(number.get<double>() >= 0)) refuse();
    }
    return list;
  };
  const auto pair = [&](const char* key) {
    const Json list = state.is_object() ? state.value(key, Json()) : Json();
    if (!list.is_array() || list.size() != 2 || !list[0].is_number() || !list[1].is_number()) refuse();
    return list;
  };
  const Json workers = rows("workers", {9, 10, 8}), staleness = rows("staleness", {2});
  if (workers.size() < workers_.size() || workers.size() > kMostWorkers) refuse();
  of(static_cast<int>(workers.size()) - 1);  // Those who joined.
  for (size_t i = 0; i < workers_.size(); ++i) {
    Json row = workers[i];
    if (row.size() != 9) row.erase(size_t{2});  // Written when pushes could be dropped.
    AsyncRecord::Worker& w = workers_[i];
    int64_t* const counts[] = {&w.pushes, &w.samples, &w.lost, &w.deaths};
    double* const seconds[] = {&w.computing_seconds, &w.waiting_seconds, &w.moving_seconds};
    for (size_t at = 0; at < 4; ++at) *counts[at] = row[at].get<int64_t>();
    for (size_t at = 0; at < 3; ++at) *seconds[at] = row[4 + at].get<double>();
    if (row.size() < 9) continue;  // Written before there were these.
    w.left = row[7].get<int64_t>();
    w.pushing_seconds = row[8].get<double>();
  }
  staleness_.clear();
  for (const Json& row : staleness) staleness_[row[0].get<int64_t>()] += row[1].get<int64_t>();
  const Json late = pair("late_steps"), bytes = pair("bytes");
  late_steps_ = late[0].get<double>();
  most_late_steps_ = late[1].get<double>();
  bytes_to_workers_ = bytes[0].get<int64_t>();
  bytes_to_server_ = bytes[1].get<int64_t>();
}

}  // namespace cohort
