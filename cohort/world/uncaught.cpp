#include "cohort/world/uncaught.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>

#include "cohort/base/error.h"
#include "cohort/base/log.h"
#include "cohort/world/status.h"

namespace cohort {
namespace {

std::atomic<int> our_rank{0}, our_size{1}, our_status_fd{-1};
std::terminate_handler handler_before = nullptr;

[[noreturn]] void end_with(const Error& error) {
  const int code = static_cast<int>(error.code());
  if (!report_to_launcher(our_status_fd, our_rank, our_size, code, error.what()) && *error.what() != 0) {
    if (our_size > 1) set_log_rank(our_rank);
    log_error(error.what());
  }
  std::fflush(stdout);
  ::_exit(code);  // Other threads still run: no destructor of a global object is safe.
}

[[noreturn]] void on_terminate() {
  if (const std::exception_ptr exception = std::current_exception()) {
    try {
      std::rethrow_exception(exception);
    } catch (const Error& error) {
      end_with(error);
    } catch (...) {  // Not ours.
    }
  }
  if (handler_before) handler_before();
  std::abort();
}

}  // namespace

void end_uncaught_errors_well(const World& world) {
  our_rank = world.rank;
  our_size = world.size;
  our_status_fd = world.status_fd;
  static std::once_flag once;
  std::call_once(once, [] { handler_before = std::set_terminate(on_terminate); });
}

}  // namespace cohort
