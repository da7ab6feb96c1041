#include "cohort/comm/rendezvous/server_meeting.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/secrets.h"
#include "cohort/base/text/text.h"
#include "cohort/world/job_token.h"

namespace cohort {
namespace {

MessageListener listener_of(const World& world, const std::string& token) {
  if (world.store_fd >= 0 || world.size == 1) return MessageListener::for_forks();
  return MessageListener(token.empty() ? hexadecimal(secret_bytes(16)) : token,
                         world.local_size == world.size ? "127.0.0.1" : world.master_address);
}

}  // namespace

ServerMeeting meet_here(MessageListener listener) {
  const std::string endpoint = listener.endpoint(), secret = listener.secret();
  return {std::move(listener), endpoint, secret};
}

ServerMeeting meet_server(const World& world, c10d::Store& store, const std::string& key, double timeout_seconds,
                          std::optional<MessageListener> own) {
  const std::string token = world.store_fd >= 0 ? "" : job_token();
  if (world.rank == 0) {
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
    fail(ErrorCode::kEnvironment, "rank ", world.rank, " heard nothing from rank 0 within ", timeout_seconds,
         " s: ", first_line(error.what()));
  }
  const std::string text(bytes.begin(), bytes.end());
  const size_t space = text.find(' ');  // A secret may have spaces too.
  if (space == std::string::npos) fail(ErrorCode::kEnvironment, "rank ", world.rank, " got no address of rank 0 from the job's store");
  const std::string secret = text.substr(space + 1);
  return {{}, text.substr(0, space), secret == "-" ? token : secret};
}

}  // namespace cohort
