// A DEALER socket for each connection. libzmq would connect again by itself, and send to a server that started again what was meant for
// the last one: so it is told to wait an hour with that, and a lost connection's socket is thrown away by the next connect().

#include "cohort/world/messages/message_client.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/world/messages/message.h"
#include "cohort/world/messages/message_listener.h"
#include "cohort/world/messages/zmq_socket.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kNeverMilliseconds = 3'600'000;
constexpr int kLingerMilliseconds = 5000;
constexpr int kMostRefusals = 3;        ///< A server that ends while it is asked looks like one that refuses.
constexpr double kLongestFlush = 1;     ///< From the end of a connection until all that came over it can be read.
constexpr double kLongestAttempt = 10;  ///< At one of several addresses.
constexpr double kFirstPause = 0.02, kLongestPause = 0.5;

constexpr int kEvents = ZMQ_EVENT_CONNECT_RETRIED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_CONNECTED | ZMQ_EVENT_DISCONNECTED |
                        ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                        ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

double seconds_until(Clock::time_point deadline) { return std::chrono::duration<double>(deadline - Clock::now()).count(); }
Clock::time_point deadline_after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e8)));
}

/// One connection, from the first attempt to its end.
class Connection {
 public:
  Connection(const ZmqContext& context, const MessageKeys& keys, const MessageLimits& limits)
      : socket_(context, ZMQ_DEALER), monitor_(context, socket_, kEvents), assembly_(limits.max_message_bytes) {
    set_limits(socket_, limits);
    socket_.set(ZMQ_RECONNECT_IVL, kNeverMilliseconds);
    socket_.set(ZMQ_LINGER, 0);
    if (!limits.encrypts) return;
    socket_.set(ZMQ_CURVE_SERVERKEY, keys.server_public);
    socket_.set(ZMQ_CURVE_PUBLICKEY, keys.client_public);
    socket_.set(ZMQ_CURVE_SECRETKEY, keys.client_secret);
  }

  enum class Answer { kIn, kNobody, kRefused };
  /// Error(kEnvironment) where the server says why it does not want this client.
  Answer open(const std::string& address, const std::string& name, Clock::time_point deadline);

  void hear();
  bool has_ended() const { return has_ended_; }
  /// All that came before the end can be read now.
  bool is_flushed() const { return has_ended_ && (is_flushed_ || seconds_since(ended_at_) > kLongestFlush); }
  bool receive(ZmqPart& part) { return socket_.receive(part); }
  bool send(ZmqPart& part) { return socket_.send(part) == ZmqSent::kYes; }
  void wait(short events, double seconds) {
    wait_for_any({{socket_, events}, {monitor_.socket()}}, has_ended_ && !is_flushed_ ? std::min(seconds, 5e-3) : seconds);
  }
  MessageAssembly& assembly() { return assembly_; }
  void set_linger(int milliseconds) { socket_.set(ZMQ_LINGER, milliseconds); }

 private:
  ZmqSocket socket_;
  ZmqMonitor monitor_;
  MessageAssembly assembly_;
  bool has_reached_ = false, is_in_ = false, has_failed_ = false;  ///< Of the handshake.
  bool has_ended_ = false, is_flushed_ = false;
  Clock::time_point ended_at_{};
};

void Connection::hear() {
  while (const auto event = monitor_.next()) {
    switch (event->kind) {
      case ZMQ_EVENT_CONNECTED:
        has_reached_ = true;
        break;
      case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        is_in_ = true;
        break;
      case ZMQ_EVENT_DISCONNECTED:
        has_ended_ = has_failed_ = true;
        ended_at_ = Clock::now();
        break;
      // libzmq hands over what came, and then plans to connect again.
      case ZMQ_EVENT_CONNECT_RETRIED:
        is_flushed_ = has_failed_ = true;
        break;
      default:
        has_failed_ = true;
    }
  }
}

Connection::Answer Connection::open(const std::string& address, const std::string& name, Clock::time_point deadline) {
  socket_.connect(address);
  bool has_said_hello = false;
  for (;;) {
    hear();
    if (is_in_ && !has_failed_ && !has_said_hello) {
      ZmqPart hello{std::string_view(note_frame(MessageFrameKind::kHello, name))};
      has_said_hello = send(hello);
    }
    ZmqPart part;
    if (has_said_hello && receive(part)) {
      const MessageFrame frame = parse_frame(part.bytes());
      if (frame.kind == MessageFrameKind::kWelcome) return Answer::kIn;
      fail(ErrorCode::kEnvironment,
           "it says: ", frame.kind == MessageFrameKind::kGoAway ? printable(std::string(frame.payload)) : "nothing known");
    }
    if (has_failed_) return has_reached_ ? Answer::kRefused : Answer::kNobody;
    const double left = seconds_until(deadline);
    if (left <= 0) return Answer::kNobody;
    wait(ZMQ_POLLIN, left);
  }
}

}  // namespace

struct MessageClient::Inside {
  std::string endpoint;
  MessageKeys keys;
  Options options;
  std::optional<ZmqContext> context;
  std::optional<Connection> connection;
  std::string why_gone;
  bool was_dismissed = false;

  [[noreturn]] void fail_gone() { fail(ErrorCode::kEnvironment, options.server_name, " is gone", why_gone.empty() ? "" : ": ", why_gone); }
  /// What a frame completes.
  std::optional<PeerMessage> take(ZmqPart& part) {
    try {
      const MessageFrame frame = parse_frame(part.bytes());
      if (frame.kind == MessageFrameKind::kPiece) return connection->assembly().take(frame);
      was_dismissed = frame.kind == MessageFrameKind::kGoAway;
      if (was_dismissed) why_gone = concat("it says: ", printable(std::string(frame.payload)));
      else why_gone = "it sent a frame that is for others to send";
    } catch (const Error& error) {
      why_gone = concat("it sent ", error.what());
    }
    connection.reset();
    fail_gone();
  }
};

MessageClient::MessageClient(const std::string& endpoint, const std::string& secret, Options options)
    : inside_(std::make_unique<Inside>()) {
  resolved_endpoints(endpoint);
  inside_->endpoint = endpoint;
  inside_->keys = message_keys(secret);
  inside_->options = std::move(options);
}
MessageClient::MessageClient(MessageClient&&) noexcept = default;
MessageClient& MessageClient::operator=(MessageClient&& other) noexcept {
  if (this != &other) {
    close();
    inside_ = std::move(other.inside_);
  }
  return *this;
}
MessageClient::~MessageClient() { close(); }

void MessageClient::close() {
  if (!inside_) return;
  try {
    if (inside_->connection) {
      inside_->connection->hear();
      if (!inside_->connection->has_ended()) inside_->connection->set_linger(kLingerMilliseconds);
    }
  } catch (const Error&) {
    // It goes all the same.
  }
  inside_->connection.reset();
  inside_->context.reset();
}

const std::string& MessageClient::server_name() const { return inside_->options.server_name; }
bool MessageClient::is_connected() const { return inside_ && inside_->connection && !inside_->connection->has_ended(); }

bool MessageClient::was_dismissed() const { return inside_ && inside_->was_dismissed; }

void MessageClient::connect(double timeout_seconds) {
  Inside& in = *inside_;
  const std::string who = concat(in.options.server_name, " at ", in.endpoint);
  const Clock::time_point deadline = deadline_after(timeout_seconds);
  in.connection.reset();
  in.why_gone.clear();
  in.was_dismissed = false;
  if (!in.context) in.context.emplace();
  const std::vector<std::string> addresses = resolved_endpoints(in.endpoint);
  int refusals = 0;
  for (double pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    for (const std::string& address : addresses) {
      const auto until = addresses.size() == 1 ? deadline : std::min(deadline, deadline_after(kLongestAttempt));
      in.connection.emplace(*in.context, in.keys, in.options.limits);
      try {
        const Connection::Answer answer = in.connection->open(address, in.options.name, until);
        if (answer == Connection::Answer::kIn) return;
        refusals += answer == Connection::Answer::kRefused ? 1 : 0;
      } catch (const Error& error) {
        in.connection.reset();
        fail(ErrorCode::kEnvironment, who, " does not let ", in.options.name, " in; ", error.what());
      }
      in.connection.reset();
    }
    if (refusals >= kMostRefusals)
      fail(ErrorCode::kEnvironment, who, " does not let ", in.options.name, " in: both need the same secret (COHORT_TOKEN)");
    if (seconds_until(deadline) < pause)
      fail(ErrorCode::kEnvironment, who, " has not let ", in.options.name, " in within ", timeout_seconds,
           " s: ", refusals > 0 ? "its secret may be another" : "nobody answers there");
    std::this_thread::sleep_for(std::chrono::duration<double>(pause));
  }
}

void MessageClient::send(const PeerMessage& message, double timeout_seconds) {
  Inside& in = *inside_;
  const size_t most = in.options.limits.max_message_bytes;
  if (message.num_bytes() > most)
    fail(ErrorCode::kFailed, "a message of ", message.num_bytes(), " bytes to ", in.options.server_name, ", where ", most, " are the most");
  const Clock::time_point deadline = deadline_after(timeout_seconds);
  uint64_t offset = 0;
  do {
    if (!in.connection) in.fail_gone();
    const size_t count = piece_bytes(message, offset);
    ZmqPart piece(kFrameHeaderBytes + count);
    write_piece(message, offset, piece.data());
    for (;;) {
      in.connection->hear();
      if (in.connection->has_ended()) in.fail_gone();
      if (in.connection->send(piece)) break;
      const double left = seconds_until(deadline);
      if (left <= 0) {
        // Some of its pieces went out: nothing that follows could be read.
        if (offset > 0) in.connection.reset();
        fail(ErrorCode::kEnvironment, in.options.server_name, " took nothing for ", timeout_seconds, " s");
      }
      in.connection->wait(ZMQ_POLLOUT, left);
    }
    offset += count;
  } while (offset < message.num_bytes());
}

std::optional<PeerMessage> MessageClient::receive(double timeout_seconds) {
  Inside& in = *inside_;
  const Clock::time_point deadline = deadline_after(timeout_seconds);
  for (;;) {
    if (!in.connection) in.fail_gone();
    in.connection->hear();
    const bool is_last = in.connection->is_flushed();
    for (ZmqPart part; in.connection->receive(part);)
      if (auto message = in.take(part)) return message;
    if (is_last) in.fail_gone();
    const double left = seconds_until(deadline);
    if (timeout_seconds <= 0 || left <= 0) return std::nullopt;
    in.connection->wait(ZMQ_POLLIN, left);
  }
}

}  // namespace cohort
