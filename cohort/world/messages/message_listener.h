#pragma once
// The address of a MessageServer: a listening socket and a secret, no thread, so it may be made before a fork.

#include <string>
#include <string_view>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/base/files/file.h"

namespace cohort {

class COHORT_PROGRAM_API MessageListener {
 public:
  /// Listens at `address` (a name or number of this host) only, at a free port for 0. `secret`, of kShortestToken characters or more, is
  /// shared with the clients. Error(kEnvironment).
  explicit MessageListener(std::string secret, const std::string& address = "127.0.0.1", int port = 0);
  /// For processes that this one will fork, and its own threads: an abstract socket without port or file, with a random secret.
  static MessageListener for_forks();

  /// "tcp://ADDRESS:PORT", or "ipc://@NAME" for for_forks().
  const std::string& endpoint() const { return endpoint_; }
  const std::string& secret() const { return secret_; }
  int descriptor() const { return socket_.get(); }
  /// For processes that do not serve.
  void close() { socket_.reset(); }

 private:
  MessageListener() = default;
  UniqueDescriptor socket_;
  std::string endpoint_, secret_;
};

/// "tcp://HOST:PORT", with brackets around an IPv6 address.
std::string tcp_endpoint(const std::string& host, int port);
/// The endpoint with numeric addresses in place of a name, in the order to try them. Error(kBadInput) for an invalid endpoint,
/// Error(kEnvironment) for an unknown name.
std::vector<std::string> resolved_endpoints(const std::string& endpoint);
/// Reachable from this host only: the loopback device, or an abstract socket.
bool is_of_this_host(const std::string& resolved_endpoint);

}  // namespace cohort
