// A ROUTER socket, whose door (message_door.h) knows the connections by their descriptors, and peers on top: a connection that has said
// hello. A ROUTER does not say who is gone: the socket's monitor does. It is told on another way than messages are, so that
//  * a hello is taken only after all events before it, and only from a connection that is still open;
//  * a peer whose connection closed is lost only after libzmq has no way to it any more (it answers so to whoever sends there) and the
//    socket was read dry after that.

#include "cohort/world/messages/message_server.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <vector>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/world/messages/message.h"
#include "cohort/world/messages/message_door.h"
#include "cohort/world/messages/zmq_socket.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kFramesAtOnce = 64;       ///< Before others get their turn.
constexpr double kFarewellSeconds = 1;  ///< For what was sent before the server ends.
constexpr double kLongestSettling = 1;  ///< For libzmq to give up a connection that closed.
constexpr double kShortNap = 1e-3, kLongNap = 20e-3;

struct Peer {
  PeerId id;
  std::string name, route;  ///< route: what the ROUTER calls the connection.
  int descriptor;
  MessageAssembly assembly;
  std::deque<std::shared_ptr<const PeerMessage>> waiting;
  uint64_t offset = 0;  ///< In the first of them.
  size_t waiting_bytes = 0;
  bool is_gone = false, has_no_way = false;
  Clock::time_point gone_since{};
};

}  // namespace

struct MessageServer::Inside {
  Inside(MessageListener listener, const MessageLimits& its_limits)
      : limits(its_limits),
        endpoint(listener.endpoint()),
        keys(message_keys(listener.secret())),
        router(context, ZMQ_ROUTER),
        door(context, router, keys.client_public, limits.max_strangers) {
    set_limits(router, limits);
    router.set(ZMQ_ROUTER_MANDATORY, 1);
    router.set(ZMQ_LINGER, static_cast<int>(kFarewellSeconds * 1e3));
    if (limits.encrypts) {
      router.set(ZMQ_ZAP_DOMAIN, std::string("cohort"));
      router.set(ZMQ_CURVE_SERVER, 1);
      router.set(ZMQ_CURVE_SECRETKEY, keys.server_secret);
    } else if (!is_of_this_host(resolved_endpoints(endpoint).front())) {
      fail(ErrorCode::kBadInput, "messages at ", endpoint, " have to be encrypted");
    }
    door.bind(router, std::move(listener));
  }

  Peer* find(PeerId id) {
    const auto at = routes.find(id);
    return at == routes.end() ? nullptr : &peers.at(at->second);
  }

  std::optional<PeerEvent> poll(double timeout_seconds);
  bool serve_once();
  bool take_frame();
  void take(const std::string& route, ZmqPart& part);
  void greet(const std::string& route, const MessageFrame& hello, int descriptor);
  void attend();
  void note(const std::string& route, MessageFrameKind kind, const std::string& text);
  bool pump(Peer& peer);
  void drop_waiting(Peer& peer);
  bool settle();
  void lose(const std::string& route, const std::string& why);
  void forget(const std::string& route);
  double nap_seconds();

  MessageLimits limits;
  std::string endpoint;
  MessageKeys keys;
  ZmqContext context;
  ZmqSocket router;
  MessageDoor door;
  std::map<std::string, Peer> peers;  ///< By route.
  std::map<PeerId, std::string> routes;
  std::deque<PeerEvent> events;
  PeerId last_id = 0;
  size_t num_gone = 0, num_waiting = 0;  ///< Peers that are, messages that do: most of the time none, and nobody has to be asked.
  double nap = kShortNap;
};

void MessageServer::Inside::note(const std::string& route, MessageFrameKind kind, const std::string& text) {
  ZmqPart head{std::string_view(route)}, body{std::string_view(note_frame(kind, text))};
  if (router.send(head, true) == ZmqSent::kYes) router.send(body);
}

/// A connection that closed: what it sent may not have been read yet.
void MessageServer::Inside::attend() {
  door.attend([this](int descriptor) {
    for (auto& [route, peer] : peers) {
      if (peer.descriptor != descriptor || peer.is_gone) continue;
      peer.is_gone = true;
      peer.gone_since = Clock::now();
      drop_waiting(peer);
      ++num_gone;
    }
  });
  door.bound_strangers(peers.size() - num_gone);
}

void MessageServer::Inside::drop_waiting(Peer& peer) {
  num_waiting -= peer.waiting.size();
  peer.waiting.clear();
  peer.waiting_bytes = 0;
}

void MessageServer::Inside::forget(const std::string& route) {
  const auto at = peers.find(route);
  drop_waiting(at->second);
  num_gone -= at->second.is_gone ? 1 : 0;
  routes.erase(at->second.id);
  peers.erase(at);
}

void MessageServer::Inside::lose(const std::string& route, const std::string& why) {
  const Peer& peer = peers.at(route);
  events.push_back({.kind = PeerEvent::Kind::kLost, .peer = peer.id, .name = peer.name, .why = concat(peer.name, " ", why)});
  forget(route);
}

void MessageServer::Inside::greet(const std::string& route, const MessageFrame& hello, int descriptor) {
  attend();  // What happened before the hello has been told by now.
  if (!door.is_open(descriptor)) return;
  const std::string name = printable(std::string(hello.payload));
  std::vector<std::string> earlier;
  for (const auto& [its_route, peer] : peers)
    if (peer.name == name || (peer.descriptor == descriptor && !peer.is_gone)) earlier.push_back(its_route);
  for (const std::string& its_route : earlier) {
    note(its_route, MessageFrameKind::kGoAway, concat("another ", name, " has come"));
    const bool came_again = peers.at(its_route).name == name;
    lose(its_route, "is gone: it has come again");
    events.back().came_again = came_again;
  }
  if (peers.size() >= limits.max_peers) {
    note(route, MessageFrameKind::kGoAway, concat("there are ", peers.size(), " peers, and more are not let in"));
    return;
  }
  const PeerId id = ++last_id;
  peers.insert(
      {route, {.id = id, .name = name, .route = route, .descriptor = descriptor, .assembly = MessageAssembly(limits.max_message_bytes)}});
  routes[id] = route;
  note(route, MessageFrameKind::kWelcome, "");
  events.push_back({.kind = PeerEvent::Kind::kJoined, .peer = id, .name = name});
}

void MessageServer::Inside::take(const std::string& route, ZmqPart& part) {
  const auto at = peers.find(route);
  try {
    const MessageFrame frame = parse_frame(part.bytes());
    if (at == peers.end()) {
      // Whoever was dismissed may not know it yet.
      if (frame.kind == MessageFrameKind::kHello) greet(route, frame, part.descriptor());
      return;
    }
    if (frame.kind != MessageFrameKind::kPiece) fail(ErrorCode::kEnvironment, "a frame that is for others to send");
    Peer& peer = at->second;
    if (auto message = peer.assembly.take(frame))
      events.push_back({.kind = PeerEvent::Kind::kMessage, .peer = peer.id, .name = peer.name, .message = std::move(*message)});
  } catch (const Error& error) {
    note(route, MessageFrameKind::kGoAway, concat("it sent ", error.what()));
    if (at != peers.end()) lose(route, concat("sent ", error.what()));
  }
}

/// One of the frames that came; false where there was none.
bool MessageServer::Inside::take_frame() {
  ZmqPart route;
  if (!router.receive(route)) return false;
  int num_parts = 0;
  for (bool more = route.has_more(); more;) {
    ZmqPart part;
    if (!router.receive(part)) break;  // Parts come together.
    more = part.has_more();
    if (++num_parts == 1 && !more) take(std::string(route.bytes()), part);
  }
  if (num_parts > 1) {
    const std::string its_route(route.bytes());
    note(its_route, MessageFrameKind::kGoAway, "it sent a frame of several parts");
    if (peers.contains(its_route)) lose(its_route, "sent a frame of several parts");
  }
  return true;
}

/// As much of what waits as the connection takes; true where something went out.
bool MessageServer::Inside::pump(Peer& peer) {
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

/// The socket has just been read dry. True where it has to be read again before the losses are known.
bool MessageServer::Inside::settle() {
  if (num_gone == 0) return false;
  bool again = false;
  std::vector<std::string> lost;
  for (auto& [route, peer] : peers) {
    if (!peer.is_gone) continue;
    if (peer.has_no_way || seconds_since(peer.gone_since) > kLongestSettling) {
      lost.push_back(route);
      continue;
    }
    ZmqPart head{std::string_view(route)}, body;
    const ZmqSent sent = router.send(head, true);
    if (sent == ZmqSent::kYes) router.send(body);
    peer.has_no_way = sent == ZmqSent::kNoSuchPeer;
    again = again || peer.has_no_way;
  }
  for (const std::string& route : lost) lose(route, "is gone");
  return again;
}

/// True where there may be more to do at once.
bool MessageServer::Inside::serve_once() {
  attend();
  bool has_sent = false;
  if (num_waiting > 0)
    for (auto& [route, peer] : peers) has_sent = pump(peer) || has_sent;
  if (has_sent) nap = kShortNap;
  for (int taken = 0; taken < kFramesAtOnce && events.empty(); ++taken) {
    if (!take_frame() && !settle()) return false;
  }
  return true;
}

/// libzmq does not say when a connection takes more, nor when one that closed is given up: those are looked at again soon.
double MessageServer::Inside::nap_seconds() {
  if (num_gone > 0) return kShortNap;
  if (num_waiting == 0) return door.is_shut() ? 0.1 : 1e6;
  return std::exchange(nap, std::min(2 * nap, kLongNap));
}

std::optional<PeerEvent> MessageServer::Inside::poll(double timeout_seconds) {
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
    if (!more) wait_for_any({{router}, {door.questions()}, {door.events()}}, std::min(left, nap_seconds()));
  }
}

MessageServer::MessageServer(MessageListener listener, MessageLimits limits)
    : inside_(std::make_unique<Inside>(std::move(listener), limits)) {}
MessageServer::MessageServer(MessageServer&&) noexcept = default;
MessageServer& MessageServer::operator=(MessageServer&&) noexcept = default;

MessageServer::~MessageServer() {
  if (!inside_) return;
  try {
    for (const auto begin = Clock::now(); inside_->num_waiting > 0 && seconds_since(begin) < kFarewellSeconds;) {
      inside_->poll(kShortNap);
      inside_->events.clear();
    }
  } catch (const Error&) {
    // Nobody is left to say it to.
  }
}

const std::string& MessageServer::endpoint() const { return inside_->endpoint; }
std::optional<PeerEvent> MessageServer::poll(double timeout_seconds) { return inside_->poll(timeout_seconds); }
size_t MessageServer::num_peers() const { return inside_->peers.size(); }
int64_t MessageServer::num_refused() const { return inside_->door.num_refused(); }

size_t MessageServer::waiting_bytes(PeerId peer) const {
  const Peer* const found = inside_->find(peer);
  return found ? found->waiting_bytes : 0;
}

bool MessageServer::send(PeerId peer, PeerMessage message) { return send(peer, std::make_shared<const PeerMessage>(std::move(message))); }

bool MessageServer::send(PeerId peer, std::shared_ptr<const PeerMessage> message) {
  Peer* const found = inside_->find(peer);
  if (!found || found->is_gone) return false;
  const size_t bytes = message->num_bytes(), most = inside_->limits.max_message_bytes;
  if (bytes > most) fail(ErrorCode::kFailed, "a message of ", bytes, " bytes to ", found->name, ", where ", most, " are the most");
  if (found->waiting_bytes + bytes > inside_->limits.max_waiting_bytes)
    fail(ErrorCode::kEnvironment, found->name, " does not take what it is sent: ", found->waiting_bytes, " bytes wait for it");
  found->waiting.push_back(std::move(message));
  found->waiting_bytes += bytes;
  ++inside_->num_waiting;
  inside_->pump(*found);
  return true;
}

void MessageServer::dismiss(PeerId peer, const std::string& why) {
  const Peer* const found = inside_->find(peer);
  if (!found) return;
  const std::string route = found->route;
  if (!found->is_gone) inside_->note(route, MessageFrameKind::kGoAway, why);
  inside_->forget(route);
  std::erase_if(inside_->events, [&](const PeerEvent& event) { return event.peer == peer; });
}

}  // namespace cohort
