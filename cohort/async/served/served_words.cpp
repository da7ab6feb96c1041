#include "cohort/async/served/served_words.h"

#include <limits>

#include "cohort/base/text/json_fields.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr int64_t kMostShares = std::numeric_limits<int>::max();
constexpr size_t kMostTensors = size_t{1} << 24;

int int_of(const JsonFields& fields, const char* key) { return static_cast<int>(fields.natural(key, kMostShares)); }

std::vector<size_t> missing_of(const JsonFields& fields) {
  std::vector<size_t> out;
  for (const int64_t at : fields.naturals("missing", kMostTensors)) out.push_back(static_cast<size_t>(at));
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
  const JsonFields fields(json, where);
  return {
      .configuration = fields.text("configuration"), .fingerprint = fields.text("fingerprint"), .num_shares = int_of(fields, "num_shares")};
}

Numbered numbered_from(const Json& json, const std::string& where) { return {int_of(JsonFields(json, where), "worker")}; }

Welcome welcome_from(const Json& json, const std::string& where) { return {JsonFields(json, where).text("slot")}; }

WorkOrder work_order_from(const Json& json, const std::string& where) {
  const JsonFields fields(json, where);
  return {.step = fields.natural("step"), .share = int_of(fields, "share"), .learning_rate = fields.number("learning_rate")};
}

WorkDone work_done_from(const Json& json, const std::string& where) {
  const JsonFields fields(json, where);
  return {.step = fields.natural("step"),
          .share = int_of(fields, "share"),
          .loss = fields.number("loss"),
          .missing = missing_of(fields),
          .computing_seconds = fields.number("computing_seconds"),
          .waiting_seconds = fields.number("waiting_seconds"),
          .moving_seconds = fields.number("moving_seconds"),
          .pushing_seconds = fields.number("pushing_seconds")};
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
