// TCP links of message_link.h: rank 0 listens on one address, and whoever connects shows the token that the job's store gave it.

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/secrets.h"
#include "cohort/base/text/text.h"
#include "cohort/world/message_link.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kGreetingSeconds = 10;  ///< For the token of whoever connected.
constexpr size_t kGreetingBytes = 256;
constexpr size_t kMaxStrangers = 4096;  ///< Connections at a time that have not shown the token.

struct AddressesDeleter {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, AddressesDeleter>;

Addresses resolve(const std::string& address, const std::string& port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  if (const int status = ::getaddrinfo(address.c_str(), port.c_str(), &hints, &found); status != 0)
    fail(ErrorCode::kEnvironment, "cannot resolve '", address, "': ", ::gai_strerror(status));
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

std::string make_token() { return hexadecimal(secret_bytes(16)); }

/// Sends at once. A host that is cut off sends no end of the connection: when its kernel has answered nothing for so long, neither data nor
/// the probes of an idle link, the peer is gone.
void prepare(int socket, double silence_seconds) {
  const auto set = [&](int level, int name, int value) { ::setsockopt(socket, level, name, &value, sizeof value); };
  const int probe_seconds = static_cast<int>(std::clamp(silence_seconds / 3, 1.0, 3600.0));
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, probe_seconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, probe_seconds);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(std::clamp(silence_seconds * 1e3, 1.0, 1e9)));
}

struct Stranger {
  MessageLink link;
  Clock::time_point since;
};

/// The rank that a greeting "TOKEN RANK" names, or -1.
int greeted_rank(const std::string& greeting, const std::string& token, int num_ranks) {
  const size_t space = greeting.find(' ');
  if (space == std::string::npos || !equal_secrets(greeting.substr(0, space), token)) return -1;
  const auto rank = parse_integer(greeting.substr(space + 1));
  return rank && *rank > 0 && *rank < num_ranks ? static_cast<int>(*rank) : -1;
}

/// Reads what a stranger sent; true when it is done with, welcome or not.
bool greet(Stranger& stranger, const std::string& token, std::vector<MessageLink>& links) {
  try {
    const auto greeting = stranger.link.receive(0);
    if (!greeting) return seconds_since(stranger.since) > kGreetingSeconds;
    const int rank = greeted_rank(*greeting, token, static_cast<int>(links.size()) + 1);
    if (rank < 0 || links[static_cast<size_t>(rank) - 1]) return true;
    stranger.link.trust_as(concat("rank ", rank));
    links[static_cast<size_t>(rank) - 1] = std::move(stranger.link);
  } catch (const Error&) {
    // A scanner of ports, or a rank that died: those who are missing are named in the end.
  }
  return true;
}

}  // namespace

LinkListener::LinkListener(const std::string& address) : address_(address), token_(make_token()) {
  const Addresses found = resolve(address, "0");
  int error = 0;
  for (const addrinfo* at = found.get(); at; at = at->ai_next) {
    UniqueDescriptor socket(::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol));
    if (socket && ::bind(socket.get(), at->ai_addr, at->ai_addrlen) == 0 && ::listen(socket.get(), 1024) == 0) {
      port_ = port_of(socket.get());
      socket_ = std::move(socket);
      return;
    }
    error = errno;
  }
  fail(ErrorCode::kEnvironment, "rank 0 cannot listen on ", address, ": ", std::strerror(error),
       "; set MASTER_ADDR to an address of its host");
}

std::string LinkListener::ticket() const { return concat(address_, " ", port_, " ", token_); }

std::vector<MessageLink> LinkListener::accept_ranks(int num_ranks, double timeout_seconds) {
  std::vector<MessageLink> links(static_cast<size_t>(num_ranks - 1));
  std::vector<Stranger> strangers;
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_seconds);
  const auto missing = [&] {
    std::vector<std::string> ranks;
    for (size_t i = 0; i < links.size(); ++i)
      if (!links[i]) ranks.push_back(std::to_string(i + 1));
    return ranks;
  };
  while (!missing().empty()) {
    if (Clock::now() > deadline)
      fail(ErrorCode::kEnvironment, "rank(s) ", join(missing(), " "), " did not connect to ", address_, ":", port_, " within ",
           timeout_seconds, " s");
    std::vector<pollfd> entries{{socket_.get(), POLLIN, 0}};
    for (const Stranger& stranger : strangers) entries.push_back({stranger.link.descriptor(), POLLIN, 0});
    ::poll(entries.data(), entries.size(), 100);
    while (strangers.size() < kMaxStrangers) {
      UniqueDescriptor socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) break;
      prepare(socket.get(), timeout_seconds);
      strangers.push_back({MessageLink(std::move(socket), "a stranger"), Clock::now()});
      strangers.back().link.limit_message_bytes(kGreetingBytes);
    }
    std::erase_if(strangers, [&](Stranger& stranger) { return greet(stranger, token_, links); });
  }
  socket_.reset();
  return links;
}

MessageLink connect_link(const std::string& ticket, int rank, double timeout_seconds) {
  const std::vector<std::string> parts = split(ticket, ' ');
  if (parts.size() != 3) fail(ErrorCode::kEnvironment, "rank ", rank, " got no address of rank 0 from the job's store");
  const Addresses found = resolve(parts[0], parts[1]);
  const std::string where = parts[0] + ":" + parts[1];
  int error = 0;
  for (const addrinfo* at = found.get(); at; at = at->ai_next) {
    UniqueDescriptor socket(::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol));
    const timeval limit{static_cast<time_t>(timeout_seconds) + 1, 0};
    if (socket) ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (socket && ::connect(socket.get(), at->ai_addr, at->ai_addrlen) == 0) {
      prepare(socket.get(), timeout_seconds);
      MessageLink link(std::move(socket), "rank 0, which holds the study,");
      link.send(concat(parts[2], " ", rank), timeout_seconds);
      return link;
    }
    error = errno;
  }
  fail(ErrorCode::kEnvironment, "rank ", rank, " cannot connect to rank 0 at ", where, ": ", std::strerror(error));
}

}  // namespace cohort
