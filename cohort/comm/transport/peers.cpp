#include "cohort/comm/transport/peers.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <numeric>
#include <thread>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/transport/calls.h"
#include "cohort/world/process.h"

namespace cohort {
namespace {

constexpr char kLoopback[] = "127.0.0.1";

std::string name_space(const char* kind) {
  char target[64] = {};
  const ssize_t length = ::readlink(concat("/proc/self/ns/", kind).c_str(), target, sizeof target - 1);
  return length > 0 ? std::string(target, static_cast<size_t>(length)) : "";
}

std::string this_machine() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return boot + "/" + name_space("net") + "/" + name_space("pid");
}

/// An address that other hosts may reach as text, else "".
std::string text_of(const ifaddrs& at) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (!at.ifa_addr || (at.ifa_flags & IFF_LOOPBACK) || !(at.ifa_flags & IFF_UP)) return "";
  if (at.ifa_addr->sa_family == AF_INET)
    return ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(at.ifa_addr)->sin_addr, text.data(), text.size());
  if (at.ifa_addr->sa_family != AF_INET6) return "";
  const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(at.ifa_addr)->sin6_addr;
  return IN6_IS_ADDR_LINKLOCAL(&address) ? "" : ::inet_ntop(AF_INET6, &address, text.data(), text.size());
}

/// COHORT_ADDRESS, or this host's first address that is not a loopback one, IPv4 before IPv6.
std::string this_address() {
  if (const char* given = std::getenv("COHORT_ADDRESS")) return given;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return kLoopback;
  std::string four, six;
  for (const ifaddrs* at = list; at; at = at->ifa_next)
    if (const std::string text = text_of(*at); !text.empty())
      if (std::string& first = text.find(':') == std::string::npos ? four : six; first.empty()) first = text;
  ::freeifaddrs(list);
  return !four.empty() ? four : !six.empty() ? six : kLoopback;
}

std::string key_of(int rank) { return concat("cohort/peer/", rank); }

}  // namespace

Peers Peers::exchange(c10d::Store& store, int rank, int size) {
  const std::string mine = this_machine() + "\n" + this_address() + "\n" + std::to_string(::getpid());
  store.set(key_of(rank), std::vector<uint8_t>(mine.begin(), mine.end()));
  Peers peers;
  for (int peer = 0; peer < size; ++peer) {
    const std::vector<uint8_t> bytes = store.get(key_of(peer));
    const std::vector<std::string> lines = split(std::string(bytes.begin(), bytes.end()), '\n');
    const auto pid = lines.size() == 3 ? parse_integer(lines[2]) : std::nullopt;
    if (!pid)
      fail(ErrorCode::kEnvironment, "rank ", peer,
           " left a record in the store that is not one of Cohort's; is another job using this store?");
    peers.peers_.push_back({lines[0], lines[1], static_cast<int>(*pid)});
  }
  // Process name spaces may differ on one host, where the loopback address works.
  const auto network_of = [](const Peer& peer) { return peer.machine.substr(0, peer.machine.rfind('/')); };
  for (int peer = 0; peer < size; ++peer)
    if (peers.peers_[peer].address == kLoopback && network_of(peers.peers_[peer]) != network_of(peers.peers_[peer == 0 ? size - 1 : 0]))
      fail(ErrorCode::kEnvironment, "the host of rank ", peer, " has no address that others could reach; set COHORT_ADDRESS there");
  return peers;
}

std::string Peers::state_of(int peer, int rank) const {
  if (peer == rank || peers_[peer].machine != peers_[rank].machine || peers_[peer].pid == peers_[rank].pid) return "";
  const char state = process_state(peers_[peer].pid);
  return state == 'X' || state == 'Z' ? "has ended" : state == 'T' || state == 't' ? "is stopped" : "";
}

std::string Peers::name_of(int peer) const {
  const bool known = peer < static_cast<int>(peers_.size());
  return known ? concat("rank ", peer, " (pid ", peers_[peer].pid, ")") : concat("rank ", peer);
}

std::string Peers::describe_missing(int rank) const {
  for (int attempt = 0; attempt < 10; ++attempt) {
    std::vector<std::string> missing;
    for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer)
      if (const std::string state = state_of(peer, rank); !state.empty()) missing.push_back(name_of(peer) + " " + state);
    if (!missing.empty()) return join(missing, ", ");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return "";
}

std::vector<int> Peers::on_machine_of(int rank) const {
  std::vector<int> ranks;
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer)
    if (peers_[peer].machine == peers_[rank].machine) ranks.push_back(peer);
  return ranks;
}

Peers Peers::subset(const std::vector<int>& ranks) const {
  Peers subset;
  for (const int rank : ranks) subset.peers_.push_back(peers_[rank]);
  return subset;
}

bool Peers::on_one_machine() const {
  return std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) { return peer.machine == peers_.front().machine; });
}

std::vector<int> Peers::pids() const {
  std::vector<int> pids;
  for (const Peer& peer : peers_) pids.push_back(peer.pid);
  return pids;
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::string Peers::address_to_bind(int rank) const { return on_one_machine() ? kLoopback : peers_[rank].address; }

HostMap::HostMap(const std::vector<int>& host_of_rank) {
  std::map<int, int> number_of;
  for (const int given : host_of_rank) {
    const int host = number_of.try_emplace(given, num_hosts()).first->second;
    if (host == num_hosts()) ranks_of_.emplace_back();
    std::vector<int>& ranks = ranks_of_[static_cast<size_t>(host)];
    place_of_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(num_ranks());
    host_of_.push_back(host);
  }
}

bool HostMap::even() const {
  return std::all_of(ranks_of_.begin(), ranks_of_.end(), [this](const auto& ranks) { return ranks.size() == ranks_of_.front().size(); });
}

std::vector<HostMap::Run> HostMap::runs_of(int host) const {
  std::vector<Run> runs;
  for (const int rank : ranks_of(host)) {
    if (!runs.empty() && runs.back().first + runs.back().count == rank) {
      ++runs.back().count;
    } else {
      runs.push_back({rank, 1});
    }
  }
  return runs;
}

std::string HostMap::name_of(int host) const { return concat("host ", host, " (", describe_ranks(ranks_of(host)), ")"); }

}  // namespace cohort
