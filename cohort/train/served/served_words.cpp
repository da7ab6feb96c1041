#include "cohort/train/served/served_words.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
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

bool flag_of(const Json& json, const char* key, const std::string& where) {
  const Json value = json.is_object() ? json.value(key, Json()) : Json();
  if (!value.is_boolean()) refuse(where, key);
  return value.get<bool>();
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

std::vector<ServerPlace> servers_of(const Json& json, const std::string& where) {
  const Json servers = json.is_object() ? json.value("servers", Json()) : Json();
  if (!servers.is_array()) refuse(where, "servers");
  std::vector<ServerPlace> out;
  for (const Json& one : servers) out.push_back({text_of(one, "endpoint", where), text_of(one, "secret", where)});
  return out;
}

constexpr const char* kPartOrders[] = {"serve", "apply", "forget", "show", "end"};  // As PartOrder::What.

}  // namespace

Json to_json(const Joining& joining) {
  return Json{
      {"do", "join"}, {"configuration", joining.configuration}, {"fingerprint", joining.fingerprint}, {"num_shares", joining.num_shares}};
}

Json to_json(const Numbered& numbered) { return Json{{"do", "be"}, {"worker", numbered.worker}}; }

Json to_json(const Welcome& welcome) {
  Json servers = Json::array();
  for (const ServerPlace& one : welcome.servers) servers.push_back({{"endpoint", one.endpoint}, {"secret", one.secret}});
  return Json{{"do", "meet"}, {"slot", welcome.slot}, {"weights", welcome.weights}, {"servers", servers}};
}

Json to_json(const WorkOrder& order) {
  return Json{{"do", "work"},
              {"step", order.step},
              {"share", order.share},
              {"learning_rate", order.learning_rate},
              {"dropped", order.dropped},
              {"order", order.order}};
}

Json to_json(const WorkDone& done) {
  return Json{{"is", "done"},
              {"step", done.step},
              {"share", done.share},
              {"loss", done.loss},
              {"squares", done.squares},
              {"missing", done.missing},
              {"computing_seconds", done.computing_seconds},
              {"waiting_seconds", done.waiting_seconds},
              {"moving_seconds", done.moving_seconds},
              {"pushing_seconds", done.pushing_seconds}};
}

Json to_json(const PartOfVersion& part) { return Json{{"do", "part"}, {"order", part.order}, {"slot", part.in_slot}}; }

Json to_json(const PartOfPush& part) {
  return Json{{"is", "part"}, {"order", part.order}, {"slot", part.in_slot}, {"missing", part.missing}};
}

Json to_json(const PartOrder& order) {
  return Json{{"do", kPartOrders[static_cast<size_t>(order.what)]},
              {"worker", order.worker},
              {"order", order.order},
              {"num_samples", order.num_samples},
              {"global_samples", order.global_samples},
              {"learning_rate", order.learning_rate},
              {"clip_norm", order.clip_norm},
              {"squares", order.squares}};
}

Joining joining_from(const Json& json, const std::string& where) {
  return {.configuration = text_of(json, "configuration", where),
          .fingerprint = text_of(json, "fingerprint", where),
          .num_shares = static_cast<int>(count_of(json, "num_shares", where, std::numeric_limits<int>::max()))};
}

Numbered numbered_from(const Json& json, const std::string& where) {
  return {static_cast<int>(count_of(json, "worker", where, std::numeric_limits<int>::max()))};
}

Welcome welcome_from(const Json& json, const std::string& where) {
  return {text_of(json, "slot", where), text_of(json, "weights", where), servers_of(json, where)};
}

WorkOrder work_order_from(const Json& json, const std::string& where) {
  return {.step = count_of(json, "step", where),
          .share = static_cast<int>(count_of(json, "share", where, std::numeric_limits<int>::max())),
          .learning_rate = number_of(json, "learning_rate", where),
          .dropped = flag_of(json, "dropped", where),
          .order = order_from(json, where)};
}

WorkDone work_done_from(const Json& json, const std::string& where) {
  return {.step = count_of(json, "step", where),
          .share = static_cast<int>(count_of(json, "share", where, std::numeric_limits<int>::max())),
          .loss = number_of(json, "loss", where),
          .squares = number_of(json, "squares", where),
          .missing = missing_of(json, where),
          .computing_seconds = number_of(json, "computing_seconds", where),
          .waiting_seconds = number_of(json, "waiting_seconds", where),
          .moving_seconds = number_of(json, "moving_seconds", where),
          .pushing_seconds = number_of(json, "pushing_seconds", where)};
}

PartOfVersion part_of_version_from(const Json& json, const std::string& where) {
  return {.order = order_from(json, where), .in_slot = flag_of(json, "slot", where)};
}

PartOfPush part_of_push_from(const Json& json, const std::string& where) {
  return {.order = order_from(json, where), .in_slot = flag_of(json, "slot", where), .missing = missing_of(json, where)};
}

PartOrder part_order_from(const Json& json, const std::string& where) {
  const std::string what = text_of(json, "do", where);
  const auto known = std::find(std::begin(kPartOrders), std::end(kPartOrders), what);
  if (known == std::end(kPartOrders)) fail(ErrorCode::kBadInput, where, " ordered what is not understood: ", quote_text(what));
  const int64_t num_samples = count_of(json, "num_samples", where), global_samples = count_of(json, "global_samples", where);
  return {.what = static_cast<PartOrder::What>(known - std::begin(kPartOrders)),
          .worker = static_cast<int>(count_of(json, "worker", where, std::numeric_limits<int>::max())),
          .order = order_from(json, where),
          .num_samples = num_samples,
          .global_samples = global_samples,
          .learning_rate = number_of(json, "learning_rate", where),
          .clip_norm = number_of(json, "clip_norm", where),
          .squares = number_of(json, "squares", where)};
}

int64_t order_from(const Json& json, const std::string& where) { return count_of(json, "order", where); }

int server_from(const Json& json, const std::string& where, size_t most) {
  const int64_t server = count_of(json, "server", where, static_cast<int64_t>(most));
  if (server < 1) refuse(where, "server");
  return static_cast<int>(server);
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
