#include "cohort/world/messages/message_listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

#include "cohort/base/fail.h"
#include "cohort/base/secrets.h"
#include "cohort/base/text/text.h"
#include "cohort/world/job_token.h"

namespace cohort {
namespace {

constexpr int kBacklog = 128;
constexpr char kTcp[] = "tcp://", kLocal[] = "ipc://@";

struct AddressesDeleter {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, AddressesDeleter>;

Addresses resolve(const std::string& host, const std::string& port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  if (const int status = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); status != 0)
    fail(ErrorCode::kEnvironment, "cannot resolve '", printable(host), "': ", ::gai_strerror(status));
  return Addresses(found);
}

int port_of(int socket) {
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &length) != 0) return 0;
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&bound);
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&bound);
  return ntohs(bound.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
}

}  // namespace

std::string tcp_endpoint(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? concat(kTcp, host, ":", port) : concat(kTcp, "[", host, "]:", port);
}

MessageListener::MessageListener(std::string secret, const std::string& address, int port) : secret_(std::move(secret)) {
  if (secret_.size() < kShortestToken)
    fail(ErrorCode::kEnvironment, "nothing listens at ", printable(address), " without a secret of ", kShortestToken, " characters; ",
         token_instructions());
  const Addresses found = resolve(address, std::to_string(port));
  int error = 0;
  for (const addrinfo* at = found.get(); at; at = at->ai_next) {
    UniqueDescriptor socket(::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol));
    const int yes = 1;
    // A restarted server gets its port although connections of the previous one linger.
    if (socket) ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (socket && ::bind(socket.get(), at->ai_addr, at->ai_addrlen) == 0 && ::listen(socket.get(), kBacklog) == 0) {
      socket_ = std::move(socket);
      endpoint_ = tcp_endpoint(address, port_of(socket_.get()));
      return;
    }
    error = errno;
  }
  fail(ErrorCode::kEnvironment, "cannot listen at ", tcp_endpoint(address, port), ": ", std::strerror(error));
}

MessageListener MessageListener::for_forks() {
  MessageListener listener;
  const std::string name = "cohort-" + hexadecimal(secret_bytes(8));
  listener.secret_ = hexadecimal(secret_bytes(16));
  listener.endpoint_ = kLocal + name;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // After a 0 byte: an abstract name, which vanishes with the socket.
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  listener.socket_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.socket_ || ::bind(listener.socket_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(listener.socket_.get(), kBacklog) != 0)
    fail(ErrorCode::kEnvironment, "cannot listen for processes of this host: ", std::strerror(errno));
  return listener;
}

std::vector<std::string> resolved_endpoints(const std::string& endpoint) {
  if (endpoint.starts_with(kLocal)) return {endpoint};
  const size_t colon = endpoint.rfind(':');
  const std::string port = colon == std::string::npos ? "" : endpoint.substr(colon + 1);
  const auto number = parse_integer(port);
  if (!endpoint.starts_with(kTcp) || colon < sizeof kTcp || !number || *number < 1 || *number > 65535)
    fail(ErrorCode::kBadInput, "'", printable(endpoint), "' is an invalid server address: expected tcp://HOST:PORT");
  std::string host = endpoint.substr(sizeof kTcp - 1, colon - (sizeof kTcp - 1));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  std::vector<std::string> all;
  const Addresses found = resolve(host, port);
  for (const addrinfo* at = found.get(); at; at = at->ai_next) {
    char text[NI_MAXHOST];
    if (::getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
      all.push_back(tcp_endpoint(text, static_cast<int>(*number)));
  }
  if (all.empty()) fail(ErrorCode::kEnvironment, "'", printable(host), "' has no address");
  return all;
}

bool is_of_this_host(const std::string& resolved_endpoint) {
  return resolved_endpoint.starts_with(kLocal) || resolved_endpoint.starts_with("tcp://127.") ||
         resolved_endpoint.starts_with("tcp://[::1]:");
}

}  // namespace cohort
