#pragma once
// What a server of the model and its workers say to each other (train/served/). Text is JSON; tensors travel beside it, packed.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/base/error.h"
#include "cohort/base/text/json_fwd.h"

namespace cohort {

/// From the server, to one that wants to join: what it joins. It says then that it has all of that, and is told its number.
struct Joining {
  std::string configuration;  ///< TOML.
  std::string fingerprint;    ///< Of the data: data/fingerprint.h.
  int num_shares = 1;         ///< That a step is cut into.
};

/// From the server, to one that has all that it joins with.
struct Numbered {
  int worker = 0;  ///< From now on.
};

/// Where a further server of the model is to be met (part_server.h).
struct ServerPlace {
  std::string endpoint, secret;
};

/// From a server, to a worker that said who it is.
struct Welcome {
  std::string slot;                  ///< Where the two can share memory (worker_slot.h); "": nowhere.
  std::string weights;               ///< WorkerSide::share().
  std::vector<ServerPlace> servers;  ///< From server 1 on: where a worker comes to as well before it is free.
};

/// From the server: work of a ticket. The data are what AsyncMode::served() has of one whole version, unless that is in the slot.
struct WorkOrder {
  int64_t step = 0;
  int share = 0;
  double learning_rate = 0;  ///< For messages.
  bool dropped = false;      ///< The worker's push before was not applied.
  int64_t order = 0;         ///< Counts orders: what several servers send and get for one of them has its number.
};

/// From a further server: its part of the version that an order of rank 0's is for. The data are its tensors, unless they are in the slot.
struct PartOfVersion {
  int64_t order = 0;
  bool in_slot = false;
};

/// From a worker to a further server: its tensors of what came of an order, unless they are in the slot.
struct PartOfPush {
  int64_t order = 0;
  bool in_slot = false;
  std::vector<size_t> missing;  ///< As WorkDone::missing, of its tensors.
};

/// From rank 0 to the further servers: what it does to its own part they do to theirs, in the same order.
struct PartOrder {
  enum class What { kServe, kApply, kForget, kShow, kEnd };
  What what = What::kEnd;
  int worker = 0;
  int64_t order = 0;                            ///< Of kShow: a number of the caller's.
  int64_t num_samples = 0, global_samples = 0;  ///< Of its ticket, and of the step.
  double learning_rate = 0, clip_norm = 0;
  double squares = -1;  ///< HandedOver::squares.
};

/// From a worker: what came of its ticket. The data are what WorkerSide::hand_over() made, but for what is missing, unless that is in the
/// slot.
struct WorkDone {
  int64_t step = 0;
  int share = 0;
  double loss = 0;
  double squares = -1;          ///< HandedOver::squares.
  std::vector<size_t> missing;  ///< Tensors that there are none of: of parameters without a gradient.
  double computing_seconds = 0, waiting_seconds = 0, moving_seconds = 0;
  double pushing_seconds = 0;  ///< Of moving: the result of this ticket, and sending that of the one before.
};

Json to_json(const Joining& joining);
Json to_json(const Numbered& numbered);
Json to_json(const Welcome& welcome);
Json to_json(const WorkOrder& order);
Json to_json(const WorkDone& done);
Json to_json(const PartOfVersion& part);
Json to_json(const PartOfPush& part);
Json to_json(const PartOrder& order);
/// Error(kBadInput) beginning with `where` for what is none.
Joining joining_from(const Json& json, const std::string& where);
Numbered numbered_from(const Json& json, const std::string& where);
Welcome welcome_from(const Json& json, const std::string& where);
WorkOrder work_order_from(const Json& json, const std::string& where);
WorkDone work_done_from(const Json& json, const std::string& where);
PartOfVersion part_of_version_from(const Json& json, const std::string& where);
PartOfPush part_of_push_from(const Json& json, const std::string& where);
PartOrder part_order_from(const Json& json, const std::string& where);
int64_t order_from(const Json& json, const std::string& where);
/// Which of the servers 1 to `most` it is.
int server_from(const Json& json, const std::string& where, size_t most);
/// Fit to be shown; "" where there is none.
std::string error_from(const Json& json);
/// kFailed where it says that it is the training that failed, else kEnvironment: the one that says so did.
ErrorCode code_from(const Json& json);

}  // namespace cohort
