#include "cohort/comm/rendezvous/patient_store.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

constexpr std::chrono::milliseconds kFirstNap{1}, kLongestNap{20};
constexpr double kBetweenLooks = 0.05, kMomentAfterStop = 0.3;
constexpr const char *kRefusal = "cohort/refusal", *kHeard = "cohort/refusal/heard";

}  // namespace

PatientStore::PatientStore(c10::intrusive_ptr<c10d::Store> store, bool heeds_stop) : store_(std::move(store)), heeds_stop_(heeds_stop) {}

c10::intrusive_ptr<c10d::Store> PatientStore::clone() { return c10::make_intrusive<PatientStore>(store_->clone(), heeds_stop_); }

std::vector<uint8_t> PatientStore::get(const std::string& key) {
  wait({key});
  return store_->get(key);
}

void PatientStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  AwakeTimer timer;
  StopWatch stop;
  double next_look = 0;
  for (auto nap = kFirstNap; !store_->check(keys); nap = std::min(2 * nap, kLongestNap)) {
    if (heeds_stop_) stop.check();
    const double seconds = timer.seconds();
    if (look_ && seconds >= next_look) look_(), next_look = seconds + kBetweenLooks;
    if (seconds > std::chrono::duration<double>(timeout).count())
      throw std::runtime_error(concat("wait timeout after ", timeout.count(), "ms, keys: ", join(keys, ", ")));
    std::this_thread::sleep_for(nap);
  }
}

void StopWatch::check() {
  if (!stop_requested()) return;
  if (since_ == 0) since_ = steady_seconds();
  if (steady_seconds() - since_ > kMomentAfterStop) throw Error(ErrorCode::kInterrupted, kStoppedBeforeFirstStep);
}

void leave_refusal(c10d::Store& store, ErrorCode code, const std::string& text) {
  if (!store.check({kRefusal})) {
    const std::string entry = concat(static_cast<int>(code), " ", text);
    store.set(kRefusal, std::vector<uint8_t>(entry.begin(), entry.end()));
  }
  store.add(kHeard, 1);
}

void check_refusal(c10d::Store& store) {
  if (!store.check({kRefusal})) return;
  const std::vector<uint8_t> bytes = store.get(kRefusal);
  const std::string entry(bytes.begin(), bytes.end());
  store.add(kHeard, 1);
  const size_t space = std::min(entry.find(' '), entry.size());
  const auto code = parse_integer(entry.substr(0, space));
  throw Error(code && *code > 0 && *code < 256 ? static_cast<ErrorCode>(*code) : ErrorCode::kEnvironment,
              entry.substr(std::min(space + 1, entry.size())));
}

int64_t num_heard_refusal(c10d::Store& store) { return store.add(kHeard, 0); }

}  // namespace cohort
