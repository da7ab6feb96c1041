// One DEALER socket per connection. libzmq would reconnect by itself and send to a restarted server what was meant for the previous one, so
// its reconnect interval is an hour, and the next connect() discards the socket of a lost connection.
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
constexpr int kMaxRefusals = 3;            // A server that ends during a handshake looks like one that refuses.
constexpr double kMaxFlushSeconds = 1;     // From the end of a connection until all that it delivered can be read.
constexpr double kMaxAttemptSeconds = 10;  // For one of several addresses.
constexpr double kMinPauseSeconds = 0.02, kMaxPauseSeconds = 0.5;

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

  enum class Handshake { kAccepted, kNoAnswer, kRefused };
  /// Error(kEnvironment) with the reason if the server rejects this client.
  Handshake open(const std::string& address, const std::string& name, Clock::time_point deadline) {
    socket_.connect(address);
    bool has_sent_hello = false;
    for (;;) {
      process_events();
      if (is_authenticated_ && !has_failed_ && !has_sent_hello) {
        ZmqPart hello{std::string_view(note_frame(MessageFrameKind::kHello, name))};
        has_sent_hello = send(hello);
      }
      ZmqPart part;
      if (has_sent_hello && receive(part)) {
        const MessageFrame frame = parse_frame(part.bytes());
        if (frame.kind == MessageFrameKind::kWelcome) return Handshake::kAccepted;
        fail(ErrorCode::kEnvironment,
             "it says: ", frame.kind == MessageFrameKind::kGoAway ? printable(std::string(frame.payload)) : "an unknown frame");
      }
      if (has_failed_) return is_reached_ ? Handshake::kRefused : Handshake::kNoAnswer;
      const double left = seconds_until(deadline);
      if (left <= 0) return Handshake::kNoAnswer;
      wait(ZMQ_POLLIN, left);
    }
  }

  void process_events() {
    while (const auto event = monitor_.next()) {
      switch (event->kind) {
        case ZMQ_EVENT_CONNECTED:
          is_reached_ = true;
          break;
        case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
          is_authenticated_ = true;
          break;
        case ZMQ_EVENT_DISCONNECTED:
          has_ended_ = has_failed_ = true;
          ended_at_ = Clock::now();
          break;
        // libzmq delivers what it received before it schedules the reconnect.
        case ZMQ_EVENT_CONNECT_RETRIED:
          is_flushed_ = has_failed_ = true;
          break;
        default:
          has_failed_ = true;
      }
    }
  }

  bool has_ended() const { return has_ended_; }
  /// Everything delivered before the end can be read now.
  bool is_flushed() const { return has_ended_ && (is_flushed_ || seconds_since(ended_at_) > kMaxFlushSeconds); }
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
  bool is_reached_ = false, is_authenticated_ = false, has_failed_ = false;  // State of the handshake.
  bool has_ended_ = false, is_flushed_ = false;
  Clock::time_point ended_at_{};
};

}  // namespace

struct MessageClient::State {
  std::string endpoint;
  MessageKeys keys;
  Options options;
  std::optional<ZmqContext> context;
  std::optional<Connection> connection;
  std::string why_gone;
  bool was_dismissed = false;

  [[noreturn]] void fail_gone() { fail(ErrorCode::kEnvironment, options.server_name, " is gone", why_gone.empty() ? "" : ": ", why_gone); }
  /// The message that a frame completes, if any.
  std::optional<PeerMessage> take(ZmqPart& part) {
    try {
      const MessageFrame frame = parse_frame(part.bytes());
      if (frame.kind == MessageFrameKind::kPiece) return connection->assembly().take(frame);
      was_dismissed = frame.kind == MessageFrameKind::kGoAway;
      if (was_dismissed) why_gone = concat("it says: ", printable(std::string(frame.payload)));
      else why_gone = "it sent a frame of a kind that only clients send";
    } catch (const Error& error) {
      why_gone = concat("it sent ", error.what());
    }
    connection.reset();
    fail_gone();
  }
};

MessageClient::MessageClient(const std::string& endpoint, const std::string& secret, Options options) : state_(std::make_unique<State>()) {
  resolved_endpoints(endpoint);
  state_->endpoint = endpoint;
  state_->keys = message_keys(secret);
  state_->options = std::move(options);
}
MessageClient::MessageClient(MessageClient&&) noexcept = default;
MessageClient& MessageClient::operator=(MessageClient&& other) noexcept {
  if (this != &other) {
    close();
    state_ = std::move(other.state_);
  }
  return *this;
}
MessageClient::~MessageClient() { close(); }

void MessageClient::close() {
  if (!state_) return;
  try {
    if (state_->connection) {
      state_->connection->process_events();
      if (!state_->connection->has_ended()) state_->connection->set_linger(kLingerMilliseconds);
    }
  } catch (const Error&) {
    // It is closed all the same.
  }
  state_->connection.reset();
  state_->context.reset();
}

const std::string& MessageClient::server_name() const { return state_->options.server_name; }
bool MessageClient::is_connected() const { return state_ && state_->connection && !state_->connection->has_ended(); }
bool MessageClient::was_dismissed() const { return state_ && state_->was_dismissed; }

void MessageClient::connect(double timeout_seconds) {
  State& state = *state_;
  const std::string who = concat(state.options.server_name, " at ", state.endpoint);
  const Clock::time_point deadline = deadline_after(timeout_seconds);
  state.connection.reset();
  state.why_gone.clear();
  state.was_dismissed = false;
  if (!state.context) state.context.emplace();
  const std::vector<std::string> addresses = resolved_endpoints(state.endpoint);
  int refusals = 0;
  for (double pause = kMinPauseSeconds;; pause = std::min(2 * pause, kMaxPauseSeconds)) {
    for (const std::string& address : addresses) {
      const auto until = addresses.size() == 1 ? deadline : std::min(deadline, deadline_after(kMaxAttemptSeconds));
      state.connection.emplace(*state.context, state.keys, state.options.limits);
      try {
        const Connection::Handshake answer = state.connection->open(address, state.options.name, until);
        if (answer == Connection::Handshake::kAccepted) return;
        refusals += answer == Connection::Handshake::kRefused ? 1 : 0;
      } catch (const Error& error) {
        state.connection.reset();
        fail(ErrorCode::kEnvironment, who, " does not let ", state.options.name, " in; ", error.what());
      }
      state.connection.reset();
    }
    if (refusals >= kMaxRefusals)
      fail(ErrorCode::kEnvironment, who, " does not let ", state.options.name, " in: both need the same secret (COHORT_TOKEN)");
    if (seconds_until(deadline) < pause)
      fail(ErrorCode::kEnvironment, who, " has not let ", state.options.name, " in within ", timeout_seconds,
           " s: ", refusals > 0 ? "its secret may be another" : "nobody answers there");
    std::this_thread::sleep_for(std::chrono::duration<double>(pause));
  }
}

void MessageClient::send(const PeerMessage& message, double timeout_seconds) {
  State& state = *state_;
  const size_t most = state.options.limits.max_message_bytes;
  if (message.num_bytes() > most)
    fail(ErrorCode::kFailed, "a message of ", message.num_bytes(), " bytes to ", state.options.server_name, " exceeds the limit of ", most);
  const Clock::time_point deadline = deadline_after(timeout_seconds);
  uint64_t offset = 0;
  do {
    if (!state.connection) state.fail_gone();
    const size_t count = piece_bytes(message, offset);
    ZmqPart piece(kFrameHeaderBytes + count);
    write_piece(message, offset, piece.data());
    for (;;) {
      state.connection->process_events();
      if (state.connection->has_ended()) state.fail_gone();
      if (state.connection->send(piece)) break;
      const double left = seconds_until(deadline);
      if (left <= 0) {
        // The server could not read anything after a partly sent message.
        if (offset > 0) state.connection.reset();
        fail(ErrorCode::kEnvironment, state.options.server_name, " took nothing for ", timeout_seconds, " s");
      }
      state.connection->wait(ZMQ_POLLOUT, left);
    }
    offset += count;
  } while (offset < message.num_bytes());
}

std::optional<PeerMessage> MessageClient::receive(double timeout_seconds) {
  State& state = *state_;
  const Clock::time_point deadline = deadline_after(timeout_seconds);
  for (;;) {
    if (!state.connection) state.fail_gone();
    state.connection->process_events();
    const bool is_last = state.connection->is_flushed();
    for (ZmqPart part; state.connection->receive(part);)
      if (auto message = state.take(part)) return message;
    if (is_last) state.fail_gone();
    const double left = seconds_until(deadline);
    if (timeout_seconds <= 0 || left <= 0) return std::nullopt;
    state.connection->wait(ZMQ_POLLIN, left);
  }
}

}  // namespace cohort
