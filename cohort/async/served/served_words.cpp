#include "cohort/async/served/served_words.h"

#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr std::array<std::pair<WorkerWord, const char*>, 7> kWorkerWords = {{{WorkerWord::kJoins, "joins"},
                                                                             {WorkerWord::kReady, "ready"},
                                                                             {WorkerWord::kHere, "here"},
                                                                             {WorkerWord::kFree, "free"},
                                                                             {WorkerWord::kDone, "done"},
                                                                             {WorkerWord::kFailed, "failed"},
                                                                             {WorkerWord::kLeaving, "leaving"}}};
constexpr std::array<std::pair<ServerWord, const char*>, 5> kServerWords = {{{ServerWord::kJoin, "join"},
                                                                             {ServerWord::kBe, "be"},
                                                                             {ServerWord::kMeet, "meet"},
                                                                             {ServerWord::kWork, "work"},
                                                                             {ServerWord::kEnd, "end"}}};

template <typename Words, typename Word>
const char* written(const Words& words, Word word) {
  for (const auto& [known, text] : words)
    if (known == word) return text;
  return "";
}

template <typename Word, typename Words>
Word read_word(const Words& words, const std::string& said) {
  for (const auto& [word, text] : words)
    if (said == text) return word;
  return Word::kNone;
}

std::string word_under(const Json& json, const char* key) {
  const Json value = json.is_object() ? json.value(key, Json()) : Json();
  return value.is_string() ? value.get<std::string>() : "";
}

const char* text_of(WorkerWord word) { return written(kWorkerWords, word); }
const char* text_of(ServerWord word) { return written(kServerWords, word); }

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

WorkerWord worker_word(const Json& said) { return read_word<WorkerWord>(kWorkerWords, word_under(said, "is")); }
ServerWord server_word(const Json& said) { return read_word<ServerWord>(kServerWords, word_under(said, "do")); }
std::string text_of_server_word(const Json& said) { return word_under(said, "do"); }

Json to_json(const Joining& joining) {
  return Json{{"do", text_of(ServerWord::kJoin)},
              {"configuration", joining.configuration},
              {"fingerprint", joining.fingerprint},
              {"num_shares", joining.num_shares}};
}

Json to_json(const Numbered& numbered) { return Json{{"do", text_of(ServerWord::kBe)}, {"worker", numbered.worker}}; }

Json to_json(const Welcome& welcome) { return Json{{"do", text_of(ServerWord::kMeet)}, {"slot", welcome.slot}}; }

Json to_json(const WorkOrder& order) {
  return Json{{"do", text_of(ServerWord::kWork)}, {"step", order.step}, {"share", order.share}, {"learning_rate", order.learning_rate}};
}

Json to_json(const WorkDone& done) {
  return Json{{"is", text_of(WorkerWord::kDone)},
              {"step", done.step},
              {"share", done.share},
              {"loss", done.loss},
              {"missing", done.missing},
              {"computing_seconds", done.computing_seconds},
              {"waiting_seconds", done.waiting_seconds},
              {"moving_seconds", done.moving_seconds},
              {"pushing_seconds", done.pushing_seconds}};
}

Json to_json(WorkerWord word) { return Json{{"is", text_of(word)}}; }

Json here_json(int worker, const std::string& configuration) {
  return Json{{"is", text_of(WorkerWord::kHere)}, {"worker", worker}, {"configuration", configuration}};
}

Json free_json(bool has_slot) { return Json{{"is", text_of(WorkerWord::kFree)}, {"slot", has_slot}}; }

bool has_slot_from(const Json& json) { return json.is_object() && json.value("slot", Json()) == true; }

Json failed_json(int code, const std::string& error) {
  return Json{{"is", text_of(WorkerWord::kFailed)}, {"code", code}, {"error", error}};
}

Json end_json(const std::string& error) { return Json{{"do", text_of(ServerWord::kEnd)}, {"error", error}}; }

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

std::string end_from(const Json& json, const std::string& where) { return text_of(json, "error", where); }

std::string error_from(const Json& json) {
  const Json error = json.is_object() ? json.value("error", Json()) : Json();
  return error.is_string() ? printable(error.get<std::string>()) : "";
}

ErrorCode code_from(const Json& json) {
  const Json code = json.is_object() ? json.value("code", Json()) : Json();
  return code == static_cast<int>(ErrorCode::kFailed) ? ErrorCode::kFailed : ErrorCode::kEnvironment;
}

}  // namespace cohort
