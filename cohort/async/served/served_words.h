#pragma once
// What a server of the model and its workers say to each other (async/served/). Text is JSON; tensors travel beside it, packed.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/base/error.h"
#include "cohort/base/text/json_fwd.h"

namespace cohort {

/// What a worker says, under the key "is". The table of words: served_words.cpp.
enum class WorkerWord {
  kJoins,    ///< It wants to know what it would join,
  kReady,    ///< and has all of that.
  kHere,     ///< Which worker it is.
  kFree,     ///< It takes a ticket.
  kDone,     ///< WorkDone.
  kFailed,   ///< error_from(), code_from().
  kLeaving,  ///< It goes between two tickets.
  kNone,     ///< Nothing that is understood.
};

/// What the server says, under the key "do".
enum class ServerWord {
  kJoin,  ///< Joining.
  kBe,    ///< Numbered.
  kMeet,  ///< Welcome.
  kWork,  ///< WorkOrder.
  kEnd,   ///< The training is over; error_from(): why.
  kNone,  ///< Nothing that is understood.
};

WorkerWord worker_word(const Json& said);
ServerWord server_word(const Json& said);
/// The word as it was written, for messages; "" where there is none.
std::string text_of_server_word(const Json& said);

/// From the server, to one that wants to join: what it joins. It says then that it has all of that, and is told its number.
struct Joining {
  std::string configuration;  ///< TOML.
  std::string fingerprint;    ///< Of the data: data/source/fingerprint.h.
  int num_shares = 1;         ///< That a step is cut into.
};

/// From the server, to one that has all that it joins with.
struct Numbered {
  int worker = 0;  ///< From now on.
};

/// From the server, to a worker that said who it is.
struct Welcome {
  std::string slot;  ///< Where the two can share memory (packed_tensors.h); "": nowhere.
};

/// From the server: work of a ticket. The data are what AsyncMode::served() has of one whole version, unless that is in the slot.
struct WorkOrder {
  int64_t step = 0;
  int share = 0;
  double learning_rate = 0;  ///< For messages.
};

/// From a worker: what came of its ticket. The data are what WorkerSide::hand_over() made, but for what is missing, unless that is in the
/// slot.
struct WorkDone {
  int64_t step = 0;
  int share = 0;
  double loss = 0;
  std::vector<size_t> missing;  ///< Tensors that there are none of: of parameters without a gradient.
  double computing_seconds = 0, waiting_seconds = 0, moving_seconds = 0;
  double pushing_seconds = 0;  ///< Of moving: the result of this ticket, and sending that of the one before.
};

Json to_json(const Joining& joining);
Json to_json(const Numbered& numbered);
Json to_json(const Welcome& welcome);
Json to_json(const WorkOrder& order);
Json to_json(const WorkDone& done);
/// A word that says all: kJoins, kReady, kLeaving.
Json to_json(WorkerWord word);
Json here_json(int worker, const std::string& configuration);
/// `has_slot`: its tensors come and go in the slot.
Json free_json(bool has_slot);
bool has_slot_from(const Json& json);
Json failed_json(int code, const std::string& error);
/// `error`: "" where the training came to its end.
Json end_json(const std::string& error);
/// Error(kBadInput) beginning with `where` for what is none.
Joining joining_from(const Json& json, const std::string& where);
Numbered numbered_from(const Json& json, const std::string& where);
Welcome welcome_from(const Json& json, const std::string& where);
WorkOrder work_order_from(const Json& json, const std::string& where);
WorkDone work_done_from(const Json& json, const std::string& where);
std::string end_from(const Json& json, const std::string& where);
/// Fit to be shown; "" where there is none.
std::string error_from(const Json& json);
/// kFailed where it says that it is the training that failed, else kEnvironment: the one that says so did.
ErrorCode code_from(const Json& json);

}  // namespace cohort
