#include "cohort/async/served/served_words.h"

#include <cmath>
#include <limits>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

[[noreturn]] void refuse(const std::string& where, const char* key) { fail(ErrorCode::kBadInput, where, ": no ", key); }

int64_t count_of(const Json& json, const char* key, const std::string& where, int64_t most = std::numeric_limits<int64_t>::max()) {
  const Json value = json.is_object() ? json.value(key, Json()) : Json();
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > most) refuse(where, key);
  return value.get<int64_t>();
}

double number_of(const Json& json, const char* key, const std::string& where) {
  const Json value = json.is_object() ? json.value(key, Json()) : Json();
  if (!value.is_number() || !std::isfinite(value.get<double>())) refuse(where, key);
  return value.get<double>();
}

std::string text_of(const Json& json, const char* key, const std::string& where) {
  const Json value = json.is_object() ? json.value(key, Json()) : Json();
  if (!value.is_string()) refuse(where, key);
  return value.get<std::string>();
}

std::vector<size_t> missing_of(const Json& json, const std::string& where) {
  const Json missing = json.is_object() ? json.value("missing", Json()) : Json();
  if (!missing.is_array()) refuse(where, "missing");
  std::vector<size_t> out;
  for (const Json& at : missing) {
    if (!at.is_number_unsigned()) refuse(where, "missing");
    out.push_back(at.get<size_t>());
  }
  return out;
}

}  // namespace

Json to_json(const Joining& joining) {
  return Json{
      {"do", "join"}, {"configuration", joining.configuration}, {"fingerprint", joining.fingerprint}, {"num_shares", joining.num_shares}};
}

Json to_json(const Numbered& numbered) { return Json{{"do", "be"}, {"worker", numbered.worker}}; }

Json to_json(const Welcome& welcome) { return Json{{"do", "meet"}, {"slot", welcome.slot}}; }

Json to_json(const WorkOrder& order) {
  return Json{{"do", "work"}, {"step", order.step}, {"share", order.share}, {"learning_rate", order.learning_rate}};
}

Json to_json(const WorkDone& done) {
  return Json{{"is", "done"},
              {"step", done.step},
              {"share", done.share},
              {"loss", done.loss},
              {"missing", done.missing},
              {"computing_seconds", done.computing_seconds},
              {"waiting_seconds", done.waiting_seconds},
              {"moving_seconds", done.moving_seconds},
              {"pushing_seconds", done.pushing_seconds}};
}

Joining joining_from(const Json& json, const std::string& where) {
  return {.configuration = text_of(json, "configuration", where),
          .fingerprint = text_of(json, "fingerprint", where),
          .num_shares = static_cast<int>(count_of(json, "num_shares", where, std::numeric_limits<int>::max()))};
}

Numbered numbered_from(const Json& json, const std::string& where) {
  return {static_cast<int>(count_of(json, "worker", where, std::numeric_limits<int>::max()))};
}

Welcome welcome_from(const Json& json, const std::string& where) { return {text_of(json, "slot", where)}; }

WorkOrder work_order_from(const Json& json, const std::string& where) {
  return {.step = count_of(json, "step", where),
          .share = static_cast<int>(count_of(json, "share", where, std::numeric_limits<int>::max())),
          .learning_rate = number_of(json, "learning_rate", where)};
}

WorkDone work_done_from(const Json& json, const std::string& where) {
  return {.step = count_of(json, "step", where),
          .share = static_cast<int>(count_of(json, "share", where, std::numeric_limits<int>::max())),
          .loss = number_of(json, "loss", where),
          .missing = missing_of(json, where),
          .computing_seconds = number_of(json, "computing_seconds", where),
          .waiting_seconds = number_of(json, "waiting_seconds", where),
          .moving_seconds = number_of(json, "moving_seconds", where),
          .pushing_seconds = number_of(json, "pushing_seconds", where)};
}

std::string error_from(const Json& json) {
  const Json error = json.is_object() ? json.value("error", Json()) : Json();
  return error.is_string() ? printable(error.get<std::string>()) : "";
}

ErrorCode code_from(const Json& json) {
  const Json code = json.is_object() ? json.value("code", Json()) : Json();
  return code == static_cast<int>(ErrorCode::kFailed) ? ErrorCode::kFailed : ErrorCode::kEnvironment;
}

}  // namespace cohort
