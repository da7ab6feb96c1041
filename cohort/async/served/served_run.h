#pragma once
// Rank 0 of an asynchronous training: a thread that serves the model, and the caller's thread, which is worker 0 and also reports,
// evaluates and saves.

#include <functional>
#include <utility>
#include <vector>

#include "cohort/async/served/model_server.h"
#include "cohort/train/run_setup.h"
#include "cohort/train/train_result.h"
#include "cohort/world/messages/message_client.h"

namespace cohort {

/// Makes a server, and a client connected to it, for messages that carry the given tensors.
using ConnectFunction = std::function<std::pair<MessageServer, MessageClient>(const std::vector<at::Tensor>& tensors)>;

/// Runs `run`, of a world of one rank, from its beginning to its end; sets `options.applied` itself. Error(kBadInput) if a worker would
/// have no samples.
TrainResult serve_run(RunSetup& run, ModelServerOptions options, const ConnectFunction& connect);

}  // namespace cohort
