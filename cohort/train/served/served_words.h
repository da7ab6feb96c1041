#pragma once
// What a server of the model and its workers say to each other (train/served/). Text is JSON; tensors travel beside it, packed.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"

namespace cohort {

/// From the server: work of a ticket. The data are weights and buffers of one whole version.
struct WorkOrder {
  int64_t step = 0;
  int share = 0;
  double learning_rate = 0;  ///< For messages.
};

/// From a worker: what came of its ticket. The data are the gradients that there are, then the buffers.
struct WorkDone {
  int64_t step = 0;
  int share = 0;
  double loss = 0;
  std::vector<size_t> missing;  ///< Parameters without a gradient.
  double computing_seconds = 0, waiting_seconds = 0, moving_seconds = 0;
};

Json to_json(const WorkOrder& order);
Json to_json(const WorkDone& done);
/// Error(kBadInput) beginning with `where` for what is none.
WorkOrder work_order_from(const Json& json, const std::string& where);
WorkDone work_done_from(const Json& json, const std::string& where);

}  // namespace cohort
