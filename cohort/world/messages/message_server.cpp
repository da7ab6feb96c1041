// A ROUTER socket. ConnectionAdmission tracks its connections by their descriptors; a peer is a connection that has sent kHello. A ROUTER
// does not report lost connections, but the socket's monitor does. Monitor events and messages arrive independently, so
//  * a hello is accepted only after all earlier events, and only from a connection that is still open;
//  * a peer whose connection closed is lost only after libzmq has dropped its route (sends to it fail with "no such peer") and the socket
//    was read until empty after that.
#include "cohort/world/messages/message_server.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/secrets.h"
#include "cohort/base/text/text.h"
#include "cohort/world/messages/message.h"
#include "cohort/world/messages/zmq_socket.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kHandshakeFailures =
    ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
constexpr size_t kKeyBytes = 32;

std::string key_bytes(const std::string& text) {
  std::string bytes(kKeyBytes, '\0');
  if (!zmq_z85_decode(reinterpret_cast<uint8_t*>(bytes.data()), text.c_str())) fail(ErrorCode::kFailed, "invalid key");
  return bytes;
}

// ---- connections ----

/// Authenticates connections by their key, tracks which are open, and limits unauthenticated ones.
class ConnectionAdmission {
 public:
  /// Construct before `router` is bound: libzmq asks it over a socket of its own (ZAP, ZeroMQ RFC 27) which clients to accept.
  ConnectionAdmission(const ZmqContext& context, const ZmqSocket& router, const std::string& client_public_key, size_t max_unauthenticated)
      : requests_(context, ZMQ_REP),
        monitor_(context, router, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | kHandshakeFailures),
        key_(key_bytes(client_public_key)),
        max_unauthenticated_(max_unauthenticated) {
    requests_.set(ZMQ_LINGER, 0);
    requests_.bind("inproc://zeromq.zap.01");
  }

  void bind(ZmqSocket& router, MessageListener listener) {
    const int descriptor = ::fcntl(listener.descriptor(), F_DUPFD_CLOEXEC, 0);  // libzmq closes the descriptor that it is given.
    if (descriptor < 0) fail(ErrorCode::kEnvironment, "cannot listen at ", listener.endpoint(), ": ", std::strerror(errno));
    router.set(ZMQ_USE_FD, descriptor);
    const std::string resolved = resolved_endpoints(listener.endpoint()).front();
    is_local_ = resolved.starts_with("ipc:");
    if (is_local_) router.set(ZMQ_IPC_FILTER_UID, static_cast<int>(::geteuid()));  // Rejects other users of this machine.
    router.bind(resolved);
    listening_ = UniqueDescriptor(::fcntl(listener.descriptor(), F_DUPFD_CLOEXEC, 0));
  }

  /// Answers authentication requests, and calls `on_closed` with the descriptor of each connection closed since the last call.
  void process_events(const std::function<void(int)>& on_closed) {
    answer_requests();
    while (const auto event = monitor_.next()) {
      if ((event->kind & kHandshakeFailures) != 0) {
        ++num_refused_;
      } else if (event->kind == ZMQ_EVENT_ACCEPTED) {
        // A descriptor number is reused only after it was closed.
        if (!open_.insert(event->value).second) on_closed(event->value);
      } else if (event->kind == ZMQ_EVENT_DISCONNECTED) {
        if (open_.erase(event->value) > 0) on_closed(event->value);
      }
    }
  }

  bool is_open(int descriptor) const { return open_.contains(descriptor); }

  /// Stops or resumes accepting connections, given how many of the open ones are peers'. libzmq accepts every connection, and closes all of
  /// them when it stops listening. So the kernel is told to drop packets of new clients, whose TCP retries by itself.
  void limit_unauthenticated(size_t num_peers) {
    const size_t unauthenticated = open_.size() > num_peers ? open_.size() - num_peers : 0;
    if (is_local_ || (is_paused_ ? unauthenticated > max_unauthenticated_ / 2 : unauthenticated < max_unauthenticated_)) return;
    is_paused_ = !is_paused_;
    sock_filter drop_all[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
    const sock_fprog program{1, drop_all};
    const int nothing = 0;
    if (is_paused_) ::setsockopt(listening_.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
    else ::setsockopt(listening_.get(), SOL_SOCKET, SO_DETACH_FILTER, &nothing, sizeof nothing);
  }

  bool is_paused() const { return is_paused_; }
  /// Connections that failed authentication.
  int64_t num_refused() const { return num_refused_; }
  const ZmqSocket& requests() const { return requests_; }
  const ZmqSocket& events() const { return monitor_.socket(); }

 private:
  /// A request is version, number, domain, address, routing id, mechanism and the client's public key; libzmq has already verified that the
  /// client has the secret key.
  void answer_requests() {
    for (;;) {
      std::vector<std::string> parts;
      for (bool more = true; more;) {
        ZmqPart part;
        if (!requests_.receive(part)) return;  // Parts arrive together.
        parts.emplace_back(part.bytes());
        more = part.has_more();
      }
      const bool is_known = parts.size() == 7 && parts[0] == "1.0" && parts[5] == "CURVE" && equal_secrets(parts[6], key_);
      const std::string number = parts.size() > 1 ? parts[1] : "";
      const std::vector<std::string> answer = {"1.0", number, is_known ? "200" : "400", is_known ? "OK" : "another secret", "", ""};
      for (size_t i = 0; i < answer.size(); ++i) {
        ZmqPart part{std::string_view(answer[i])};
        requests_.send(part, i + 1 < answer.size());
      }
    }
  }

  ZmqSocket requests_;
  ZmqMonitor monitor_;
  std::string key_;
  size_t max_unauthenticated_;
  UniqueDescriptor listening_;
  std::set<int> open_;
  int64_t num_refused_ = 0;
  bool is_paused_ = false, is_local_ = false;
};

// ---- peers ----

constexpr int kMaxFramesPerTurn = 64;
constexpr double kLingerSeconds = 1;        // For sent messages when the server ends.
constexpr double kMaxRouteDropSeconds = 1;  // For libzmq to drop the route of a closed connection.
constexpr double kMinPollSeconds = 1e-3, kMaxPollSeconds = 20e-3;

struct Peer {
  PeerId id;
  std::string name, route;  ///< route: the ROUTER's id of the connection.
  int descriptor;
  MessageAssembly assembly;
  std::deque<std::shared_ptr<const PeerMessage>> waiting;
  uint64_t offset = 0;  ///< In the first of them.
  size_t waiting_bytes = 0;
  bool is_closed = false, is_route_dropped = false;
  Clock::time_point closed_at{};
};

}  // namespace

struct MessageServer::State {
  State(MessageListener listener, const MessageLimits& message_limits)
      : limits(message_limits),
        endpoint(listener.endpoint()),
        keys(message_keys(listener.secret())),
        router(context, ZMQ_ROUTER),
        admission(context, router, keys.client_public, limits.max_unauthenticated) {
    set_limits(router, limits);
    router.set(ZMQ_ROUTER_MANDATORY, 1);
    router.set(ZMQ_LINGER, static_cast<int>(kLingerSeconds * 1e3));
    if (limits.encrypts) {
      router.set(ZMQ_ZAP_DOMAIN, std::string("cohort"));
      router.set(ZMQ_CURVE_SERVER, 1);
      router.set(ZMQ_CURVE_SECRETKEY, keys.server_secret);
    } else if (!is_of_this_host(resolved_endpoints(endpoint).front())) {
      fail(ErrorCode::kBadInput, "messages at ", endpoint, " have to be encrypted");
    }
    admission.bind(router, std::move(listener));
  }

  Peer* find(PeerId id) {
    const auto at = routes.find(id);
    return at == routes.end() ? nullptr : &peers.at(at->second);
  }

  std::optional<PeerEvent> poll(double timeout_seconds) {
    const auto begin = Clock::now();
    for (;;) {
      const bool more = events.empty() && serve_once();
      if (!events.empty()) {
        PeerEvent event = std::move(events.front());
        events.pop_front();
        return event;
      }
      const double left = timeout_seconds - seconds_since(begin);
      if (left <= 0) return std::nullopt;
      if (!more) wait_for_any({{router}, {admission.requests()}, {admission.events()}}, std::min(left, poll_seconds()));
    }
  }

  /// True if there may be more to do at once.
  bool serve_once() {
    process_events();
    bool has_sent = false;
    if (num_waiting > 0)
      for (auto& [route, peer] : peers) has_sent = send_waiting(peer) || has_sent;
    if (has_sent) poll_interval = kMinPollSeconds;
    for (int taken = 0; taken < kMaxFramesPerTurn && events.empty(); ++taken) {
      if (!take_frame() && !report_closed_peers()) return false;
    }
    return true;
  }

  /// Handles one received frame; false if there was none.
  bool take_frame() {
    ZmqPart route;
    if (!router.receive(route)) return false;
    int num_parts = 0;
    for (bool more = route.has_more(); more;) {
      ZmqPart part;
      if (!router.receive(part)) break;  // Parts arrive together.
      more = part.has_more();
      if (++num_parts == 1 && !more) take(std::string(route.bytes()), part);
    }
    if (num_parts > 1) {
      const std::string other_route(route.bytes());
      send_note(other_route, MessageFrameKind::kGoAway, "it sent a frame of several parts");
      if (peers.contains(other_route)) lose(other_route, "sent a frame of several parts");
    }
    return true;
  }

  void take(const std::string& route, ZmqPart& part) {
    const auto at = peers.find(route);
    try {
      const MessageFrame frame = parse_frame(part.bytes());
      if (at == peers.end()) {
        // Frames of a dismissed peer are ignored.
        if (frame.kind == MessageFrameKind::kHello) on_hello(route, frame, part.descriptor());
        return;
      }
      if (frame.kind != MessageFrameKind::kPiece) fail(ErrorCode::kEnvironment, "a frame of a kind that only servers send");
      Peer& peer = at->second;
      if (auto message = peer.assembly.take(frame))
        events.push_back({.kind = PeerEvent::Kind::kMessage, .peer = peer.id, .name = peer.name, .message = std::move(*message)});
    } catch (const Error& error) {
      send_note(route, MessageFrameKind::kGoAway, concat("it sent ", error.what()));
      if (at != peers.end()) lose(route, concat("sent ", error.what()));
    }
  }

  void on_hello(const std::string& route, const MessageFrame& hello, int descriptor) {
    process_events();  // All events before the hello.
    if (!admission.is_open(descriptor)) return;
    const std::string name = printable(std::string(hello.payload));
    std::vector<std::string> earlier;
    for (const auto& [other_route, peer] : peers)
      if (peer.name == name || (peer.descriptor == descriptor && !peer.is_closed)) earlier.push_back(other_route);
    for (const std::string& other_route : earlier) {
      send_note(other_route, MessageFrameKind::kGoAway, concat("another ", name, " has come"));
      const bool came_again = peers.at(other_route).name == name;
      lose(other_route, "is gone: it has come again");
      events.back().came_again = came_again;
    }
    if (peers.size() >= limits.max_peers) {
      send_note(route, MessageFrameKind::kGoAway, concat("there are ", peers.size(), " peers, and more are not let in"));
      return;
    }
    const PeerId id = ++last_id;
    peers.insert(
        {route, {.id = id, .name = name, .route = route, .descriptor = descriptor, .assembly = MessageAssembly(limits.max_message_bytes)}});
    routes[id] = route;
    send_note(route, MessageFrameKind::kWelcome, "");
    events.push_back({.kind = PeerEvent::Kind::kJoined, .peer = id, .name = name});
  }

  /// Marks peers whose connection closed; what they sent may not have been read yet.
  void process_events() {
    admission.process_events([this](int descriptor) {
      for (auto& [route, peer] : peers) {
        if (peer.descriptor != descriptor || peer.is_closed) continue;
        peer.is_closed = true;
        peer.closed_at = Clock::now();
        drop_waiting(peer);
        ++num_closed;
      }
    });
    admission.limit_unauthenticated(peers.size() - num_closed);
  }

  void send_note(const std::string& route, MessageFrameKind kind, const std::string& text) {
    ZmqPart head{std::string_view(route)}, body{std::string_view(note_frame(kind, text))};
    if (router.send(head, true) == ZmqSent::kYes) router.send(body);
  }

  /// Sends as many waiting messages as the connection takes; true if anything was sent.
  bool send_waiting(Peer& peer) {
    bool has_sent = false;
    while (!peer.waiting.empty()) {
      ZmqPart head{std::string_view(peer.route)};
      if (router.send(head, true) != ZmqSent::kYes) break;
      const PeerMessage& message = *peer.waiting.front();
      const size_t count = piece_bytes(message, peer.offset);
      ZmqPart piece(kFrameHeaderBytes + count);
      write_piece(message, peer.offset, piece.data());
      router.send(piece);
      has_sent = true;
      peer.offset += count;
      peer.waiting_bytes -= count;
      if (peer.offset < message.num_bytes()) continue;
      peer.waiting.pop_front();
      --num_waiting;
      peer.offset = 0;
    }
    return has_sent;
  }

  void drop_waiting(Peer& peer) {
    num_waiting -= peer.waiting.size();
    peer.waiting.clear();
    peer.waiting_bytes = 0;
  }

  /// Called when the socket was read until empty. True if it must be read again before losses can be reported.
  bool report_closed_peers() {
    if (num_closed == 0) return false;
    bool again = false;
    std::vector<std::string> lost;
    for (auto& [route, peer] : peers) {
      if (!peer.is_closed) continue;
      if (peer.is_route_dropped || seconds_since(peer.closed_at) > kMaxRouteDropSeconds) {
        lost.push_back(route);
        continue;
      }
      ZmqPart head{std::string_view(route)}, body;
      const ZmqSent sent = router.send(head, true);
      if (sent == ZmqSent::kYes) router.send(body);
      peer.is_route_dropped = sent == ZmqSent::kNoSuchPeer;
      again = again || peer.is_route_dropped;
    }
    for (const std::string& route : lost) lose(route, "is gone");
    return again;
  }

  void lose(const std::string& route, const std::string& why) {
    const Peer& peer = peers.at(route);
    events.push_back({.kind = PeerEvent::Kind::kLost, .peer = peer.id, .name = peer.name, .why = concat(peer.name, " ", why)});
    forget(route);
  }

  void forget(const std::string& route) {
    const auto at = peers.find(route);
    drop_waiting(at->second);
    num_closed -= at->second.is_closed ? 1 : 0;
    routes.erase(at->second.id);
    peers.erase(at);
  }

  /// libzmq does not report when a connection takes more, nor when a route is dropped, so both are polled.
  double poll_seconds() {
    if (num_closed > 0) return kMinPollSeconds;
    if (num_waiting == 0) return admission.is_paused() ? 0.1 : 1e6;
    return std::exchange(poll_interval, std::min(2 * poll_interval, kMaxPollSeconds));
  }

  MessageLimits limits;
  std::string endpoint;
  MessageKeys keys;
  ZmqContext context;
  ZmqSocket router;
  ConnectionAdmission admission;
  std::map<std::string, Peer> peers;  ///< By route.
  std::map<PeerId, std::string> routes;
  std::deque<PeerEvent> events;
  PeerId last_id = 0;
  size_t num_closed = 0, num_waiting = 0;  ///< Closed peers and waiting messages; usually none, which saves a search.
  double poll_interval = kMinPollSeconds;
};

MessageServer::MessageServer(MessageListener listener, MessageLimits limits)
    : state_(std::make_unique<State>(std::move(listener), limits)) {}
MessageServer::MessageServer(MessageServer&&) noexcept = default;
MessageServer& MessageServer::operator=(MessageServer&&) noexcept = default;

MessageServer::~MessageServer() {
  if (!state_) return;
  try {
    for (const auto begin = Clock::now(); state_->num_waiting > 0 && seconds_since(begin) < kLingerSeconds;) {
      state_->poll(kMinPollSeconds);
      state_->events.clear();
    }
  } catch (const Error&) {
    // Nobody is left to send it to.
  }
}

const std::string& MessageServer::endpoint() const { return state_->endpoint; }
std::optional<PeerEvent> MessageServer::poll(double timeout_seconds) { return state_->poll(timeout_seconds); }
size_t MessageServer::num_peers() const { return state_->peers.size(); }
int64_t MessageServer::num_refused() const { return state_->admission.num_refused(); }

size_t MessageServer::waiting_bytes(PeerId peer) const {
  const Peer* const found = state_->find(peer);
  return found ? found->waiting_bytes : 0;
}

bool MessageServer::send(PeerId peer, PeerMessage message) { return send(peer, std::make_shared<const PeerMessage>(std::move(message))); }

bool MessageServer::send(PeerId peer, std::shared_ptr<const PeerMessage> message) {
  Peer* const found = state_->find(peer);
  if (!found || found->is_closed) return false;
  const size_t bytes = message->num_bytes(), most = state_->limits.max_message_bytes;
  if (bytes > most) fail(ErrorCode::kFailed, "a message of ", bytes, " bytes to ", found->name, " exceeds the limit of ", most);
  if (found->waiting_bytes + bytes > state_->limits.max_waiting_bytes)
    fail(ErrorCode::kEnvironment, found->name, " does not receive: ", found->waiting_bytes, " bytes are queued for it");
  found->waiting.push_back(std::move(message));
  found->waiting_bytes += bytes;
  ++state_->num_waiting;
  state_->send_waiting(*found);
  return true;
}

void MessageServer::dismiss(PeerId peer, const std::string& why) {
  const Peer* const found = state_->find(peer);
  if (!found) return;
  const std::string route = found->route;
  if (!found->is_closed) state_->send_note(route, MessageFrameKind::kGoAway, why);
  state_->forget(route);
  std::erase_if(state_->events, [&](const PeerEvent& event) { return event.peer == peer; });
}

}  // namespace cohort
