#include "cohort/bench/messages.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <thread>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/world/messages/message_client.h"
#include "cohort/world/messages/message_server.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kPatience = 60;

/// The other end, in a thread: what it throws is thrown by join().
class OtherEnd {
 public:
  explicit OtherEnd(std::function<void()> body)
      : thread_([this, body = std::move(body)] {
          try {
            body();
          } catch (...) {
            error_ = std::current_exception();
          }
        }) {}
  ~OtherEnd() {
    if (thread_.joinable()) thread_.join();
  }
  void join() {
    thread_.join();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
  std::thread thread_;
};

/// `exchange` sends and hears back; `stream` sends all large ones and hears that they have come.
MessageTimes timed(const BenchMessagesOptions& options, const std::function<void()>& exchange, const std::function<void()>& stream) {
  for (int i = 0; i < options.num_small / 10; ++i) exchange();
  auto start = Clock::now();
  for (int i = 0; i < options.num_small; ++i) exchange();
  MessageTimes times{.round_trip_seconds = seconds_since(start) / options.num_small};
  start = Clock::now();
  stream();
  times.large_bytes_per_second = static_cast<double>(options.large_bytes) * options.num_large / seconds_since(start);
  return times;
}

int num_exchanges(const BenchMessagesOptions& options) { return options.num_small / 10 + options.num_small; }

/// The coordinator's or parameter server's side: answers small ones, counts large ones.
void serve(MessageServer& server, const BenchMessagesOptions& options) {
  for (int small = 0, large = 0; large < options.num_large;) {
    auto event = server.poll(kPatience);
    if (!event) fail(ErrorCode::kEnvironment, "no message came for ", kPatience, " s");
    if (event->kind == PeerEvent::Kind::kLost) fail(ErrorCode::kEnvironment, event->why);
    if (event->kind != PeerEvent::Kind::kMessage) continue;
    if (small < num_exchanges(options)) ++small;
    else if (++large < options.num_large) continue;
    if (large > 0) event->message = {};
    server.send(event->peer, std::move(event->message));
  }
  // The last answer has to go out before the server does.
  while (server.poll(kPatience)->kind != PeerEvent::Kind::kLost) {
  }
}

MessageTimes bench_library(const MessageWay& way, const BenchMessagesOptions& options) {
  MessageListener listener = way.has_port ? MessageListener(std::string(32, 'b')) : MessageListener::for_forks();
  const MessageLimits limits{.encrypts = way.is_kept_from_others};
  MessageClient client(listener.endpoint(), listener.secret(), {.name = "rank 1", .limits = limits});
  MessageServer server(std::move(listener), limits);
  OtherEnd other([&] { serve(server, options); });
  client.connect(kPatience);
  const auto hear = [&] {
    if (!client.receive(kPatience)) fail(ErrorCode::kEnvironment, "no answer came for ", kPatience, " s");
  };
  const PeerMessage small{.data = std::string(options.small_bytes, 's')}, large{.data = std::string(options.large_bytes, 'l')};
  const MessageTimes times = timed(
      options,
      [&] {
        client.send(small);
        hear();
      },
      [&] {
        for (int i = 0; i < options.num_large; ++i) client.send(large);
        hear();
      });
  client.close();
  other.join();
  return times;
}

struct Socket {
  explicit Socket(int number) : descriptor(number) {}
  ~Socket() { ::close(descriptor); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int descriptor;
};

void send_all(int socket, const std::string& bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = ::send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) fail(ErrorCode::kEnvironment, "a socket of this process closed");
    sent += static_cast<size_t>(count);
  }
}
void receive_all(int socket, std::string& bytes) {
  for (size_t received = 0; received < bytes.size();) {
    const ssize_t count = ::recv(socket, bytes.data() + received, bytes.size() - received, 0);
    if (count <= 0) fail(ErrorCode::kEnvironment, "a socket of this process closed");
    received += static_cast<size_t>(count);
  }
}

MessageTimes bench_socket(const BenchMessagesOptions& options) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const Socket listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), mine(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listening.descriptor, plain, length) != 0 || ::listen(listening.descriptor, 1) != 0 ||
      ::getsockname(listening.descriptor, plain, &length) != 0 || ::connect(mine.descriptor, plain, length) != 0)
    fail(ErrorCode::kEnvironment, "cannot connect two sockets of this process");
  const Socket theirs(::accept4(listening.descriptor, nullptr, nullptr, SOCK_CLOEXEC));
  for (const int socket : {mine.descriptor, theirs.descriptor}) {
    const int yes = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  }
  OtherEnd other([&] {
    std::string small(options.small_bytes, '\0'), large(options.large_bytes, '\0');
    for (int i = 0; i < num_exchanges(options); ++i) {
      receive_all(theirs.descriptor, small);
      send_all(theirs.descriptor, small);
    }
    for (int i = 0; i < options.num_large; ++i) receive_all(theirs.descriptor, large);
    send_all(theirs.descriptor, "!");
  });
  std::string small(options.small_bytes, 's'), answer(1, '\0');
  const std::string large(options.large_bytes, 'l');
  const MessageTimes times = timed(
      options,
      [&] {
        send_all(mine.descriptor, small);
        receive_all(mine.descriptor, small);
      },
      [&] {
        for (int i = 0; i < options.num_large; ++i) send_all(mine.descriptor, large);
        receive_all(mine.descriptor, answer);
      });
  other.join();
  return times;
}

}  // namespace

const std::vector<MessageWay>& message_ways() {
  static const std::vector<MessageWay> ways = {{"encrypted", true, true, false},
                                               {"not-encrypted", true, false, false},
                                               {"encrypted-without-port", false, true, false},
                                               {"socket", true, false, true}};
  return ways;
}

MessageTimes bench_messages(const MessageWay& way, const BenchMessagesOptions& options) {
  return way.is_plain_socket ? bench_socket(options) : bench_library(way, options);
}

}  // namespace cohort
