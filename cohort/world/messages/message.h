#pragma once
// What processes of one job say to each other: message_listener.h, message_server.h, message_client.h. Torch-free.

#include <cstddef>
#include <string>

namespace cohort {

struct PeerMessage {
  std::string text;  ///< JSON, say.
  std::string data;  ///< Numbers, say.
  size_t num_bytes() const { return text.size() + data.size(); }
};

/// Both ends of a connection keep to their own.
struct MessageLimits {
  size_t max_message_bytes = size_t{64} << 20;   ///< Of text and data together; more is refused before memory is taken for it.
  size_t max_waiting_bytes = size_t{256} << 20;  ///< Of messages to one peer that does not take them.
  size_t max_peers = 4096;
  size_t max_strangers = 128;     ///< Connections at a time that have not shown the secret; further ones wait in the kernel.
  double handshake_seconds = 10;  ///< For showing it.
  double silence_seconds = 60;    ///< A peer is lost whose host has answered nothing for so long.
  double heartbeat_seconds = 0;   ///< Above 0: a peer is lost, too, whose process answers nothing for three of them, as a stopped one.
  bool encrypts = true;           ///< False measures what encryption costs: nobody has to show the secret. On this host alone.
};

}  // namespace cohort
