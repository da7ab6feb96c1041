// What strangers can do to a port that a server listens at, and what who has the secret can do with frames that are none.

#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "cohort/world/messages/message.h"
#include "cohort/world/messages/message_listener.h"
#include "cohort/world/messages/zmq_socket.h"
#include "tests/support/message_servers.h"
#include "tests/support/mutation.h"
#include "tests/support/skip.h"

using namespace cohort;
using Kind = PeerEvent::Kind;

namespace {

void check_serves(const std::string& endpoint) {
  MessageClient client = client_of(endpoint, "a rank");
  client.connect(kTestPatience);
  client.send({"still there?", ""});
  CHECK(client.receive(kTestPatience)->text == "still there?");
}

/// Hands on what goes from one side to the other, and keeps what the client sent.
class RecordingProxy {
 public:
  explicit RecordingProxy(int port)
      : listener_(std::string(32, 'x')), thread_([this, port] {
          pollfd knock{listener_.descriptor(), POLLIN, 0};
          if (::poll(&knock, 1, 20'000) <= 0) return;
          const UniqueDescriptor client(::accept4(listener_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC)), server = stranger_at(port);
          char buffer[65536];
          while (!is_over_) {
            pollfd entries[] = {{client.get(), POLLIN, 0}, {server.get(), POLLIN, 0}};
            ::poll(entries, 2, 20);
            for (int side = 0; side < 2; ++side) {
              if (entries[side].revents == 0) continue;
              const ssize_t count = ::recv(entries[side].fd, buffer, sizeof buffer, 0);
              if (count <= 0) return;
              if (side == 0) sent_.append(buffer, static_cast<size_t>(count));
              send_bytes_to(entries[1 - side].fd, {buffer, static_cast<size_t>(count)});
            }
          }
        }) {}
  std::string end() {
    is_over_ = true;
    thread_.join();
    return sent_;
  }
  const std::string& endpoint() const { return listener_.endpoint(); }

 private:
  static void send_bytes_to(int socket, std::string_view bytes) { (void)!::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  MessageListener listener_;
  std::string sent_;
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

/// What a client sends that joins and says one thing.
std::string recorded_client(const EchoServer& server) {
  RecordingProxy proxy(server.port());
  {
    MessageClient client = client_of(proxy.endpoint());
    client.connect(kTestPatience);
    client.send({"recorded", ""});
    CHECK(client.receive(kTestPatience)->text == "recorded");
  }
  return proxy.end();
}

/// Has the secret, and sends what it wants.
class Insider {
 public:
  explicit Insider(const std::string& endpoint) : socket_(context_, ZMQ_DEALER) {
    const MessageKeys keys = message_keys(kTestSecret);
    socket_.set(ZMQ_CURVE_SERVERKEY, keys.server_public);
    socket_.set(ZMQ_CURVE_PUBLICKEY, keys.client_public);
    socket_.set(ZMQ_CURVE_SECRETKEY, keys.client_secret);
    socket_.set(ZMQ_LINGER, 0);
    socket_.connect(endpoint);
  }
  void send(const std::string& bytes, bool more_follows = false) {
    ZmqPart part{std::string_view(bytes)};
    while (socket_.send(part, more_follows) != ZmqSent::kYes) wait_for_any({{socket_, ZMQ_POLLOUT}}, 1);
  }
  /// The kind of what comes next.
  MessageFrame next(std::string& bytes) {
    ZmqPart part;
    const auto begin = std::chrono::steady_clock::now();
    while (!socket_.receive(part) && seconds_since(begin) < kTestPatience) wait_for_any({{socket_}}, 0.1);
    bytes = part.bytes();
    return parse_frame(bytes);
  }
  void drain() {
    for (ZmqPart part; socket_.receive(part);) {
    }
  }

 private:
  ZmqContext context_;
  ZmqSocket socket_;
};

}  // namespace

TEST_CASE("keys follow from the secret, and from nothing else") {
  const MessageKeys keys = message_keys(kTestSecret), again = message_keys(kTestSecret), other = message_keys(std::string(32, 'x'));
  CHECK(keys.server_secret == again.server_secret);
  CHECK(keys.client_public == again.client_public);
  CHECK(keys.server_secret != keys.client_secret);
  CHECK(keys.server_secret != other.server_secret);
  CHECK(keys.client_public != other.client_public);
  CHECK(keys.server_public.size() == 40);
  CHECK_THROWS_AS(message_keys("short"), Error);
  CHECK_THROWS_AS(message_keys(""), Error);
  CHECK_THROWS_AS(MessageListener(""), Error);
}

TEST_CASE("who has another secret, or none, is not let in and learns why") {
  EchoServer server{MessageListener(kTestSecret)};
  MessageClient wrong = client_of(server.endpoint(), "rank 1", std::string(32, 'x'));
  CHECK_THROWS_WITH_AS(wrong.connect(kTestPatience), doctest::Contains("does not let rank 1 in: both need the same secret"), Error);
  CHECK_THROWS_AS(client_of(server.endpoint(), "rank 1", ""), Error);
  {
    MessageClient bare(server.endpoint(), kTestSecret, {.name = "rank 1", .limits = {.encrypts = false}});
    CHECK_THROWS_AS(bare.connect(3), Error);
  }
  {
    // Knows who the server is, as who has read its key would, but is not the client that the secret makes.
    ZmqContext context;
    ZmqSocket socket(context, ZMQ_DEALER);
    const MessageKeys keys = message_keys(kTestSecret), own = message_keys(std::string(32, 'y'));
    socket.set(ZMQ_CURVE_SERVERKEY, keys.server_public);
    socket.set(ZMQ_CURVE_PUBLICKEY, own.client_public);
    socket.set(ZMQ_CURVE_SECRETKEY, own.client_secret);
    socket.set(ZMQ_LINGER, 0);
    ZmqMonitor monitor(context, socket, ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH);
    socket.connect(server.endpoint());
    wait_for_any({{monitor.socket()}}, kTestPatience);
    const auto event = monitor.next();
    REQUIRE(event);
    CHECK(event->kind == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH);
    CHECK(event->value == 400);
  }
  check_serves(server.endpoint());
  server.end();
  CHECK(server.num_joined() == 1);
  CHECK(server.server().num_refused() > 0);
}

TEST_CASE("who says nothing is closed in time, and while too many are there the others wait outside") {
  EchoServer server(MessageListener(kTestSecret),
                    {.max_unauthenticated = 4, .handshake_seconds = 2});  // So long that four are there at once on a busy machine too.
  std::vector<UniqueDescriptor> silent;
  for (int i = 0; i < 4; ++i) silent.push_back(stranger_at(server.port()));
  const auto is_outside = [&] {
    silent.push_back(knock_at(server.port()));
    pollfd entry{silent.back().get(), POLLOUT, 0};
    if (::poll(&entry, 1, 100) == 0) return true;  // Its first packet was dropped.
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    return false;
  };
  bool has_shut = false;
  for (int i = 0; i < 20 && !has_shut; ++i) has_shut = is_outside();
  CHECK(has_shut);
  for (const UniqueDescriptor& socket : silent) CHECK(is_closed(socket, kTestPatience));
  check_serves(server.endpoint());
  send_bytes(stranger_at(server.port()), "\xff");
  const UniqueDescriptor slow = stranger_at(server.port());
  std::string greeting("\xff\0\0\0\0\0\0\0\1\x7f\3", 11);
  bool closed = false;
  for (size_t i = 0; i < 120 && !closed; ++i) {
    send_bytes(slow, greeting.substr(i % greeting.size(), 1));
    closed = is_closed(slow, 0.05);
  }
  CHECK(closed);
}

TEST_CASE("without a port another user of the machine is not even heard") {
  if (::geteuid() != 0) return skip_test("being another user needs root");
  if (!permissions_bind()) return;
  MessageListener listener = MessageListener::for_forks();
  const std::string name = listener.endpoint().substr(std::string("ipc://@").size());
  const EchoServer server(std::move(listener));
  const auto knock = [&] {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::copy(name.begin(), name.end(), address.sun_path + 1);
    UniqueDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return std::string("nobody is there");
    return std::string(is_closed(socket, 2) ? "closed" : "heard");
  };
  CHECK(as_nobody(knock) == "closed");
  CHECK(knock() == "heard");  // So far: it has ten seconds to show the secret.
}

TEST_CASE("what was recorded of a rank is of no use to who replays it") {
  EchoServer server{MessageListener(kTestSecret)};
  const std::string sent = recorded_client(server);
  REQUIRE(sent.size() > 300);
  for (int i = 0; i < 3; ++i) {
    const UniqueDescriptor thief = stranger_at(server.port());
    send_bytes(thief, sent);
    CHECK(is_closed(thief, kTestPatience));
  }
  check_serves(server.endpoint());
  server.end();
  CHECK(server.num_joined() == 2);  // The one recorded, and the one that looked whether it still serves.
  CHECK(server.num_heard() == 2);
}

TEST_CASE("mutation: garbage, and damaged copies of what a rank sent, at the port") {
  EchoServer server(MessageListener(kTestSecret), {.max_unauthenticated = 500, .handshake_seconds = 1});
  const std::string sent = recorded_client(server);
  int visits = 1;
  for (uint64_t seed = 1; seed <= mutation_count(10'000); ++seed) {
    if (seed % 50 == 0) {
      check_serves(server.endpoint());
      ++visits;
    }
    const UniqueDescriptor stranger = stranger_at(server.port());
    // Damage near the beginning, where the greeting is, or anywhere.
    const size_t kept = seed % 2 ? std::min<size_t>(sent.size(), 64 + seed % 200) : sent.size();
    std::string bytes = mutated(sent.substr(0, kept), seed);
    if (seed % 5 == 0) bytes = std::string(random_bits(seed, 1) % 300, static_cast<char>(random_bits(seed, 2)));
    // The length of a frame in 8 bytes: larger than there is memory.
    if (seed % 7 == 0) bytes = sent.substr(0, 64) + std::string("\x06", 1) + std::string("\0\0\xff\xff\xff\xff\xff\xff", 8) + bytes;
    send_bytes(stranger, bytes);
  }
  check_serves(server.endpoint());
  server.end();
  CHECK(server.num_heard() == visits + 1);
  CHECK(server.num_joined() == visits + 1);
}

TEST_CASE("frames of who has the secret: oversized, in parts, not in their order") {
  EchoServer server(MessageListener(kTestSecret), {.max_message_bytes = 1000});
  const std::string hello = note_frame(MessageFrameKind::kHello, "rank 1");
  std::string bytes;
  const auto told = [&](const std::vector<std::string>& frames) {
    Insider insider(server.endpoint());
    insider.send(hello);
    CHECK(insider.next(bytes).kind == MessageFrameKind::kWelcome);
    for (const std::string& frame : frames) insider.send(frame);
    CHECK(insider.next(bytes).kind == MessageFrameKind::kGoAway);
    return std::string(parse_frame(bytes).payload);
  };
  const auto header = [](uint64_t text_bytes, uint64_t offset) {
    const auto head = frame_header({MessageFrameKind::kPiece, text_bytes, 0, offset, {}});
    return std::string(head.data(), head.size());
  };
  CHECK(told({header(1001, 0) + std::string(1001, 'x')}) == "it sent a message of 1001 bytes, over the limit of 1000");
  CHECK(told({header(uint64_t{1} << 40, 0) + std::string(kPieceBytes, 'x')}).find("over the limit of 1000") != std::string::npos);
  CHECK(told({header(5, 0) + "abc"}).find("another length") != std::string::npos);
  CHECK(told({"nonsense"}).find("shorter than its header") != std::string::npos);
  CHECK(told({hello}).find("of a kind that only servers send") != std::string::npos);
  {
    Insider insider(server.endpoint());
    insider.send(hello);
    CHECK(insider.next(bytes).kind == MessageFrameKind::kWelcome);
    insider.send("one", true);
    insider.send("two");
    CHECK(insider.next(bytes).payload == "it sent a frame of several parts");
  }
  {
    // Larger than any piece: libzmq closes the connection before it takes memory for it, and connects again by itself.
    Insider insider(server.endpoint());
    insider.send(hello);
    CHECK(insider.next(bytes).kind == MessageFrameKind::kWelcome);
    insider.send(header(8 << 20, 0) + std::string(8 << 20, 'x'));
    for (const auto begin = std::chrono::steady_clock::now(); server.num_lost() < 7 && seconds_since(begin) < kTestPatience;)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK(server.num_lost() == 7);
  }
  server.end();
  CHECK(server.last_loss() == "rank 1 is gone");  // Not "sent a frame of 8388640 bytes", which would have been in memory.
}

TEST_CASE("mutation: frames of who has the secret") {
  EchoServer server(MessageListener(kTestSecret), {.max_message_bytes = 1000});
  const std::string hello = note_frame(MessageFrameKind::kHello, "rank 1");
  const auto only_piece = [](const PeerMessage& message) {
    std::string piece(kFrameHeaderBytes + message.num_bytes(), '\0');
    write_piece(message, 0, piece.data());
    return piece;
  };
  const std::string piece = only_piece({"some text", "data"});
  Insider insider(server.endpoint());
  const uint64_t times = mutation_count(10'000);
  for (uint64_t seed = 1; seed <= times; ++seed) {
    if (seed % 4 == 1) insider.send(hello);
    insider.send(mutated(seed % 4 == 2 ? hello : piece, seed));
    insider.drain();
  }
  // Whatever it is taken for by now: the second hello finds nobody of its connection.
  insider.send(hello);
  insider.send("nonsense");
  insider.send(hello);
  insider.send(only_piece({"the very end", ""}));
  std::string bytes;
  while (insider.next(bytes).kind != MessageFrameKind::kPiece || !bytes.ends_with("the very end")) {
  }
  check_serves(server.endpoint());
  server.end();
  CHECK(server.num_joined() > static_cast<int>(times / 10));
  CHECK(server.num_lost() > static_cast<int>(times / 10));
  CHECK(server.num_heard() > static_cast<int>(times / 1000));
}
