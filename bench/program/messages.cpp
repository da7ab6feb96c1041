// Times messages between two processes (world/messages/) beside a plain socket.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/program/bench_verb.h"
#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/world/messages/message_client.h"
#include "cohort/world/messages/message_server.h"

namespace cohort {
namespace {

struct MessageWay {
  std::string name;
  bool has_port, is_kept_from_others, is_plain_socket;
};

struct MessageTimes {
  double round_trip_seconds = 0;      ///< A round trip of small_bytes.
  double large_bytes_per_second = 0;  ///< Messages of large_bytes one way, one after the other.
};
struct BenchMessagesOptions {
  size_t small_bytes = 64, large_bytes = size_t{8} << 20;
  int num_small = 500, num_large = 16;
};

using Clock = std::chrono::steady_clock;
constexpr double kPatience = 60;

/// The peer, in a thread; join() rethrows its exception.
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

/// `exchange` sends a message and receives the answer; `stream` sends all large ones and receives an acknowledgement.
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

/// The server's side: answers small messages, counts large ones.
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
  // The last answer is sent before the server closes.
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
  const auto receive = [&] {
    if (!client.receive(kPatience)) fail(ErrorCode::kEnvironment, "no answer came for ", kPatience, " s");
  };
  const PeerMessage small{.data = std::string(options.small_bytes, 's')}, large{.data = std::string(options.large_bytes, 'l')};
  const MessageTimes times = timed(
      options,
      [&] {
        client.send(small);
        receive();
      },
      [&] {
        for (int i = 0; i < options.num_large; ++i) client.send(large);
        receive();
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

/// TCP with and without encryption, between processes of one host without a port, and a plain TCP socket.
const std::vector<MessageWay>& message_ways() {
  static const std::vector<MessageWay> ways = {{"encrypted", true, true, false},
                                               {"not-encrypted", true, false, false},
                                               {"encrypted-without-port", false, true, false},
                                               {"socket", true, false, true}};
  return ways;
}

/// Measures between two threads of this process over the loopback device; each has its own libzmq context.
MessageTimes bench_messages(const MessageWay& way, const BenchMessagesOptions& options) {
  return way.is_plain_socket ? bench_socket(options) : bench_library(way, options);
}

volatile std::sig_atomic_t is_interrupted = 0;

/// The first signal ends the benchmark between two measurements, so that no thread is left with half a message; the second ends the
/// process.
void catch_first_interrupt() {
  struct sigaction action{};
  action.sa_handler = [](int) { is_interrupted = 1; };
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
}

}  // namespace

int bench_messages_verb(const Arguments& arguments) {
  const BenchMessagesOptions options;
  const int64_t rounds = arguments.integer_option("rounds", 3, 1, 1000);
  const std::vector<MessageWay>& ways = message_ways();
  std::vector<std::vector<double>> round_trips(ways.size()), speeds(ways.size());
  catch_first_interrupt();
  for (int64_t round = 0; round < rounds; ++round)
    for (size_t i = 0; i < ways.size(); ++i) {
      const MessageTimes times = bench_messages(ways[i], options);
      if (is_interrupted != 0) fail(ErrorCode::kInterrupted, "bench messages: interrupted before all rounds were done; nothing is printed");
      round_trips[i].push_back(times.round_trip_seconds);
      speeds[i].push_back(times.large_bytes_per_second);
    }
  if (!arguments.config.json)
    std::printf("between two threads of this host\n%-24s %20s %24s\n", "", concat(options.small_bytes, " B and back").c_str(),
                concat("messages of ", human_bytes(static_cast<int64_t>(options.large_bytes))).c_str());
  for (size_t i = 0; i < ways.size(); ++i) {
    const double round_trip = median(round_trips[i]), speed = median(speeds[i]);
    if (arguments.config.json)
      print_line(Json{{"op", "messages"},
                      {"way", ways[i].name},
                      {"small_bytes", options.small_bytes},
                      {"round_trip_seconds", round_trip},
                      {"large_bytes", options.large_bytes},
                      {"bytes_per_second", speed}});
    else std::printf("%-24s %17.1f us %20.0f MB/s\n", ways[i].name.c_str(), 1e6 * round_trip, 1e-6 * speed);
  }
  std::fflush(stdout);
  return 0;
}

}  // namespace cohort
