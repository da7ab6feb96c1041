#pragma once
// Where a MessageServer is to be met. Only a socket and a secret, no thread: it may be made before a fork.

#include <string>
#include <string_view>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/base/files/file.h"

namespace cohort {

class COHORT_PROGRAM_API MessageListener {
 public:
  /// A port of `address` (a name or a number of this host), a free one for 0: nothing listens on another address. `secret` is shared with
  /// those who are to come, kShortestToken characters or more. Error(kEnvironment).
  explicit MessageListener(std::string secret, const std::string& address = "127.0.0.1", int port = 0);
  /// For processes that this one will fork, and its own threads: neither a port nor a name of the file system, and a secret of its own.
  static MessageListener for_forks();
  ~MessageListener();
  MessageListener(MessageListener&&) noexcept;
  MessageListener& operator=(MessageListener&&) noexcept;

  /// "tcp://ADDRESS:PORT", or "ipc://@NAME" for for_forks().
  const std::string& endpoint() const { return endpoint_; }
  const std::string& secret() const { return secret_; }
  int descriptor() const { return socket_.get(); }
  /// In a process that does not serve: what the others connect to is the server alone.
  void close();

 private:
  MessageListener();
  UniqueDescriptor socket_;
  std::string endpoint_, secret_;
};

/// "tcp://HOST:PORT", with brackets around an IPv6 address.
std::string tcp_endpoint(const std::string& host, int port);
/// Endpoints with numbers in place of names, in the order to try them. Error(kBadInput) for what is no endpoint, Error(kEnvironment) for a
/// name that is not known.
std::vector<std::string> resolved_endpoints(const std::string& endpoint);
/// Of this host alone: its loopback device, or no network at all.
bool is_of_this_host(const std::string& resolved_endpoint);

}  // namespace cohort
