#include "cohort/comm/store.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "cohort/base/error.h"
#include "cohort/comm/local_rendezvous.h"

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

c10::intrusive_ptr<c10d::Store> tcp_store(const World& world, double timeout_seconds) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(world.master_port);
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1e3));
  options.waitWorkers = false;
  options.isServer = world.rank == 0 && !world.agent_store;
  if (options.isServer) options.masterListenFd = listen_on(world.master_address, world.master_port);
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(world.master_address, options);
    // One store may serve several attempts of a torchrun job, each with its own keys.
    return c10::make_intrusive<c10d::PrefixStore>("cohort/" + world.job_id, store);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    fail(ErrorCode::kEnvironment, "rank ", world.rank, " cannot reach the store at ", world.master_address, ":", world.master_port, ": ",
         text.substr(0, text.find('\n')));
  }
}

c10::intrusive_ptr<c10d::Store> file_store(int fd, int size, double timeout_seconds) {
  // Opened anew for each access, as FileStore does with any path; only holders of the descriptor have this one.
  auto store = c10::make_intrusive<c10d::FileStore>("/proc/self/fd/" + std::to_string(fd), size);
  store->setTimeout(std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1e3)));
  return store;
}

}  // namespace

c10::intrusive_ptr<c10d::Store> make_store(const World& world, double timeout_seconds) {
  if (world.size == 1) return c10::make_intrusive<c10d::HashStore>();
  if (world.store_fd >= 0) return file_store(world.store_fd, world.size, timeout_seconds);
  if (!world.master_address.empty() && world.master_port != 0) return tcp_store(world, timeout_seconds);
  if (world.local_size == world.size) return file_store(share_memory_file(world, timeout_seconds), world.size, timeout_seconds);
  fail(ErrorCode::kEnvironment, world.launcher, " started ", world.size,
       " ranks on several hosts and named no meeting point: set MASTER_ADDR to an address "
       "of rank 0's host and MASTER_PORT to a free port (mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 ...)");
}

}  // namespace cohort
