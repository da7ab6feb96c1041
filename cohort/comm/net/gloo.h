#pragma once
// Gloo from C++: a c10d backend and a network transport over its TCP connections. The declarations come from Debian's libgloo-dev, the code
// from LibTorch: gloo.cpp is the only file with a Gloo type.

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

/// A connected and tested Gloo backend for `size` ranks that meet over `store`. `address` is the local address to connect from: "127.0.0.1"
/// for ranks on one host. Collective. Error(kEnvironment) when a rank does not come within the time-out.
/// The first call in a process runs a self-test: a mismatch between the declarations and the code inside LibTorch ends the process with
/// exit code 4 and one line of explanation, instead of a crash later.
COHORT_PROGRAM_API c10::intrusive_ptr<c10d::Backend> make_gloo(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                               const std::string& address, double timeout_seconds);

/// The text of a c10d exception without its stack trace and Gloo's advice to its developers.
std::string without_advice(std::string_view what);

// Messages over Gloo's TCP connections.
// Gloo gives a connection between each two ranks, a thread that serves them, and messages that wait for the receive with the same 64-bit
// slot. A message longer than its receive ends the process; so the slot of a point-to-point message holds its size beside its tag: messages
// of different sizes never meet, and the time-out reports it. Collective messages have compared their sizes before (calls.h). A time-out or
// a lost rank closes all connections of the group, since Gloo cannot cancel a message.

/// Connects `size` ranks that meet over `store`. `address`: see make_gloo(). `group` names the group in messages. Collective.
/// Error(kEnvironment) or std::runtime_error when a rank does not come within the time-out, which also bounds every later wait.
/// A tag of its messages is 0 to 2^20 - 1, a message at most 2^35 bytes long.
std::unique_ptr<NetworkTransport> make_gloo_transport(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const std::string& address,
                                                      double timeout_seconds, const std::string& group = "the group");

/// Turns a crash inside third-party code into one line: while it lives, SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT write `line` (which
/// must outlive it) to stderr and end the process with exit code 4. Not for several threads, not nestable; restores the previous handlers.
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
