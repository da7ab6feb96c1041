#pragma once
// libzmq's objects with owners, its errors as Error(kEnvironment), and the keys of its encryption. Only the files of this folder include
// it. A context starts two threads: it does not live through a fork, and a process that is to fork must have none.

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
  ~ZmqContext();  ///< Waits until its sockets have sent what they hold, each for as long as its linger time says.
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;
  void* get() const { return context_; }

 private:
  void* context_;
};

/// One part of a message of ZeroMQ's.
class ZmqPart {
 public:
  ZmqPart() { zmq_msg_init(&part_); }
  explicit ZmqPart(size_t num_bytes);  ///< Not set to anything.
  explicit ZmqPart(std::string_view bytes);
  ~ZmqPart() { zmq_msg_close(&part_); }
  ZmqPart(const ZmqPart&) = delete;
  ZmqPart& operator=(const ZmqPart&) = delete;
  char* data() { return static_cast<char*>(zmq_msg_data(&part_)); }
  std::string_view bytes() { return {data(), zmq_msg_size(&part_)}; }
  bool has_more() { return zmq_msg_more(&part_) != 0; }
  /// Of the connection that it came over; -1 where that is not known.
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
  /// Neither waits. What was sent is not there any more.
  bool receive(ZmqPart& part);
  ZmqSent send(ZmqPart& part, bool more_follows = false);

 private:
  void* socket_;
};

/// What happens to the connections of a socket. Events come in their order.
class ZmqMonitor {
 public:
  struct Event {
    int kind = 0, value = 0;  ///< ZMQ_EVENT_...; for most the descriptor.
  };
  ZmqMonitor(const ZmqContext& context, const ZmqSocket& socket, int kinds);
  /// Before the watched socket. An event that nobody could hear any more would stop libzmq's own thread for ever.
  ~ZmqMonitor() { zmq_socket_monitor(watched_.get(), nullptr, 0); }
  ZmqMonitor(const ZmqMonitor&) = delete;
  std::optional<Event> next();
  const ZmqSocket& socket() const { return socket_; }

 private:
  const ZmqSocket& watched_;
  ZmqSocket socket_;
};

struct ZmqWish {
  const ZmqSocket& socket;
  short events = ZMQ_POLLIN;
};
/// Until one of them is ready or so many seconds have passed; a signal ends it early.
void wait_for_any(std::initializer_list<ZmqWish> wishes, double seconds);

/// What both ends set: keep-alive, heartbeats, time-outs, and bounds of frames and queues.
void set_limits(ZmqSocket& socket, const struct MessageLimits& limits);

// The CURVE keys of both ends, made from the secret that they share: each end knows both pairs, so each can tell that the other has the
// secret, and nobody else can. As text in Z85, 40 characters.

struct MessageKeys {
  std::string server_secret, server_public, client_secret, client_public;
};
/// The same for the same secret. Error(kEnvironment) where it is shorter than kShortestToken, or libzmq was built without CURVE.
MessageKeys message_keys(std::string_view secret);

}  // namespace cohort
