#include "cohort/comm/rendezvous/pass_descriptor.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

/// A message of one byte with room for one descriptor.
struct Parcel {
  char byte = 'C';
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec data{&byte, 1};
  msghdr message{};

  Parcel() {
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
};

}  // namespace

socklen_t fill_local_address(sockaddr_un& address, const std::string& name) {
  address = {};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

bool is_same_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::getuid();
}

std::string process_at(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 ? std::to_string(peer.pid) : "?";
}

void limit_waits(int socket, double seconds) {
  const double limit = std::max(seconds, 1e-3);  // 0 would be for ever.
  timeval time{};
  time.tv_sec = static_cast<time_t>(limit);
  time.tv_usec = static_cast<suseconds_t>((limit - std::floor(limit)) * 1e6);
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

bool send_descriptor(int socket, int fd) {
  Parcel parcel;
  cmsghdr* const header = CMSG_FIRSTHDR(&parcel.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return ::sendmsg(socket, &parcel.message, MSG_NOSIGNAL) == 1;
}

int receive_descriptor(int socket) {
  Parcel parcel;
  if (::recvmsg(socket, &parcel.message, MSG_CMSG_CLOEXEC) != 1) return -1;
  const cmsghdr* const header = CMSG_FIRSTHDR(&parcel.message);
  if (!header || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int))) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

DescriptorServer::DescriptorServer(const std::string& name) : listener_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un address;
  const socklen_t length = fill_local_address(address, name);
  if (listener_ < 0 || ::bind(listener_, reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(listener_, SOMAXCONN) != 0) {
    const int error = errno;
    if (listener_ >= 0) ::close(listener_);
    fail(ErrorCode::kEnvironment, "cannot listen on the local socket '", name, "': ", std::strerror(error));
  }
}

DescriptorServer::~DescriptorServer() { ::close(listener_); }

int DescriptorServer::serve(int fd, int num_receivers, double timeout_seconds) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_seconds);
  int num_served = 0;
  while (num_served < num_receivers) {
    const std::chrono::duration<double, std::milli> left = deadline - Clock::now();
    pollfd wait{listener_, POLLIN, 0};
    if (left.count() <= 0 || ::poll(&wait, 1, static_cast<int>(left.count()) + 1) == 0) break;
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) continue;
    if (is_same_user(socket) && send_descriptor(socket, fd)) ++num_served;
    ::close(socket);
  }
  return num_served;
}

int receive_descriptor_from(const std::string& name, double timeout_seconds) {
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  limit_waits(socket, timeout_seconds);
  sockaddr_un address;
  const socklen_t length = fill_local_address(address, name);
  const bool connected = socket >= 0 && ::connect(socket, reinterpret_cast<sockaddr*>(&address), length) == 0 && is_same_user(socket);
  const int fd = connected ? receive_descriptor(socket) : -1;
  if (socket >= 0) ::close(socket);
  return fd;
}

}  // namespace cohort
