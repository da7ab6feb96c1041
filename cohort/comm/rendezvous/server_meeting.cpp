#include "cohort/comm/rendezvous/server_meeting.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/secrets.h"
#include "cohort/base/text/text.h"
#include "cohort/world/job_token.h"

namespace cohort {
namespace {

MessageListener listener_of(const World& world, const std::string& token) {
  if (world.store_fd >= 0 || world.size == 1) return MessageListener::for_forks();
  return MessageListener(token.empty() ? hexadecimal(secret_bytes(16)) : token, address_of_this_host(world));
}

}  // namespace

/// A datagram socket that is connected sends nothing, and has the address that datagrams would be sent from.
std::string address_of_this_host(const World& world) {
  if (world.local_size == world.size) return "127.0.0.1";
  if (world.rank == 0) return world.master_address;
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const std::string port = concat(world.master_port > 0 ? world.master_port : 9);
  if (::getaddrinfo(world.master_address.c_str(), port.c_str(), &hints, &found) == 0) {
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
    for (const addrinfo* one = found; one; one = one->ai_next) {
      const UniqueDescriptor socket(::socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      if (socket.get() < 0 || ::connect(socket.get(), one->ai_addr, one->ai_addrlen) != 0) continue;
      sockaddr_storage address{};
      socklen_t length = sizeof address;
      std::array<char, NI_MAXHOST> text{};
      if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
          ::getnameinfo(reinterpret_cast<sockaddr*>(&address), length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0)
        return text.data();
    }
  }
  fail(ErrorCode::kEnvironment, "rank ", world.rank, " has no way to ", world.master_address, ", where the job meets");
}

ServerMeeting meet_here(MessageListener listener) {
  const std::string endpoint = listener.endpoint(), secret = listener.secret();
  return {std::move(listener), endpoint, secret};
}

ServerMeeting meet_server(const World& world, c10d::Store& store, const std::string& key, double timeout_seconds,
                          std::optional<MessageListener> own, int serving_rank) {
  const std::string token = world.store_fd >= 0 ? "" : job_token();
  if (world.rank == serving_rank) {
    ServerMeeting meeting = meet_here(own ? std::move(*own) : listener_of(world, token));
    const std::string text = concat(meeting.endpoint, " ", meeting.secret == token ? "-" : meeting.secret);
    store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
    return meeting;
  }
  std::vector<uint8_t> bytes;
  try {
    bytes = store.get(key);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorCode::kEnvironment, "rank ", world.rank, " heard nothing from rank ", serving_rank, " within ", timeout_seconds,
         " s: ", first_line(error.what()));
  }
  const std::string text(bytes.begin(), bytes.end());
  const size_t space = text.find(' ');  // A secret may have spaces too.
  if (space == std::string::npos)
    fail(ErrorCode::kEnvironment, "rank ", world.rank, " got no address of rank ", serving_rank, " from the job's store");
  const std::string secret = text.substr(space + 1);
  return {{}, text.substr(0, space), secret == "-" ? token : secret};
}

}  // namespace cohort
