#include "cohort/comm/rendezvous/store.h"

#include <c10/util/Logging.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/rendezvous/local_rendezvous.h"
#include "cohort/comm/rendezvous/sealed_store.h"
#include "cohort/world/job_token.h"

namespace cohort {
namespace {

/// A socket that listens on `address`:`port` and on no other address.
int listen_on(const std::string& address, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  if (const int status = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found); status != 0)
    fail(ErrorCode::kEnvironment, "MASTER_ADDR=", address, " is no address of this host: ", ::gai_strerror(status));
  int error = 0;
  for (const addrinfo* at = found; at; at = at->ai_next) {
    const int fd = ::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    const int on = 1;
    if (fd >= 0) ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd >= 0 && ::bind(fd, at->ai_addr, at->ai_addrlen) == 0 && ::listen(fd, 1024) == 0) {
      ::freeaddrinfo(found);
      return fd;
    }
    error = errno;
    if (fd >= 0) ::close(fd);
  }
  ::freeaddrinfo(found);
  fail(ErrorCode::kEnvironment, "rank 0 cannot listen on ", address, ":", port, ": ", std::strerror(error), "; choose another MASTER_PORT");
}

/// While one lives, LibTorch does not write to stderr what it also throws, with the stack of each attempt. TORCH_CPP_LOG_LEVEL overrules
/// it.
class QuietConnecting {
 public:
  QuietConnecting() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (num_++ == 0) level_ = FLAGS_caffe2_log_level;
    if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  }
  ~QuietConnecting() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--num_ == 0) FLAGS_caffe2_log_level = level_;
  }
  QuietConnecting(const QuietConnecting&) = delete;

 private:
  inline static std::mutex mutex_;
  inline static int num_ = 0, level_ = 0;
};

bool meets_at_address(const World& world) { return !world.master_address.empty() && world.master_port != 0; }

bool is_loopback(const std::string& address) { return address == "localhost" || address == "::1" || address.starts_with("127."); }

/// "" where the ranks need none: they are all on this host, and nobody else's machine reaches their store.
std::string required_token(const World& world, const std::string& place) {
  const std::string token = job_token();
  if (token.empty() && world.local_size < world.size && !is_loopback(world.master_address))
    fail(ErrorCode::kEnvironment, "the ranks of this job meet at ", place, ", where anybody may connect, and have no token; ",
         how_to_give_a_token());
  return token;
}

c10::intrusive_ptr<c10d::Store> tcp_store(const World& world, double timeout_seconds) {
  const std::string place = concat(world.master_address, ":", world.master_port), token = required_token(world, place);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(world.master_port);
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1e3));
  options.waitWorkers = false;
  options.isServer = world.rank == 0 && !world.agent_store;
  if (options.isServer) options.masterListenFd = listen_on(world.master_address, world.master_port);
  try {
    const QuietConnecting quiet;
    auto store = c10::make_intrusive<c10d::TCPStore>(world.master_address, options);
    // One store may serve several attempts of a torchrun job, each with its own keys. Hydra gives a job no name that all hosts know.
    const bool named_alike = world.launcher != "mpich";
    auto of_job = c10::make_intrusive<c10d::PrefixStore>("cohort/" + (named_alike ? world.job_id : world.launcher), store);
    check_same_secret(*of_job, world.rank, token, place);
    return c10::make_intrusive<SealedStore>(of_job, token);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorCode::kEnvironment, "rank ", world.rank, " cannot reach the store at ", place, ": ", first_line(error.what()));
  }
}

c10::intrusive_ptr<c10d::Store> file_store(int fd, int size, double timeout_seconds) {
  // Opened anew for each access, as FileStore does with any path; only holders of the descriptor have this one.
  auto store = c10::make_intrusive<c10d::FileStore>("/proc/self/fd/" + std::to_string(fd), size);
  store->setTimeout(std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1e3)));
  return store;
}

/// The stores of the jobs whose ranks this process is: one, but for ranks as threads.
class JobStores {
 public:
  /// Ends what serves other ranks.
  void end_servers() {
    // A forked process has its parent's stores in memory, but not the threads that serve them.
    if (pid_ != ::getpid()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [job, meeting] : meetings_)
      if (meeting.may_serve) meeting.store.reset();
  }

  c10::intrusive_ptr<c10d::Store> next(const World& world, double timeout_seconds) {
    const std::string job = key_of(world);
    int number;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      number = meetings_[job].num_groups++;
    }
    c10::intrusive_ptr<c10d::Store> store = stored(job);
    if (!store) store = keep(job, make_store(world, timeout_seconds), world);  // Unlocked: ranks as threads wait for each other here.
    store->setTimeout(std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1e3)));
    return c10::make_intrusive<c10d::PrefixStore>(concat("group-", number), store);
  }

 private:
  struct Meeting {
    c10::intrusive_ptr<c10d::Store> store;
    int num_groups = 0;
    bool may_serve = false;
  };

  static std::string key_of(const World& world) {
    struct stat file{};
    if (world.store_fd >= 0) ::fstat(world.store_fd, &file);  // A descriptor's number may come again.
    return concat(::getpid(), " ", world.rank, " ", world.store_fd, " ", file.st_ino, " ", world.master_address, ":", world.master_port,
                  " ", world.job_id);
  }
  c10::intrusive_ptr<c10d::Store> stored(const std::string& job) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return meetings_[job].store;
  }
  c10::intrusive_ptr<c10d::Store> keep(const std::string& job, c10::intrusive_ptr<c10d::Store> store, const World& world) {
    const std::lock_guard<std::mutex> lock(mutex_);
    meetings_[job].may_serve = world.store_fd < 0 && meets_at_address(world);
    return meetings_[job].store = std::move(store);
  }

  std::mutex mutex_;
  std::map<std::string, Meeting> meetings_;
  const pid_t pid_ = ::getpid();
};

}  // namespace

c10::intrusive_ptr<c10d::Store> next_group_store(const World& world, double timeout_seconds) {
  // Never destroyed: a store over a file would look at it once more, and its descriptor may be closed by then.
  static JobStores& stores = *new JobStores;
  struct AtExit {
    ~AtExit() { stores.end_servers(); }
  };
  static const AtExit at_exit;
  return stores.next(world, timeout_seconds);
}

c10::intrusive_ptr<c10d::Store> make_store(const World& world, double timeout_seconds) {
  if (world.size == 1) return c10::make_intrusive<c10d::HashStore>();
  if (world.store_fd >= 0) return file_store(world.store_fd, world.size, timeout_seconds);
  if (meets_at_address(world)) return tcp_store(world, timeout_seconds);
  if (world.local_size == world.size) return file_store(share_memory_file(world, timeout_seconds), world.size, timeout_seconds);
  fail(ErrorCode::kEnvironment, world.launcher, " started ", world.size,
       " ranks on several hosts and named no meeting point: set MASTER_ADDR to an address "
       "of rank 0's host and MASTER_PORT to a free port (mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 ...)");
}

}  // namespace cohort
