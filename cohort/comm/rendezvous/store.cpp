#include "cohort/comm/rendezvous/store.h"

#include <c10/util/Logging.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>
#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/secrets.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/rendezvous/guarded_store.h"
#include "cohort/comm/rendezvous/local_rendezvous.h"
#include "cohort/comm/rendezvous/refusal.h"
#include "cohort/world/job_token.h"

namespace cohort {
namespace {

constexpr int kFirstPatienceMilliseconds = 200, kLongestPatienceMilliseconds = 3200;  // For an address that does not answer.
constexpr std::chrono::milliseconds kBetweenTries{50};
constexpr double kRefusalSeconds = 5;  // How long a rank that failed to start waits for others to read its report.

/// A socket that listens on this address only.
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

/// Whether one of these addresses accepts connections; else `why` not.
bool answers(const addrinfo* addresses, int patience_milliseconds, std::string& why) {
  for (const addrinfo* at = addresses; at; at = at->ai_next) {
    const UniqueDescriptor socket(::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol));
    int error = socket.get() < 0 ? errno : 0;
    if (error == 0 && ::connect(socket.get(), at->ai_addr, at->ai_addrlen) != 0) error = errno;
    if (error == EINPROGRESS) {
      pollfd connecting{socket.get(), POLLOUT, 0};
      socklen_t size = sizeof error;
      if (::poll(&connecting, 1, patience_milliseconds) <= 0) error = ETIMEDOUT;
      else ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0) return true;
    why = std::strerror(error);
  }
  return false;
}

/// Waits until rank 0 listens: the store's own client exceeds its time-out and ignores Ctrl-C.
void await_listener(const World& world, AwakeTimer& timer, double timeout_seconds) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  StopWatch stop;
  std::string why;
  for (int patience = kFirstPatienceMilliseconds;; patience = std::min(2 * patience, kLongestPatienceMilliseconds)) {
    addrinfo* found = nullptr;
    const int status = ::getaddrinfo(world.master_address.c_str(), std::to_string(world.master_port).c_str(), &hints, &found);
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, [](addrinfo* each) {
      if (each) ::freeaddrinfo(each);
    });
    if (status != 0) why = ::gai_strerror(status);
    else if (answers(found, std::min(patience, static_cast<int>(1e3 * std::max(0.0, timeout_seconds - timer.seconds())) + 1), why)) return;
    stop.check();
    if (timer.seconds() > timeout_seconds)
      fail(ErrorCode::kEnvironment, "rank ", world.rank, " cannot reach the store at ", world.master_address, ":", world.master_port,
           " within ", timeout_seconds, " s: ", why);
    std::this_thread::sleep_for(kBetweenTries);
  }
}

/// Suppresses what LibTorch logs to stderr with a stack for each attempt and also throws. TORCH_CPP_LOG_LEVEL overrides it.
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

/// "" where the ranks need none: they are all on this host, whose store no other machine reaches.
std::string required_token(const World& world, const std::string& place) {
  const std::string token = job_token();
  if (token.empty() && world.local_size < world.size && !is_loopback(world.master_address))
    fail(ErrorCode::kEnvironment, "the ranks of this job meet at ", place, ", where anybody may connect, and have no token; ",
         token_instructions());
  return token;
}

bool hosts_store(const World& world) { return meets_at_address(world) && world.rank == 0 && !world.agent_store; }

std::chrono::milliseconds milliseconds_of(double seconds) { return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3)); }

c10::intrusive_ptr<c10d::Store> tcp_store(const World& world, double timeout_seconds) {
  const std::string place = concat(world.master_address, ":", world.master_port), token = required_token(world, place);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(world.master_port);
  options.waitWorkers = false;
  options.isServer = hosts_store(world);
  if (options.isServer) options.masterListenFd = listen_on(world.master_address, world.master_port);
  AwakeTimer timer;
  if (!options.isServer) await_listener(world, timer, timeout_seconds);
  const auto seconds_left = [&] { return std::max(1.0, timeout_seconds - timer.seconds()); };
  options.timeout = milliseconds_of(seconds_left());
  try {
    const QuietConnecting quiet;
    auto store = c10::make_intrusive<c10d::TCPStore>(world.master_address, options);
    store->setTimeout(milliseconds_of(seconds_left()));
    // One store may serve several attempts of a torchrun job, each with keys of its own. Hydra provides no job name common to all hosts.
    const bool named_alike = world.launcher != "mpich";
    auto of_job = c10::make_intrusive<PollingStore>(
        c10::make_intrusive<c10d::PrefixStore>("cohort/" + (named_alike ? world.job_id : world.launcher), store),
        /*heeds_stop=*/true);
    check_same_secret(*of_job, world.rank, token, place);
    auto sealed = c10::make_intrusive<SealedStore>(of_job, token);
    of_job->setTimeout(milliseconds_of(timeout_seconds));
    of_job->set_poll([store = sealed.get()] { check_startup_failure(*store); });
    return sealed;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorCode::kEnvironment, "rank ", world.rank, " cannot reach the store at ", place, ": ", first_line(error.what()));
  }
}

c10::intrusive_ptr<c10d::Store> file_store(int fd, int size, double timeout_seconds, bool heeds_stop) {
  // FileStore opens the path for each access; only holders of the descriptor have this one.
  auto store =
      c10::make_intrusive<PollingStore>(c10::make_intrusive<c10d::FileStore>("/proc/self/fd/" + std::to_string(fd), size), heeds_stop);
  store->setTimeout(milliseconds_of(timeout_seconds));
  store->set_poll([here = store.get()] { check_startup_failure(*here); });
  return store;
}

/// A rank may run several programs in sequence: keys are prefixed with the number of the start, so that the n-th program of each rank meets
/// the n-th of the others.
c10::intrusive_ptr<c10d::Store> inherited_store(const World& world, double timeout_seconds) {
  auto store = file_store(world.store_fd, world.size, timeout_seconds, /*heeds_stop=*/false);
  const int64_t number = store->add(concat("starts of rank ", world.rank), 1);
  return c10::make_intrusive<c10d::PrefixStore>(concat("start-", number), store);
}

/// Rank 0 creates the file and polls it while others arrive: one of them, or rank 0 itself (`begin`), may report a failure.
c10::intrusive_ptr<c10d::Store> local_store(const World& world, double timeout_seconds,
                                            const std::function<void(c10d::Store&)>& begin = {}) {
  c10::intrusive_ptr<c10d::Store> store;
  StopWatch stop;
  const int fd = share_memory_file(world, timeout_seconds, [&](int file) {
    stop.check();
    if (file < 0) return;
    const bool is_new = !store;
    if (is_new) store = file_store(file, world.size, timeout_seconds, /*heeds_stop=*/true);
    if (is_new && begin) begin(*store);
    if (!begin) check_startup_failure(*store);
  });
  return store ? store : file_store(fd, world.size, timeout_seconds, /*heeds_stop=*/true);
}

std::atomic<bool> has_met{false};

/// The stores of the jobs of this process: one, except for ranks as threads.
class JobStores {
 public:
  /// Ends servers of other ranks.
  void end_servers() {
    // A forked process has its parent's stores, but not the threads that serve them.
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
    if (world.store_fd >= 0) ::fstat(world.store_fd, &file);  // Descriptors are reused.
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
  // Never destroyed: a file store would access its file, whose descriptor may be closed by then.
  static JobStores& stores = *new JobStores;
  struct AtExit {
    ~AtExit() { stores.end_servers(); }
  };
  static const AtExit at_exit;
  return stores.next(world, timeout_seconds);
}

c10::intrusive_ptr<c10d::Store> make_store(const World& world, double timeout_seconds) {
  if (world.size == 1) return c10::make_intrusive<c10d::HashStore>();
  has_met = true;
  if (world.store_fd >= 0) return inherited_store(world, timeout_seconds);
  if (meets_at_address(world)) return tcp_store(world, timeout_seconds);
  if (world.local_size == world.size) return local_store(world, timeout_seconds);
  fail(ErrorCode::kEnvironment, world.launcher, " started ", world.size,
       " ranks on several hosts and named no meeting point: set MASTER_ADDR to an address "
       "of rank 0's host and MASTER_PORT to a free port (mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 ...)");
}

void report_refusal(const World& world, ErrorCode code, const std::string& text) noexcept try {
  // For ranks that Cohort started the launcher ends the others.
  if (world.size == 1 || world.store_fd >= 0 || has_met.exchange(true) || code == ErrorCode::kInterrupted) return;
  const auto leave = [&](c10d::Store& store) { post_startup_failure(store, code, text); };
  if (!meets_at_address(world)) {
    if (world.local_size != world.size) return;
    const auto store = local_store(world, kRefusalSeconds, leave);
    if (world.rank != 0) leave(*store);
    return;
  }
  const auto store = tcp_store(world, kRefusalSeconds);
  leave(*store);
  StopWatch stop;
  for (AwakeTimer timer; hosts_store(world) && timer.seconds() < kRefusalSeconds && num_startup_failure_readers(*store) < world.size;
       stop.check())
    std::this_thread::sleep_for(kBetweenTries);
} catch (const std::exception&) {
  // The others are not there.
}

namespace {

MessageListener listener_of(const World& world, const std::string& token) {
  if (world.store_fd >= 0 || world.size == 1) return MessageListener::for_forks();
  return MessageListener(token.empty() ? hexadecimal(secret_bytes(16)) : token,
                         world.local_size == world.size ? "127.0.0.1" : world.master_address);
}

}  // namespace

ServerAddress local_server_address(MessageListener listener) {
  const std::string endpoint = listener.endpoint(), secret = listener.secret();
  return {std::move(listener), endpoint, secret};
}

ServerAddress share_server_address(const World& world, c10d::Store& store, const std::string& key, double timeout_seconds,
                                   std::optional<MessageListener> own) {
  const std::string token = world.store_fd >= 0 ? "" : job_token();
  if (world.rank == 0) {
    ServerAddress meeting = local_server_address(own ? std::move(*own) : listener_of(world, token));
    const std::string text = concat(meeting.endpoint, " ", meeting.secret == token ? "-" : meeting.secret);
    store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
    return meeting;
  }
  std::vector<uint8_t> bytes;
  try {
    bytes = store.get(key);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorCode::kEnvironment, "rank ", world.rank, " heard nothing from rank 0 within ", timeout_seconds,
         " s: ", first_line(error.what()));
  }
  const std::string text(bytes.begin(), bytes.end());
  const size_t space = text.find(' ');  // A secret may have spaces too.
  if (space == std::string::npos) fail(ErrorCode::kEnvironment, "rank ", world.rank, " got no address of rank 0 from the job's store");
  const std::string secret = text.substr(space + 1);
  return {{}, text.substr(0, space), secret == "-" ? token : secret};
}

}  // namespace cohort
