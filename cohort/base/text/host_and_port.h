#pragma once
// HOST:PORT, as options have it. Torch-free.

#include <string>

namespace cohort {

struct HostAndPort {
  std::string host;
  int port = 0;
};

/// A name, an IPv4 address, or an IPv6 address in brackets; the port from 0 to 65535. Error(kBadInput) beginning with `option`.
HostAndPort parse_host_and_port(const std::string& text, const std::string& option);

}  // namespace cohort
