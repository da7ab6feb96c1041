#include "cohort/async/served/served_words.h"

#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "cohort/base/text/json_fields.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr int64_t kMostShares = std::numeric_limits<int>::max();
constexpr size_t kMostTensors = size_t{1} << 24;

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

std::string text_under(const Json& json, const char* key) {
  const Json value = json.is_object() ? json.value(key, Json()) : Json();
  return value.is_string() ? value.get<std::string>() : "";
}

const char* text_of(WorkerWord word) { return written(kWorkerWords, word); }
const char* text_of(ServerWord word) { return written(kServerWords, word); }

int int_of(const JsonFields& fields, const char* key) { return static_cast<int>(fields.natural(key, kMostShares)); }

std::vector<size_t> missing_of(const JsonFields& fields) {
  std::vector<size_t> out;
  for (const int64_t at : fields.naturals("missing", kMostTensors)) out.push_back(static_cast<size_t>(at));
  return out;
}

}  // namespace

WorkerWord worker_word(const Json& said) { return read_word<WorkerWord>(kWorkerWords, text_under(said, "is")); }
ServerWord server_word(const Json& said) { return read_word<ServerWord>(kServerWords, text_under(said, "do")); }
std::string text_of_server_word(const Json& said) { return text_under(said, "do"); }

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

std::string end_from(const Json& json, const std::string& where) { return JsonFields(json, where).text("error"); }

std::string error_from(const Json& json) { return printable(text_under(json, "error")); }

ErrorCode code_from(const Json& json) {
  const Json code = json.is_object() ? json.value("code", Json()) : Json();
  return code == static_cast<int>(ErrorCode::kFailed) ? ErrorCode::kFailed : ErrorCode::kEnvironment;
}

}  // namespace cohort
