#pragma once
// For tests of messages: servers and clients in threads of one process, and strangers with plain sockets.

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/text.h"
#include "cohort/world/messages/message_client.h"
#include "cohort/world/messages/message_server.h"

namespace cohort {

inline constexpr char kTestSecret[] = "0123456789abcdef0123456789abcdef";
inline constexpr double kTestPatience = 20;

/// What the server hears next of this kind; other events are passed over.
inline PeerEvent next_event(MessageServer& server, PeerEvent::Kind kind, double seconds = kTestPatience) {
  for (const auto begin = std::chrono::steady_clock::now(); seconds_since(begin) < seconds;)
    if (auto event = server.poll(0.2); event && event->kind == kind) return std::move(*event);
  FAIL("the server heard nothing");
  return {};
}

/// Serves in a thread: answers each message with itself, until it is told to end or is destroyed.
class EchoServer {
 public:
  explicit EchoServer(MessageListener listener, MessageLimits limits = {})
      : server_(std::move(listener), limits), endpoint_(server_.endpoint()), thread_([this] { serve(); }) {}
  ~EchoServer() { end(); }
  void end() {
    is_over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  const std::string& endpoint() const { return endpoint_; }
  int port() const { return static_cast<int>(*parse_integer(endpoint_.substr(endpoint_.rfind(':') + 1))); }
  /// After end().
  MessageServer& server() { return server_; }
  int num_joined() const { return num_joined_; }
  int num_lost() const { return num_lost_; }
  int num_heard() const { return num_heard_; }
  const std::string& last_loss() const { return last_loss_; }

 private:
  void serve() {
    while (!is_over_) {
      auto event = server_.poll(0.02);
      if (!event) continue;
      if (event->kind == PeerEvent::Kind::kJoined) ++num_joined_;
      if (event->kind == PeerEvent::Kind::kLost) ++num_lost_, last_loss_ = event->why;
      if (event->kind != PeerEvent::Kind::kMessage) continue;
      ++num_heard_;
      server_.send(event->peer, std::move(event->message));
    }
  }

  MessageServer server_;
  std::string endpoint_, last_loss_;
  std::atomic<bool> is_over_{false};
  std::atomic<int> num_joined_{0}, num_lost_{0}, num_heard_{0};
  std::thread thread_;  // Last: it uses the others.
};

inline MessageClient client_of(const std::string& endpoint, const std::string& name = "rank 1", const std::string& secret = kTestSecret) {
  return MessageClient(endpoint, secret, {.name = name, .server_name = "rank 0"});
}

/// A connection that knows nothing of messages, as far as it comes without waiting.
inline UniqueDescriptor knock_at(int port) {
  UniqueDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::inet_addr("127.0.0.1");
  address.sin_port = htons(static_cast<uint16_t>(port));
  (void)!::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  return socket;
}
/// One that has come in.
inline UniqueDescriptor stranger_at(int port) {
  UniqueDescriptor socket = knock_at(port);
  pollfd entry{socket.get(), POLLOUT, 0};
  REQUIRE(::poll(&entry, 1, static_cast<int>(1e3 * kTestPatience)) == 1);
  ::fcntl(socket.get(), F_SETFL, 0);
  return socket;
}
inline void send_bytes(const UniqueDescriptor& socket, const std::string& bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = ::send(socket.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return;  // It was closed at the other end.
    sent += static_cast<size_t>(count);
  }
}
/// Whether the other end closes the connection in time.
inline bool is_closed(const UniqueDescriptor& socket, double seconds) {
  char buffer[4096];
  for (const auto begin = std::chrono::steady_clock::now(); seconds_since(begin) < seconds;) {
    pollfd entry{socket.get(), POLLIN, 0};
    if (::poll(&entry, 1, 50) > 0 && ::recv(socket.get(), buffer, sizeof buffer, MSG_DONTWAIT) <= 0) return true;
  }
  return false;
}

}  // namespace cohort
