#pragma once
// Owners of libzmq's objects, its errors as Error(kEnvironment), and its encryption keys. Only the files of this folder include this. A
// context starts two threads and does not survive a fork.

#include <zmq.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace cohort {

class ZmqContext {
 public:
  ZmqContext();
  ~ZmqContext();  ///< Waits for its sockets to send, each for its linger time.
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;
  void* get() const { return context_; }

 private:
  void* context_;
};

/// One part of a ZeroMQ message.
class ZmqPart {
 public:
  ZmqPart() { zmq_msg_init(&part_); }
  explicit ZmqPart(size_t num_bytes);  ///< Uninitialized.
  explicit ZmqPart(std::string_view bytes);
  ~ZmqPart() { zmq_msg_close(&part_); }
  ZmqPart(const ZmqPart&) = delete;
  ZmqPart& operator=(const ZmqPart&) = delete;
  char* data() { return static_cast<char*>(zmq_msg_data(&part_)); }
  std::string_view bytes() { return {data(), zmq_msg_size(&part_)}; }
  bool has_more() { return zmq_msg_more(&part_) != 0; }
  /// Descriptor of the connection it was received on; -1 if unknown.
  int descriptor() { return zmq_msg_get(&part_, ZMQ_SRCFD); }
  zmq_msg_t* get() { return &part_; }

 private:
  zmq_msg_t part_;
};

enum class ZmqSent { kYes, kNotNow, kNoSuchPeer };

/// One thread at a time.
class ZmqSocket {
 public:
  ZmqSocket(const ZmqContext& context, int type);
  ~ZmqSocket() { zmq_close(socket_); }
  ZmqSocket(const ZmqSocket&) = delete;
  ZmqSocket& operator=(const ZmqSocket&) = delete;
  void* get() const { return socket_; }

  void set(int option, int value);
  void set(int option, int64_t value);
  void set(int option, const std::string& value);
  void bind(const std::string& endpoint);
  void connect(const std::string& endpoint);
  /// Neither call waits. A part that was sent is empty afterwards.
  bool receive(ZmqPart& part);
  ZmqSent send(ZmqPart& part, bool more_follows = false);

 private:
  void* socket_;
};

/// Reports connection events of a socket, in order.
class ZmqMonitor {
 public:
  struct Event {
    int kind = 0, value = 0;  ///< ZMQ_EVENT_..., and for most events the descriptor.
  };
  ZmqMonitor(const ZmqContext& context, const ZmqSocket& socket, int kinds);
  /// Must be destroyed before the watched socket: an event without a receiver would block libzmq's thread forever.
  ~ZmqMonitor() { zmq_socket_monitor(watched_.get(), nullptr, 0); }
  ZmqMonitor(const ZmqMonitor&) = delete;
  std::optional<Event> next();
  const ZmqSocket& socket() const { return socket_; }

 private:
  const ZmqSocket& watched_;
  ZmqSocket socket_;
};

struct ZmqPollItem {
  const ZmqSocket& socket;
  short events = ZMQ_POLLIN;
};
/// Waits until one of them is ready or for so many seconds; a signal ends it early.
void wait_for_any(std::initializer_list<ZmqPollItem> items, double seconds);

/// Options of both ends: keep-alive, heartbeats, timeouts, and limits of frames and queues.
void set_limits(ZmqSocket& socket, const struct MessageLimits& limits);

/// The CURVE keys of both ends, derived from the shared secret: each end knows both pairs, so each can verify that the other has the
/// secret. Text in Z85, 40 characters.
struct MessageKeys {
  std::string server_secret, server_public, client_secret, client_public;
};
/// Deterministic. Error(kEnvironment) if the secret is shorter than kShortestToken, or libzmq was built without CURVE.
MessageKeys message_keys(std::string_view secret);

}  // namespace cohort
