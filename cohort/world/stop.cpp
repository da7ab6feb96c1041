#include "cohort/world/stop.h"

#include <signal.h>

#include <atomic>

namespace cohort {
namespace {
std::atomic<bool> stop{false};
static_assert(std::atomic<bool>::is_always_lock_free, "the signal handler writes it");
}  // namespace

void catch_stop_signals() {
  struct sigaction action{};
  action.sa_handler = [](int) { stop = true; };
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

bool stop_requested() { return stop.load(std::memory_order_relaxed); }
void request_stop() { stop = true; }

}  // namespace cohort
