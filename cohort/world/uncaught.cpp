#include "cohort/world/uncaught.h"

#include <cxxabi.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <typeinfo>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/log.h"
#include "cohort/world/status.h"

namespace cohort {
namespace {

std::atomic<int> our_rank{0}, our_size{1}, our_status_fd{-1};
std::atomic<int> num_unfinished{0};
std::terminate_handler handler_before = nullptr;

std::string type_name(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), &std::free);
  return name ? name.get() : type.name();
}

/// Whether the program set a handler: the default one would print and abort.
bool has_own_handler() { return handler_before && handler_before != __gnu_cxx::__verbose_terminate_handler; }

[[noreturn]] void on_terminate() {
  if (const std::exception_ptr exception = std::current_exception()) {
    try {
      std::rethrow_exception(exception);
    } catch (const Error& error) {
      end_process(static_cast<int>(error.code()), error.what());
    } catch (const std::bad_alloc&) {
      if (!has_own_handler()) end_process(1, "out of memory: an allocation was refused; use smaller batches or more workers");
    } catch (const std::exception& error) {
      if (!has_own_handler()) {
        const ExitStatus ending = exit_status_of(error);
        end_process(ending.code, ending.text);
      }
    } catch (...) {
      const std::type_info* const type = abi::__cxa_current_exception_type();
      if (!has_own_handler())
        end_process(1, concat("an exception of type ", type ? type_name(*type) : std::string("unknown"),
                              ", which is no std::exception and says nothing else"));
    }
  }
  if (handler_before) handler_before();
  std::abort();
}

/// Tries as many threads at a time as a library may have wanted: one of ours may have ended since and made room for a few.
bool can_start_threads() {
  static std::mutex held;
  std::array<pthread_t, 32> threads;
  size_t num_started = 0;
  int reason = 0;
  held.lock();
  const auto wait = [](void*) -> void* {
    const std::lock_guard<std::mutex> lock(held);
    return nullptr;
  };
  while (reason == 0 && num_started < threads.size()) {
    reason = ::pthread_create(&threads[num_started], nullptr, wait, nullptr);
    if (reason == 0) ++num_started;
  }
  held.unlock();
  for (size_t i = 0; i < num_started; ++i) ::pthread_join(threads[i], nullptr);
  return reason != EAGAIN;
}

std::string thread_limit_message() {
  rlimit limit{};
  const bool is_limited = ::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return concat("no further thread or process can be started: ",
                is_limited ? concat("this user may have ", limit.rlim_cur, " (ulimit -u), or") : std::string("perhaps"),
                name_settings(" the container fewer (pids.max of its cgroup); raise that, or use fewer --workers or --threads"));
}

/// Libraries call exit() if they cannot start their threads.
void on_exit() {
  if (num_unfinished == 0) return;
  if (!can_start_threads()) end_process(static_cast<int>(ErrorCode::kEnvironment), thread_limit_message());
  end_process(1,
              "something called exit() in the middle of the work: the model, its loss or a library that they use; only what was saved "
              "before is left");
}

}  // namespace

void end_process(int code, const std::string& text) {
  if (!report_to_launcher(our_status_fd, our_rank, our_size, code, text) && !text.empty()) {
    if (our_size > 1) set_log_rank(our_rank);
    log_failure(code, text);
  }
  std::fflush(stdout);
  ::_exit(code);  // Other threads still run, so destructors of global objects are not safe.
}

UnfinishedWork::UnfinishedWork() {
  static std::once_flag once;
  std::call_once(once, [] {
    std::atexit(on_exit);
    ::pthread_atfork(nullptr, nullptr, [] { num_unfinished = 0; });  // A forked child may call exit().
  });
  ++num_unfinished;
}

UnfinishedWork::~UnfinishedWork() { --num_unfinished; }

std::string one_line_message(const std::exception& error) {
  std::string text = error.what();
  for (const char* const frames : {"\nException raised from", "\nframe #0"}) text.resize(std::min(text.size(), text.find(frames)));
  std::string line;
  for (const char c : text) {
    const bool is_space = c == '\n' || c == '\r' || c == ' ' || c == '\t';
    if (!is_space) line += c;
    else if (!line.empty() && line.back() != ' ') line += ' ';
  }
  while (line.ends_with(' ')) line.pop_back();
  return line;
}

ExitStatus exit_status_of(const std::exception& error) {
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  const bool has_no_thread = system && system->code() == std::errc::resource_unavailable_try_again;
  return has_no_thread ? ExitStatus{static_cast<int>(ErrorCode::kEnvironment), thread_limit_message()}
                       : ExitStatus{1, one_line_message(error)};
}

void handle_uncaught_exceptions(const World& world) {
  our_rank = world.rank;
  our_size = world.size;
  our_status_fd = world.status_fd;
  set_own_status(world.status_fd, world.rank, world.size);
  static std::once_flag once;
  std::call_once(once, [] { handler_before = std::set_terminate(on_terminate); });
}

// print_once(): the first rank of a host prints, then binds two abstract sockets, which vanish with the process: one named by user, job and
// a hash of the text, and one named by a hash of "", which means that some error was printed. Other ranks look for the first name, and
// print if they find only the second, or none in time. Cost: no message, only the wait. Source: ours.

namespace {

constexpr double kKeepSeconds = 1, kWaitSeconds = 1.5;

void sleep_for(double seconds) {
  const timespec time{static_cast<time_t>(seconds), static_cast<long>(1e9 * (seconds - static_cast<double>(static_cast<time_t>(seconds))))};
  ::nanosleep(&time, nullptr);
}

class AbstractSocketName {
 public:
  /// Launchers that give no job id start all ranks of a host from one process.
  AbstractSocketName(const World& world, const std::string& text) {
    const std::string job = world.job_id.empty() ? concat(::getppid()) : world.job_id;
    const std::hash<std::string> hash;
    const std::string name = concat("cohort-said-", ::getuid(), "-", hash(job), "-", hash(text));
    const size_t size = std::min(name.size(), sizeof address_.sun_path - 1);
    std::copy_n(name.begin(), size, address_.sun_path + 1);
    length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  }
  bool is_taken() const {
    const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const bool found = fd >= 0 && ::connect(fd, address(), length_) == 0;
    if (fd >= 0) ::close(fd);
    return found;
  }
  /// Until the process ends.
  void take() const {
    const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) [[maybe_unused]]
      const int ignored = ::bind(fd, address(), length_);
  }

 private:
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&address_); }

  sockaddr_un address_{.sun_family = AF_UNIX, .sun_path = {}};
  socklen_t length_ = 0;
};

}  // namespace

void print_once(const World& world, const std::string& text, const std::function<void()>& print) {
  if (world.launcher == "none" || world.local_size == 1) return print();
  const AbstractSocketName same(world, text), any(world, "");
  if (world.local_rank == 0) {
    print();
    same.take(), any.take();
    return sleep_for(kKeepSeconds);
  }
  for (const double start = steady_seconds(); steady_seconds() - start < kWaitSeconds; sleep_for(0.02)) {
    const bool is_printed = any.is_taken();  // Bound after the other.
    if (same.is_taken()) return;
    if (is_printed) break;
  }
  set_log_rank(world.rank);
  print();
}

}  // namespace cohort
