#include "cohort/world/messages/zmq_socket.h"

#include <zmq.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/secrets.h"
#include "cohort/world/job_token.h"
#include "cohort/world/messages/message.h"

namespace cohort {
namespace {

constexpr int kEncryptionBytes = 64;  // CURVE makes a frame 33 bytes longer.
constexpr int kQueuedPieces = 64;     // At each end of each connection.

void check_zmq(bool done, const char* what) {
  if (!done) fail(ErrorCode::kEnvironment, "libzmq cannot ", what, ": ", zmq_strerror(zmq_errno()));
}

int milliseconds(double seconds) { return static_cast<int>(std::ceil(std::clamp(seconds * 1e3, 1.0, 1e9))); }

constexpr size_t kKeyTextBytes = 41;  // With its terminating 0.

std::string z85_secret_key(std::string_view secret, std::string_view use) {
  const std::string bytes = derived_key(secret, use);  // X25519 accepts any 32 bytes as a secret key.
  std::string text(kKeyTextBytes, '\0');
  zmq_z85_encode(text.data(), reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  text.pop_back();
  return text;
}

std::string z85_public_key(const std::string& secret_text) {
  std::string text(kKeyTextBytes, '\0');
  if (zmq_curve_public(text.data(), secret_text.c_str()) != 0)
    fail(ErrorCode::kEnvironment, "libzmq was built without CURVE, which keeps others out; install one that has it (Debian: libzmq5)");
  text.pop_back();
  return text;
}

}  // namespace

ZmqContext::ZmqContext() : context_(zmq_ctx_new()) {
  check_zmq(context_ != nullptr, "make a context");
  zmq_ctx_set(context_, ZMQ_IPV6, 1);
}

ZmqContext::~ZmqContext() {
  while (zmq_ctx_term(context_) != 0 && zmq_errno() == EINTR) {
  }
}

ZmqPart::ZmqPart(size_t num_bytes) { check_zmq(zmq_msg_init_size(&part_, num_bytes) == 0, "hold a message"); }
ZmqPart::ZmqPart(std::string_view bytes) : ZmqPart(bytes.size()) {
  if (!bytes.empty()) std::memcpy(data(), bytes.data(), bytes.size());
}

ZmqSocket::ZmqSocket(const ZmqContext& context, int type) : socket_(zmq_socket(context.get(), type)) {
  check_zmq(socket_ != nullptr, "make a socket");
}
void ZmqSocket::set(int option, int value) { check_zmq(zmq_setsockopt(socket_, option, &value, sizeof value) == 0, "set an option"); }
void ZmqSocket::set(int option, int64_t value) { check_zmq(zmq_setsockopt(socket_, option, &value, sizeof value) == 0, "set an option"); }
void ZmqSocket::set(int option, const std::string& value) {
  check_zmq(zmq_setsockopt(socket_, option, value.data(), value.size()) == 0, "set an option");
}
void ZmqSocket::bind(const std::string& endpoint) {
  if (zmq_bind(socket_, endpoint.c_str()) != 0)
    fail(ErrorCode::kEnvironment, "cannot listen at ", endpoint, ": ", zmq_strerror(zmq_errno()));
}
void ZmqSocket::connect(const std::string& endpoint) {
  if (zmq_connect(socket_, endpoint.c_str()) != 0)
    fail(ErrorCode::kEnvironment, "cannot connect to ", endpoint, ": ", zmq_strerror(zmq_errno()));
}

bool ZmqSocket::receive(ZmqPart& part) {
  for (;;) {
    if (zmq_msg_recv(part.get(), socket_, ZMQ_DONTWAIT) >= 0) return true;
    if (zmq_errno() == EAGAIN) return false;
    check_zmq(zmq_errno() == EINTR, "receive");
  }
}

ZmqSent ZmqSocket::send(ZmqPart& part, bool more_follows) {
  for (;;) {
    if (zmq_msg_send(part.get(), socket_, ZMQ_DONTWAIT | (more_follows ? ZMQ_SNDMORE : 0)) >= 0) return ZmqSent::kYes;
    if (zmq_errno() == EAGAIN) return ZmqSent::kNotNow;
    if (zmq_errno() == EHOSTUNREACH) return ZmqSent::kNoSuchPeer;
    check_zmq(zmq_errno() == EINTR, "send");
  }
}

ZmqMonitor::ZmqMonitor(const ZmqContext& context, const ZmqSocket& socket, int kinds) : watched_(socket), socket_(context, ZMQ_PAIR) {
  static std::atomic<uint64_t> number{0};
  const std::string name = concat("inproc://monitor-", number++);
  // Unread events must not block libzmq's thread.
  socket_.set(ZMQ_RCVHWM, 0);
  check_zmq(zmq_socket_monitor(socket.get(), name.c_str(), kinds) == 0, "watch a socket");
  socket_.connect(name);
}

std::optional<ZmqMonitor::Event> ZmqMonitor::next() {
  ZmqPart head, address;
  if (!socket_.receive(head)) return std::nullopt;
  const std::string_view bytes = head.bytes();
  while (head.has_more() && !socket_.receive(address)) wait_for_any({{socket_}}, 1);
  if (bytes.size() < 6) return Event{};
  uint16_t kind = 0;
  int32_t value = 0;
  std::memcpy(&kind, bytes.data(), sizeof kind);
  std::memcpy(&value, bytes.data() + sizeof kind, sizeof value);
  return Event{kind, value};
}

void wait_for_any(std::initializer_list<ZmqPollItem> items, double seconds) {
  std::vector<zmq_pollitem_t> polled;
  for (const ZmqPollItem& item : items) polled.push_back({item.socket.get(), 0, item.events, 0});
  zmq_poll(polled.data(), static_cast<int>(polled.size()), seconds > 0 ? milliseconds(seconds) : 0);
}

void set_limits(ZmqSocket& socket, const MessageLimits& limits) {
  socket.set(ZMQ_MAXMSGSIZE, static_cast<int64_t>(kFrameHeaderBytes + kPieceBytes + kEncryptionBytes));
  socket.set(ZMQ_SNDHWM, kQueuedPieces);
  socket.set(ZMQ_RCVHWM, kQueuedPieces);
  socket.set(ZMQ_HANDSHAKE_IVL, milliseconds(limits.handshake_seconds));
  // A disconnected host does not close its connections: the peer is lost when its kernel has acknowledged neither data nor keep-alive
  // probes for so long.
  const int probe_seconds = static_cast<int>(std::clamp(limits.silence_seconds / 3, 1.0, 3600.0));
  socket.set(ZMQ_TCP_KEEPALIVE, 1);
  socket.set(ZMQ_TCP_KEEPALIVE_IDLE, probe_seconds);
  socket.set(ZMQ_TCP_KEEPALIVE_INTVL, probe_seconds);
  socket.set(ZMQ_TCP_MAXRT, milliseconds(limits.silence_seconds));
  if (limits.heartbeat_seconds <= 0) return;  // Sent after one interval, lost after two more.
  socket.set(ZMQ_HEARTBEAT_IVL, milliseconds(limits.heartbeat_seconds));
  socket.set(ZMQ_HEARTBEAT_TIMEOUT, milliseconds(2 * limits.heartbeat_seconds));
}

MessageKeys message_keys(std::string_view secret) {
  if (secret.size() < kShortestToken)
    fail(ErrorCode::kEnvironment, "messages need a secret of ", kShortestToken, " characters or more; ", token_instructions());
  MessageKeys keys{.server_secret = z85_secret_key(secret, "messages: server"),
                   .client_secret = z85_secret_key(secret, "messages: client")};
  keys.server_public = z85_public_key(keys.server_secret);
  keys.client_public = z85_public_key(keys.client_secret);
  return keys;
}

}  // namespace cohort
