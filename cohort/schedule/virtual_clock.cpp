#include "cohort/schedule/virtual_clock.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/base/text/json.h"

namespace cohort {
namespace {

/// Separates these uses of the seed.
constexpr uint64_t kStream = 0x7669727475616c;
enum Draw { kSpeed, kSpeedAngle, kLifetime, kPause };
constexpr size_t kMostEventsOfWorker = 8;

double finite(const Json& value, const std::string& where) {
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0)
    fail(ErrorCode::kBadInput, where, ": virtual clock: ", value.dump().substr(0, 40), " is not a time");
  return value.get<double>();
}

int64_t count(const Json& value, const std::string& where, int64_t most) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > most)
    fail(ErrorCode::kBadInput, where, ": virtual clock: ", value.dump().substr(0, 40), " is not an integer from 0 to ", most);
  return value.get<int64_t>();
}

const Json& rows_of(const Json& state, const char* key, size_t columns, size_t most, const std::string& where) {
  const bool is_list =
      state.is_object() && state.contains(key) && state[key].is_array() && state[key].size() <= most &&
      std::all_of(state[key].begin(), state[key].end(), [&](const Json& row) { return row.is_array() && row.size() == columns; });
  if (!is_list)
    fail(ErrorCode::kBadInput, where, ": virtual clock: '", key, "' is not a list of at most ", most, " rows of ", columns, " numbers");
  return state[key];
}

constexpr int64_t kMany = int64_t{1} << 52;

}  // namespace

VirtualClock::VirtualClock(const VirtualSpec& spec, uint64_t seed)
    : spec_(spec), seed_(seed), speeds_(static_cast<size_t>(spec.workers), 1.0), workers_(static_cast<size_t>(spec.workers)) {
  for (int worker = 0; worker < spec.workers; ++worker) {
    if (spec.speed_sigma > 0) {
      // A normally distributed number (Box and Muller).
      const double radius = std::sqrt(-2 * std::log(1 - unit_interval(random_bits(seed, kStream, kSpeed, worker))));
      const double angle = 2 * std::numbers::pi * unit_interval(random_bits(seed, kStream, kSpeedAngle, worker));
      speeds_[static_cast<size_t>(worker)] = std::exp(spec.speed_sigma * radius * std::cos(angle));
    }
    if (spec.pause_every_seconds > 0)
      workers_[static_cast<size_t>(worker)].until_pause = exponential(kPause, worker, 0, spec.pause_every_seconds);
  }
  for (const auto& [worker, factor] : spec.slow) speeds_[static_cast<size_t>(worker)] /= factor;
}

double VirtualClock::exponential(int stream, int worker, int64_t index, double mean) const {
  return -mean * std::log(1 - unit_interval(random_bits(seed_, kStream, stream, worker, index)));
}

void VirtualClock::schedule(double seconds, int kind, int worker) { events_.insert({now_ + seconds, serial_++, kind, worker}); }

void VirtualClock::cancel(int worker) {
  std::erase_if(events_, [&](const VirtualEvent& event) { return event.worker == worker; });
}

std::optional<VirtualEvent> VirtualClock::next() {
  if (events_.empty()) return std::nullopt;
  const VirtualEvent event = *events_.begin();
  events_.erase(events_.begin());
  now_ = std::max(now_, event.seconds);
  return event;
}

std::optional<double> VirtualClock::next_event_seconds() const {
  if (events_.empty()) return std::nullopt;
  return events_.begin()->seconds;
}

double VirtualClock::transfer_seconds(int64_t bytes) const {
  return spec_.latency_seconds + (spec_.bytes_per_second > 0 ? static_cast<double>(bytes) / spec_.bytes_per_second : 0);
}

double VirtualClock::work(int worker, double seconds) {
  Worker& own = workers_[static_cast<size_t>(worker)];
  double left = seconds / speed(worker), taken = left;
  if (spec_.pause_every_seconds == 0) return taken;
  for (; left >= own.until_pause; taken += spec_.pause_seconds) {
    left -= own.until_pause;
    own.until_pause = exponential(kPause, worker, ++own.num_pauses, spec_.pause_every_seconds);
  }
  own.until_pause -= left;
  return taken;
}

std::optional<double> VirtualClock::lifetime(int worker) {
  if (spec_.mtbf_seconds == 0) return std::nullopt;
  return exponential(kLifetime, worker, workers_[static_cast<size_t>(worker)].num_lives++, spec_.mtbf_seconds);
}

VirtualClock::Transfer VirtualClock::send(Direction direction, int64_t bytes) {
  double& free = free_[direction];
  const double begin = std::max(now_, free);
  free = begin + transfer_seconds(bytes) - spec_.latency_seconds;
  return {begin - now_, free + spec_.latency_seconds - now_};
}

Json VirtualClock::state() const {
  Json events = Json::array(), workers = Json::array();
  for (const VirtualEvent& event : events_) events.push_back({event.seconds, event.serial, event.kind, event.worker});
  for (const Worker& worker : workers_) workers.push_back({worker.num_lives, worker.num_pauses, worker.until_pause});
  return Json{{"now", now_}, {"free", {free_[0], free_[1]}}, {"serial", serial_}, {"workers", workers}, {"events", events}};
}

void VirtualClock::load(const Json& state, const std::string& where) {
  const Json& workers = rows_of(state, "workers", 3, workers_.size(), where);
  const Json& events = rows_of(state, "events", 4, workers_.size() * kMostEventsOfWorker, where);
  if (workers.size() != workers_.size())
    fail(ErrorCode::kBadInput, where, ": virtual clock: it is of ", workers.size(), " workers, and there are ", workers_.size());
  const Json free = state.value("free", Json());
  if (!free.is_array() || free.size() != 2) fail(ErrorCode::kBadInput, where, ": virtual clock: 'free' is not two times");
  VirtualClock loaded(spec_, seed_);
  loaded.now_ = finite(state.value("now", Json()), where);
  loaded.serial_ = count(state.value("serial", Json()), where, kMany);
  for (int direction : {0, 1}) loaded.free_[direction] = finite(free[static_cast<size_t>(direction)], where);
  for (size_t i = 0; i < workers_.size(); ++i)
    loaded.workers_[i] = {count(workers[i][0], where, kMany), count(workers[i][1], where, kMany), finite(workers[i][2], where)};
  for (const Json& row : events)
    loaded.events_.insert({finite(row[0], where), count(row[1], where, kMany), static_cast<int>(count(row[2], where, 1000)),
                           static_cast<int>(count(row[3], where, spec_.workers - 1))});
  *this = loaded;
}

}  // namespace cohort
