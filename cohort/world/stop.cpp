#include "cohort/world/stop.h"

#include <signal.h>

#include <atomic>

namespace cohort {
namespace {
std::atomic<bool> stop{false};
static_assert(std::atomic<bool>::is_always_lock_free, "the signal handler writes it");

void catch_signals(int flags) {
  struct sigaction action{};
  action.sa_handler = [](int) { stop = true; };
  action.sa_flags = SA_RESTART | flags;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  // Under nohup a terminal that goes away is to change nothing.
  struct sigaction before{};
  if (::sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &action, nullptr);
  // A file that reaches the limit of its size (ulimit -f) is an error of that write, as a full disk is.
  ::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace

void catch_stop_signals() { catch_signals(0); }
void catch_first_stop_signal() { catch_signals(static_cast<int>(SA_RESETHAND)); }
void end_at_stop_signals() {
  for (const int signal : {SIGINT, SIGTERM}) ::signal(signal, SIG_DFL);
}
bool stop_requested() { return stop.load(std::memory_order_relaxed); }
void request_stop() { stop = true; }

}  // namespace cohort
