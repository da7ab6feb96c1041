#pragma once
// Where the ranks of a job meet one that serves them (world/messages/), rank 0 most often: over the job's store.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <optional>
#include <string>

#include "cohort/world/messages/message_listener.h"
#include "cohort/world/world.h"

namespace cohort {

struct ServerMeeting {
  std::optional<MessageListener> listener;  ///< The serving rank's alone.
  std::string endpoint, secret;
};

/// Of a listener that all ranks know of already, or that is for this process alone.
ServerMeeting meet_here(MessageListener listener);
/// The serving rank listens and says in the store under `key` where; the store keeps the secret, too, where the job has none of its own
/// (job_token.h): all ranks are on one host then. Where they are this program's own, or there is one rank, no port is opened.
/// `own` (the serving rank's; null for none): a listener that others are to find as well, with the job's own secret. Error(kEnvironment)
/// where that rank says nothing in time.
ServerMeeting meet_server(const World& world, c10d::Store& store, const std::string& key, double timeout_seconds,
                          std::optional<MessageListener> own = std::nullopt, int serving_rank = 0);

/// This host's address, as others reach it that this rank talks to at the job's address. Error(kEnvironment) where there is no way there.
std::string address_of_this_host(const World& world);

}  // namespace cohort
