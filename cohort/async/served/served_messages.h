#pragma once
// Messages between the parameter server and its workers: JSON text, with tensors packed beside it. The type of a message stands under "is"
// (from a worker) or "do" (from the server). Types and keys are the protocol's own words, such as "free" for an idle worker.
// Include this in .cpp files.

#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cohort/base/text/json_fields.h"

namespace cohort {

// ---- from a worker ----

/// A process asks what it would join.
struct JoinQuery {
  static constexpr const char *kKey = "is", *kType = "joins";
  static constexpr auto fields() { return std::make_tuple(); }
};

/// It has all that it needs and asks for a worker number.
struct JoinReady {
  static constexpr const char *kKey = "is", *kType = "ready";
  static constexpr auto fields() { return std::make_tuple(); }
};

/// First message of a worker on each connection.
struct Hello {
  static constexpr const char *kKey = "is", *kType = "here";
  int worker = 0;
  std::string configuration;  ///< TOML; must equal the server's.
  static constexpr auto fields() {
    return std::make_tuple(std::pair("worker", &Hello::worker), std::pair("configuration", &Hello::configuration));
  }
};

struct WorkRequest {
  static constexpr const char *kKey = "is", *kType = "free";
  bool has_slot = false;  ///< Its tensors go through the shared memory of Welcome.
  static constexpr auto fields() { return std::make_tuple(std::pair("slot", &WorkRequest::has_slot)); }
};

/// A push. The data are the tensors of AsyncWorker::make_push() that are not missing, unless they are in the slot.
struct WorkDone {
  static constexpr const char *kKey = "is", *kType = "done";
  int64_t step = 0;
  int share = 0;
  double loss = 0;
  std::vector<size_t> missing;  ///< Undefined tensors, of parameters without a gradient.
  double computing_seconds = 0, waiting_seconds = 0, moving_seconds = 0;
  double pushing_seconds = 0;  ///< Part of moving_seconds: copying this result, and sending the previous one.
  static constexpr auto fields() {
    return std::make_tuple(std::pair("step", &WorkDone::step), std::pair("share", &WorkDone::share), std::pair("loss", &WorkDone::loss),
                           std::pair("missing", &WorkDone::missing), std::pair("computing_seconds", &WorkDone::computing_seconds),
                           std::pair("waiting_seconds", &WorkDone::waiting_seconds), std::pair("moving_seconds", &WorkDone::moving_seconds),
                           std::pair("pushing_seconds", &WorkDone::pushing_seconds));
  }
};

struct WorkerFailure {
  static constexpr const char *kKey = "is", *kType = "failed";
  int code = 0;  ///< ErrorCode. kFailed: the training itself failed, such as by a loss that is not finite.
  std::string error;
  static constexpr auto fields() {
    return std::make_tuple(std::pair("code", &WorkerFailure::code), std::pair("error", &WorkerFailure::error));
  }
};

/// The worker wants to leave after its current work item.
struct LeaveRequest {
  static constexpr const char *kKey = "is", *kType = "leaving";
  static constexpr auto fields() { return std::make_tuple(); }
};

// ---- from the server ----

/// Answer to JoinQuery.
struct JoinInfo {
  static constexpr const char *kKey = "do", *kType = "join";
  std::string configuration;  ///< TOML.
  std::string fingerprint;    ///< Of the data: data/source/fingerprint.h.
  int num_shares = 1;         ///< Into which a step is cut.
  static constexpr auto fields() {
    return std::make_tuple(std::pair("configuration", &JoinInfo::configuration), std::pair("fingerprint", &JoinInfo::fingerprint),
                           std::pair("num_shares", &JoinInfo::num_shares));
  }
};

/// Answer to JoinReady.
struct WorkerNumber {
  static constexpr const char *kKey = "do", *kType = "be";
  int worker = 0;
  static constexpr auto fields() { return std::make_tuple(std::pair("worker", &WorkerNumber::worker)); }
};

/// Answer to Hello.
struct Welcome {
  static constexpr const char *kKey = "do", *kType = "meet";
  std::string slot;  ///< Address of shared memory for the two (packed_tensors.h); "" if there is none.
  static constexpr auto fields() { return std::make_tuple(std::pair("slot", &Welcome::slot)); }
};

/// A work item. The data are AsyncMode::served_tensors() of one complete version, unless they are in the slot.
struct WorkOrder {
  static constexpr const char *kKey = "do", *kType = "work";
  int64_t step = 0;
  int share = 0;
  double learning_rate = 0;
  static constexpr auto fields() {
    return std::make_tuple(std::pair("step", &WorkOrder::step), std::pair("share", &WorkOrder::share),
                           std::pair("learning_rate", &WorkOrder::learning_rate));
  }
};

/// The training is over.
struct TrainingEnd {
  static constexpr const char *kKey = "do", *kType = "end";
  std::string error;  ///< "" for one that was completed.
  static constexpr auto fields() { return std::make_tuple(std::pair("error", &TrainingEnd::error)); }
};

// ---- to and from JSON ----

inline void read_field(const JsonFields& fields, const char* key, int64_t& value) { value = fields.natural(key); }
inline void read_field(const JsonFields& fields, const char* key, double& value) { value = fields.number(key); }
inline void read_field(const JsonFields& fields, const char* key, bool& value) { value = fields.flag(key); }
inline void read_field(const JsonFields& fields, const char* key, std::string& value) { value = fields.text(key); }
inline void read_field(const JsonFields& fields, const char* key, int& value) {
  value = static_cast<int>(fields.natural(key, std::numeric_limits<int>::max()));
}
inline void read_field(const JsonFields& fields, const char* key, std::vector<size_t>& value) {
  constexpr size_t kMaxTensors = size_t{1} << 24;
  for (const int64_t number : fields.naturals(key, kMaxTensors)) value.push_back(static_cast<size_t>(number));
}

/// The text of a message of one of the types above.
template <typename Message>
std::string encode(const Message& message) {
  Json json{{Message::kKey, Message::kType}};
  std::apply([&](const auto&... field) { ((json[field.first] = message.*field.second), ...); }, Message::fields());
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Error(kBadInput) beginning with `where` for a missing or invalid member.
template <typename Message>
Message decode(const Json& json, const std::string& where) {
  const JsonFields fields(json, where);
  Message message;
  std::apply([&](const auto&... field) { (read_field(fields, field.first, message.*field.second), ...); }, Message::fields());
  return message;
}

/// The type of a message, under `key`; "" if it has none.
inline std::string message_type(const Json& json, const char* key) {
  const Json type = json.is_object() ? json.value(key, Json()) : Json();
  return type.is_string() ? type.get<std::string>() : "";
}

template <typename Message>
bool is_message(const Json& json) {
  return message_type(json, Message::kKey) == Message::kType;
}

}  // namespace cohort
