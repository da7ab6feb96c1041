#pragma once
// Where the ranks of a job meet the one that serves them (world/messages/), rank 0: over the job's store.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <optional>
#include <string>

#include "cohort/world/messages/message_listener.h"
#include "cohort/world/world.h"

namespace cohort {

struct ServerMeeting {
  std::optional<MessageListener> listener;  ///< Rank 0's alone.
  std::string endpoint, secret;
};

/// Of a listener that all ranks know of already, or that is for this process alone.
ServerMeeting meet_here(MessageListener listener);
/// Rank 0 listens and says in the store under `key` where; the store keeps the secret, too, where the job has none of its own
/// (job_token.h): all ranks are on one host then. Where they are this program's own, or there is one rank, no port is opened.
/// `own` (rank 0's; null for none): a listener that others are to find as well, with the job's own secret. Error(kEnvironment) where rank 0
/// says nothing in time.
ServerMeeting meet_server(const World& world, c10d::Store& store, const std::string& key, double timeout_seconds,
                          std::optional<MessageListener> own = std::nullopt);

}  // namespace cohort
