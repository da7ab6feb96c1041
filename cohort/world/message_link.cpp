#include "cohort/world/message_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kReadBytes = 1 << 16;

Clock::time_point deadline_after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(seconds, 1e8)));
}

/// poll(2) that goes on after signals; false when the time is over.
bool wait_for(int descriptor, short events, Clock::time_point deadline) {
  for (;;) {
    const double left = std::chrono::duration<double, std::milli>(deadline - Clock::now()).count();
    pollfd entry{descriptor, events, 0};
    const int ready = ::poll(&entry, 1, left > 0 ? static_cast<int>(std::min(std::ceil(left), 1e9)) : 0);
    if (ready > 0) return true;
    if (ready == 0 && left <= 0) return false;
    if (ready < 0 && errno != EINTR) fail(ErrorCode::kEnvironment, "poll failed: ", std::strerror(errno));
  }
}

}  // namespace

MessageLink::MessageLink(UniqueDescriptor socket, std::string peer) : socket_(std::move(socket)), peer_(std::move(peer)) {
  const int flags = ::fcntl(socket_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK) < 0)
    fail(ErrorCode::kEnvironment, "cannot make the link to ", peer_, " non-blocking: ", std::strerror(errno));
}

void MessageLink::send(const std::string& message, double timeout_seconds) {
  if (!socket_) fail(ErrorCode::kEnvironment, peer_, " is gone");
  if (message.size() >= max_bytes_ || message.find('\n') != std::string::npos)
    fail(ErrorCode::kFailed, "a message of ", message.size(), " bytes to ", peer_, " is too long or has a newline");
  const std::string line = message + "\n";
  const Clock::time_point deadline = deadline_after(timeout_seconds);
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t count = ::send(socket_.get(), line.data() + sent, line.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      sent += static_cast<size_t>(count);
    } else if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!wait_for(socket_.get(), POLLOUT, deadline)) {
        // Half a line went out: nothing that follows could be read.
        if (sent > 0) close();
        fail(ErrorCode::kEnvironment, peer_, " read nothing for ", timeout_seconds, " s");
      }
    } else if (count < 0 && errno != EINTR) {
      const std::string why = std::strerror(errno);
      fail(ErrorCode::kEnvironment, peer_, " is gone: ", why);
    }
  }
}

/// One read(2); false when there is nothing to read now.
bool MessageLink::read_some() {
  const size_t before = received_.size();
  received_.resize(before + kReadBytes);
  const ssize_t count = ::recv(socket_.get(), received_.data() + before, kReadBytes, MSG_DONTWAIT);
  const int error = errno;
  received_.resize(before + static_cast<size_t>(std::max<ssize_t>(count, 0)));
  if (count > 0) return true;
  if (count < 0 && (error == EAGAIN || error == EWOULDBLOCK || error == EINTR)) return false;
  fail(ErrorCode::kEnvironment, peer_, " is gone", count < 0 ? concat(": ", std::strerror(error)) : "");
}

std::optional<std::string> MessageLink::take_line() {
  const size_t end = received_.find('\n', searched_);
  if (end == std::string::npos) {
    searched_ = received_.size();
    if (searched_ >= max_bytes_) fail(ErrorCode::kEnvironment, peer_, " sent a line of more than ", max_bytes_, " bytes");
    return std::nullopt;
  }
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  searched_ = 0;
  return line;
}

std::optional<std::string> MessageLink::receive(double timeout_seconds) {
  if (auto line = take_line()) return line;
  if (!socket_) fail(ErrorCode::kEnvironment, peer_, " is gone");
  const Clock::time_point deadline = deadline_after(timeout_seconds);
  for (;;) {
    if (read_some()) {
      if (auto line = take_line()) return line;
      continue;
    }
    if (timeout_seconds <= 0 || !wait_for(socket_.get(), POLLIN, deadline)) return std::nullopt;
  }
}

LinkPairs::LinkPairs(int num_ranks) {
  for (int rank = 0; rank < num_ranks; ++rank) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      fail(ErrorCode::kEnvironment, "cannot make a socket pair for rank ", rank, ": ", std::strerror(errno));
    coordinator_.emplace_back(ends[0]);
    worker_.emplace_back(ends[1]);
  }
}

LinkPairs::Ends LinkPairs::take(int rank) {
  Ends ends;
  ends.to_coordinator = MessageLink(std::move(worker_[static_cast<size_t>(rank)]), "rank 0, which holds the study,");
  for (size_t other = 0; rank == 0 && other < coordinator_.size(); ++other)
    ends.to_workers.emplace_back(std::move(coordinator_[other]), concat("rank ", other));
  coordinator_.clear();
  worker_.clear();
  return ends;
}

}  // namespace cohort
