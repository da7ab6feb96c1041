#include "cohort/comm/rendezvous/local_rendezvous.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;

/// A message of one byte with room for one descriptor.
struct DescriptorMessage {
  char byte = 'C';
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec data{&byte, 1};
  msghdr message{};

  DescriptorMessage() {
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
};

/// Of the process at the other end; none where the system does not know it.
std::optional<ucred> credentials(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return std::nullopt;
  return peer;
}

/// Whether the process at the other end of a UNIX socket runs under this user.
bool is_same_user(int socket) {
  const std::optional<ucred> peer = credentials(socket);
  return peer && peer->uid == ::getuid();
}

/// The id of the process at the other end, "?" where it is not known.
std::string process_at(int socket) {
  const std::optional<ucred> peer = credentials(socket);
  return peer ? std::to_string(peer->pid) : "?";
}

/// No connect, send or receive of this socket takes longer.
void limit_waits(int socket, double seconds) {
  const double limit = std::max(seconds, 1e-3);  // 0 would mean no limit.
  timeval time{};
  time.tv_sec = static_cast<time_t>(limit);
  time.tv_usec = static_cast<suseconds_t>((limit - std::floor(limit)) * 1e6);
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

/// A message of one byte carries the descriptor (SCM_RIGHTS).
bool send_descriptor(int socket, int fd) {
  DescriptorMessage parcel;
  cmsghdr* const header = CMSG_FIRSTHDR(&parcel.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return ::sendmsg(socket, &parcel.message, MSG_NOSIGNAL) == 1;
}

/// -1 where none came.
int receive_descriptor(int socket) {
  DescriptorMessage parcel;
  if (::recvmsg(socket, &parcel.message, MSG_CMSG_CLOEXEC) != 1) return -1;
  const cmsghdr* const header = CMSG_FIRSTHDR(&parcel.message);
  if (!header || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int))) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

}  // namespace

socklen_t fill_local_address(sockaddr_un& address, const std::string& name) {
  address = {};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

DescriptorServer::DescriptorServer(const std::string& name) : listener_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un address;
  const socklen_t length = fill_local_address(address, name);
  if (!listener_ || ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener_.get(), SOMAXCONN) != 0)
    fail(ErrorCode::kEnvironment, "cannot listen on the local socket '", name, "': ", std::strerror(errno));
}

int DescriptorServer::serve(int fd, int num_receivers, double timeout_seconds) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_seconds);
  int num_served = 0;
  while (num_served < num_receivers) {
    const std::chrono::duration<double, std::milli> left = deadline - Clock::now();
    pollfd wait{listener_.get(), POLLIN, 0};
    if (left.count() <= 0 || ::poll(&wait, 1, static_cast<int>(left.count()) + 1) == 0) break;
    const UniqueDescriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket && is_same_user(socket.get()) && send_descriptor(socket.get(), fd)) ++num_served;
  }
  return num_served;
}

int receive_descriptor_from(const std::string& name, double timeout_seconds) {
  const UniqueDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  limit_waits(socket.get(), timeout_seconds);
  sockaddr_un address;
  const socklen_t length = fill_local_address(address, name);
  const bool connected =
      socket && ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) == 0 && is_same_user(socket.get());
  return connected ? receive_descriptor(socket.get()) : -1;
}

namespace {

/// Two jobs of one user differ by the launcher's job id.
socklen_t address_of(const World& world, sockaddr_un& address) {
  return fill_local_address(address, concat("cohort/", ::getuid(), "/", world.launcher, "/", world.job_id));
}

int milliseconds_left(Clock::time_point deadline) {
  return static_cast<int>(std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count()));
}

/// A connected process, which has limited time to send its rank.
struct Caller {
  UniqueDescriptor socket;
  Clock::time_point until;
  char greeting[sizeof(int32_t)] = {};
  size_t num_bytes = 0;
};

/// Reads without waiting. True when the caller is done: its greeting is complete (*rank), or never will be (*rank = -1).
bool read_greeting(Caller& caller, int32_t* rank) {
  *rank = -1;
  const ssize_t got =
      ::recv(caller.socket.get(), caller.greeting + caller.num_bytes, sizeof caller.greeting - caller.num_bytes, MSG_DONTWAIT);
  if (got < 0) return errno != EAGAIN && errno != EINTR;
  if (got == 0) return true;
  caller.num_bytes += static_cast<size_t>(got);
  if (caller.num_bytes < sizeof caller.greeting) return false;
  std::memcpy(rank, caller.greeting, sizeof *rank);
  return true;
}

/// Rank 0's side. Callers are served concurrently, so a silent one delays nobody.
class Host {
 public:
  Host(const World& world, Clock::time_point deadline)
      : world_(world), deadline_(deadline), greeting_time_(std::min<Clock::duration>(kGreetingTime, (deadline - Clock::now()) / 4)) {
    came_.resize(static_cast<size_t>(world.size));
    sockaddr_un address;
    const socklen_t length = address_of(world, address);
    if (listener_.get() < 0 || ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        ::listen(listener_.get(), std::max(world.size, 64)) != 0)
      fail(ErrorCode::kEnvironment, "rank 0 cannot listen on the local socket of job '", world.job_id, "': ", std::strerror(errno),
           errno == EADDRINUSE ? "; another job of the same name runs on this host: set MASTER_ADDR and MASTER_PORT" : "");
    if (file_.get() < 0) fail(ErrorCode::kEnvironment, "memfd_create failed: ", std::strerror(errno));
    came_[0] = true;
  }

  int serve(const std::function<void(int)>& look) {
    if (look) look(file_.get());
    for (int missing = world_.size - 1; missing > 0;) {
      wait();
      if (look) look(file_.get());
      if (Clock::now() >= deadline_) fail_absent();
      accept_callers();
      std::erase_if(callers_, [&](Caller& caller) {
        int32_t rank;
        if (!read_greeting(caller, &rank)) return reject_silent(caller);
        if (rank <= 0 || rank >= world_.size || came_[static_cast<size_t>(rank)] || !send_descriptor(caller.socket.get(), file_.get()))
          return true;
        came_[static_cast<size_t>(rank)] = true;
        --missing;
        return true;
      });
    }
    return file_.release();
  }

 private:
  /// Waits for a connection, a greeting, or the next deadline.
  void wait() {
    std::vector<pollfd> sockets{{listener_.get(), POLLIN, 0}};
    Clock::time_point until = std::min(deadline_, Clock::now() + kBetweenLooks);
    for (const Caller& caller : callers_) {
      sockets.push_back({caller.socket.get(), POLLIN, 0});
      until = std::min(until, caller.until);
    }
    ::poll(sockets.data(), sockets.size(), milliseconds_left(until) + 1);
  }

  void accept_callers() {
    while (true) {
      UniqueDescriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.get() < 0) return;
      if (!is_same_user(socket.get()) || callers_.size() >= kMaxCallers) continue;
      callers_.push_back({std::move(socket), Clock::now() + greeting_time_});
    }
  }

  bool reject_silent(const Caller& caller) {
    if (Clock::now() < caller.until) return false;
    log_warning(concat("the process ", process_at(caller.socket.get()), " connected to the rendezvous of job '", world_.job_id,
                       "' and does not say which rank it is; it is turned away"));
    return true;
  }

  [[noreturn]] void fail_absent() {
    std::vector<std::string> absent;
    for (int rank = 0; rank < world_.size; ++rank)
      if (!came_[static_cast<size_t>(rank)]) absent.push_back(std::to_string(rank));
    fail(ErrorCode::kEnvironment, "rank(s) ", join(absent, " "), " did not come to the local rendezvous",
         callers_.empty() ? "" : concat(" (process ", process_at(callers_.front().socket.get()), " connected and said nothing)"),
         "; on several hosts set MASTER_ADDR and MASTER_PORT (mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 ...)");
  }

  static constexpr std::chrono::seconds kGreetingTime{5};
  static constexpr std::chrono::milliseconds kBetweenLooks{50};
  static constexpr size_t kMaxCallers = 4096;

  const World& world_;
  const Clock::time_point deadline_;
  const Clock::duration greeting_time_;
  const UniqueDescriptor listener_{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  UniqueDescriptor file_{::memfd_create("cohort-store", MFD_CLOEXEC)};
  std::vector<bool> came_;
  std::vector<Caller> callers_;
};

int join_rank_0(const World& world, Clock::time_point deadline, const std::function<void(int)>& look) {
  sockaddr_un address;
  const socklen_t length = address_of(world, address);
  while (Clock::now() < deadline) {
    const UniqueDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    limit_waits(socket.get(), std::chrono::duration<double>(deadline - Clock::now()).count());
    if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) == 0) {
      if (!is_same_user(socket.get()))
        fail(ErrorCode::kEnvironment, "the local socket of job '", world.job_id, "' belongs to another user");
      const int32_t rank = world.rank;
      if (::send(socket.get(), &rank, sizeof rank, MSG_NOSIGNAL) == sizeof rank) {
        const int file = receive_descriptor(socket.get());
        if (file >= 0) return file;
        if (Clock::now() >= deadline)
          fail(ErrorCode::kEnvironment, "the process ", process_at(socket.get()), " holds the local socket of job '", world.job_id,
               "' and did not answer rank ", world.rank, " in time; end it, or set MASTER_ADDR and MASTER_PORT");
      }
    }
    if (look) look(-1);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  fail(ErrorCode::kEnvironment, "rank ", world.rank,
       " found no rank 0 on this host; on several hosts set MASTER_ADDR and MASTER_PORT "
       "(mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 ...)");
}

}  // namespace

int share_memory_file(const World& world, double timeout_seconds, const std::function<void(int)>& look) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_seconds));
  return world.rank == 0 ? Host(world, deadline).serve(look) : join_rank_0(world, deadline, look);
}

}  // namespace cohort
