#pragma once
// Gloo as a network: messages over its TCP connections. The operations are NetworkTransport's.
//
// What Gloo gives: a connection between each two ranks, one thread that serves them, and messages that wait for the receive with the same
// 64-bit slot. Its trap: a message longer than the receive that it meets ends the process. So the slot of a point-to-point message holds
// its size beside its tag, all 64 bits: messages of another size never meet, and the time-out says so. Collective messages have compared
// their sizes before (calls.h).
//
// A time-out or a lost rank closes all connections of the group: Gloo cannot take a message back.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <string>

#include "cohort/comm/net/network_transport.h"

namespace cohort {

/// Connects `size` ranks that meet over `store`. `address`: see make_gloo(). `group` names the group in messages. Collective.
/// Error(kEnvironment) or std::runtime_error when a rank does not come within the time-out, which also bounds every later wait.
/// A tag of its messages is 0 to 2^20 - 1, a message at most 2^35 bytes long.
std::unique_ptr<NetworkTransport> make_gloo_transport(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const std::string& address,
                                                      double timeout_seconds, const std::string& group = "the group");

}  // namespace cohort
