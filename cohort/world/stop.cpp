#include "cohort/world/stop.h"

#include <unistd.h>

#include <atomic>
#include <mutex>

namespace cohort {
namespace {

std::atomic<bool> stop{false};
std::atomic<int> num_exit_guards{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free, "the signal handler uses them");

void on_stop_signal(int) {
  stop = true;
  if (num_exit_guards > 0) ::alarm(1);
}

[[noreturn]] void exit_at_alarm(int) {
  static constexpr char kBegin[] = "cohort: ";
  char line[sizeof kBegin + sizeof kStoppedBeforeFirstStep];
  size_t size = 0;
  for (const char* at = kBegin; *at; ++at) line[size++] = *at;
  for (const char* at = kStoppedBeforeFirstStep; *at; ++at) line[size++] = *at;
  line[size++] = '\n';
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, size);
  ::_exit(130);
}

void (*current_handler(int signal))(int) {
  struct sigaction now{};
  return ::sigaction(signal, nullptr, &now) == 0 ? now.sa_handler : SIG_DFL;
}

void catch_signals(int flags) {
  struct sigaction action{};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART | flags;
  sigemptyset(&action.sa_mask);
  for (const int signal : stop_signals()) ::sigaction(signal, &action, nullptr);
  // Exceeding a file size limit (ulimit -f) is then an error of that write, as a full disk is.
  ::signal(SIGXFSZ, SIG_IGN);
}

std::mutex alarm_mutex;
struct sigaction alarm_before{};

}  // namespace

std::vector<int> stop_signals() {
  std::vector<int> signals = {SIGTERM};
  for (const int signal : {SIGINT, SIGHUP})
    if (current_handler(signal) != SIG_IGN) signals.push_back(signal);
  for (const int signal : {SIGUSR1, SIGUSR2})
    if (const auto handler = current_handler(signal); handler == SIG_DFL || handler == on_stop_signal) signals.push_back(signal);
  return signals;
}

void catch_stop_signals() { catch_signals(0); }
void catch_first_stop_signal() { catch_signals(static_cast<int>(SA_RESETHAND)); }
void restore_default_stop_signals() {
  for (const int signal : stop_signals()) ::signal(signal, SIG_DFL);
}
bool stop_requested() { return stop.load(std::memory_order_relaxed); }
void request_stop() { stop = true; }

ExitSoonAfterStop::ExitSoonAfterStop() {
  const std::lock_guard<std::mutex> lock(alarm_mutex);
  if (num_exit_guards == 0) {
    struct sigaction action{};
    action.sa_handler = exit_at_alarm;
    ::sigaction(SIGALRM, &action, &alarm_before);
  }
  ++num_exit_guards;
  if (stop) ::alarm(1);
}

ExitSoonAfterStop::~ExitSoonAfterStop() {
  const std::lock_guard<std::mutex> lock(alarm_mutex);
  if (--num_exit_guards > 0) return;
  if (stop) ::alarm(0);
  ::sigaction(SIGALRM, &alarm_before, nullptr);
}

}  // namespace cohort
