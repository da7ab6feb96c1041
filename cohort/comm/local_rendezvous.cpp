#include "cohort/comm/local_rendezvous.h"

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "cohort/base/error.h"
#include "cohort/base/text.h"
#include "cohort/comm/pass_descriptor.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;

struct Descriptor {
  int fd = -1;
  explicit Descriptor(int fd) : fd(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd(other.fd) { other.fd = -1; }
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

/// Two jobs of one user differ by the launcher's job id.
socklen_t address_of(const World& world, sockaddr_un& address) {
  return fill_local_address(address, concat("cohort/", ::getuid(), "/", world.launcher, "/", world.job_id));
}

int milliseconds_left(Clock::time_point deadline) {
  return static_cast<int>(std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count()));
}

int serve(const World& world, Clock::time_point deadline) {
  sockaddr_un address;
  const socklen_t length = address_of(world, address);
  const Descriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (listener.fd < 0 || ::bind(listener.fd, reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(listener.fd, world.size) != 0)
    fail(ErrorCode::kEnvironment, "rank 0 cannot listen on the local socket of job '", world.job_id, "': ", std::strerror(errno),
         errno == EADDRINUSE ? "; another job of the same name runs on this host: set MASTER_ADDR and MASTER_PORT" : "");
  const int file = ::memfd_create("cohort-store", MFD_CLOEXEC);
  if (file < 0) fail(ErrorCode::kEnvironment, "memfd_create failed: ", std::strerror(errno));
  std::vector<bool> came(world.size);
  came[0] = true;
  for (int missing = world.size - 1; missing > 0;) {
    pollfd wait{listener.fd, POLLIN, 0};
    if (::poll(&wait, 1, milliseconds_left(deadline)) == 0) {
      std::vector<std::string> absent;
      for (int rank = 0; rank < world.size; ++rank)
        if (!came[rank]) absent.push_back(std::to_string(rank));
      ::close(file);
      fail(ErrorCode::kEnvironment, "rank(s) ", join(absent, " "),
           " did not come to the local rendezvous; on several hosts set MASTER_ADDR and MASTER_PORT "
           "(mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 ...)");
    }
    const Descriptor peer(::accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC));
    int32_t rank = -1;
    if (peer.fd < 0 || !is_same_user(peer.fd) || ::recv(peer.fd, &rank, sizeof rank, MSG_WAITALL) != sizeof rank) continue;
    if (rank <= 0 || rank >= world.size || came[rank] || !send_descriptor(peer.fd, file)) continue;
    came[rank] = true;
    --missing;
  }
  return file;
}

int join_rank_0(const World& world, Clock::time_point deadline) {
  sockaddr_un address;
  const socklen_t length = address_of(world, address);
  while (Clock::now() < deadline) {
    const Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(socket.fd, reinterpret_cast<sockaddr*>(&address), length) == 0) {
      if (!is_same_user(socket.fd)) fail(ErrorCode::kEnvironment, "the local socket of job '", world.job_id, "' belongs to another user");
      const int32_t rank = world.rank;
      if (::send(socket.fd, &rank, sizeof rank, MSG_NOSIGNAL) == sizeof rank) {
        const int file = receive_descriptor(socket.fd);
        if (file >= 0) return file;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  fail(ErrorCode::kEnvironment, "rank ", world.rank,
       " found no rank 0 on this host; on several hosts set MASTER_ADDR and MASTER_PORT "
       "(mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 ...)");
}

}  // namespace

int share_memory_file(const World& world, double timeout_seconds) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_seconds));
  return world.rank == 0 ? serve(world, deadline) : join_rank_0(world, deadline);
}

}  // namespace cohort
