// The first rank of a host prints, then binds a socket to a name that only the kernel knows and forgets with the process: the user, the job
// and a hash of the text, and one to the name of no text: something has been said. The others look for the first name, and print where
// there is the second alone, or none in time. Cost: no message; the wait. Source: ours.
#include "cohort/world/said_once.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <ctime>
#include <functional>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/log.h"

namespace cohort {
namespace {

constexpr double kStaySeconds = 1, kWaitSeconds = 1.5;

void sleep_for(double seconds) {
  const timespec time{static_cast<time_t>(seconds), static_cast<long>(1e9 * (seconds - static_cast<double>(static_cast<time_t>(seconds))))};
  ::nanosleep(&time, nullptr);
}

class Name {
 public:
  /// Launchers without a name for the job start its ranks of a host from one process.
  Name(const World& world, const std::string& text) {
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
  const Name same(world, text), any(world, "");
  if (world.local_rank == 0) {
    print();
    same.take(), any.take();
    return sleep_for(kStaySeconds);
  }
  for (const double start = steady_seconds(); steady_seconds() - start < kWaitSeconds; sleep_for(0.02)) {
    const bool is_said = any.is_taken();  // Taken after the other.
    if (same.is_taken()) return;
    if (is_said) break;
  }
  set_log_rank(world.rank);
  print();
}

}  // namespace cohort
