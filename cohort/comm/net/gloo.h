#pragma once
// Gloo from pure C++: c10d over it, and its TCP connections as a network. Gloo's declarations come from Debian's libgloo-dev, its code from
// LibTorch: gloo.cpp is the only file that sees a Gloo type.

#include <signal.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "cohort/base/export.h"
#include "cohort/comm/net/network_transport.h"

namespace cohort {

/// A Gloo backend for `size` ranks that meet over `store`, connected and tested. `address` is the local address to talk from: "127.0.0.1"
/// for ranks on one host. Collective. Error(kEnvironment) when a rank does not come within the time-out.
///
/// The first call in a process runs a self-test: a mismatch between the declarations and the code inside LibTorch (both change with
/// versions) ends the process with exit code 4 and one line that says so, instead of a crash later.
COHORT_PROGRAM_API c10::intrusive_ptr<c10d::Backend> make_gloo(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                               const std::string& address, double timeout_seconds);

/// What an exception of c10d says: without its stack trace and without what Gloo advises, which is for readers of Gloo's source.
std::string without_advice(std::string_view what);

// Gloo as a network: messages over its TCP connections. The operations are NetworkTransport's.
//
// What Gloo gives: a connection between each two ranks, one thread that serves them, and messages that wait for the receive with the same
// 64-bit slot. Its trap: a message longer than the receive that it meets ends the process. So the slot of a point-to-point message holds
// its size beside its tag, all 64 bits: messages of another size never meet, and the time-out says so. Collective messages have compared
// their sizes before (calls.h).
//
// A time-out or a lost rank closes all connections of the group: Gloo cannot take a message back.

/// Connects `size` ranks that meet over `store`. `address`: see make_gloo(). `group` names the group in messages. Collective.
/// Error(kEnvironment) or std::runtime_error when a rank does not come within the time-out, which also bounds every later wait.
/// A tag of its messages is 0 to 2^20 - 1, a message at most 2^35 bytes long.
std::unique_ptr<NetworkTransport> make_gloo_transport(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const std::string& address,
                                                      double timeout_seconds, const std::string& group = "the group");

/// Turns a crash inside foreign code into one line: while it lives, SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT of this process write
/// `line` (which must outlive it) to stderr and end the process with exit code 4. Not for several threads at once, not nestable; the
/// handlers before it are restored.
class CrashGuard {
 public:
  explicit CrashGuard(const char* line);
  ~CrashGuard();
  CrashGuard(const CrashGuard&) = delete;

 private:
  static constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
  std::array<struct sigaction, std::size(kSignals)> before_{};
};

}  // namespace cohort
