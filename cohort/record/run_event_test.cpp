#include "cohort/record/run_event.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "tests/support/errors.h"
#include "tests/support/places.h"
#include "tests/support/text.h"

namespace cohort {
namespace {

/// Gives every field of a record a value of its own.
class FieldFiller {
 public:
  void count(const char* /*key*/, int64_t& value) { value = ++last_; }
  void count(const char* /*key*/, std::optional<int64_t>& value) { value = ++last_; }
  void number(const char* /*key*/, double& value) { value = ++last_ + 0.1; }
  void number(const char* /*key*/, std::optional<double>& value) { value = ++last_ + 0.1; }
  void number_if_known(const char* key, double& value) { number(key, value); }
  void numbers(const char* /*key*/, std::vector<double>& values) { values = {++last_ + 0.1, ++last_ + 0.2}; }
  void named_numbers_if_any(const char* /*key*/, std::map<std::string, double>& values) {
    values = {{"a", ++last_ + 0.1}, {"b-2", ++last_ + 0.2}};
  }
  void text(const char* /*key*/, std::string& value) { value = "t" + std::to_string(++last_); }
  void text_if_any(const char* key, std::string& value) { text(key, value); }
  void texts(const char* key, std::vector<std::string>& values) { text(key, values.emplace_back()), text(key, values.emplace_back()); }
  void texts_if_any(const char* key, std::vector<std::string>& values) { texts(key, values); }
  void counts(const char* /*key*/, std::vector<int64_t>& values) { values = {++last_, ++last_}; }
  void counts_if_any(const char* key, std::vector<int64_t>& values) { counts(key, values); }
  void count_rows(const char* key, std::vector<std::vector<int64_t>>& rows) {
    counts(key, rows.emplace_back()), counts(key, rows.emplace_back());
  }
  void json(const char* /*key*/, std::string& value) { value = R"({"a":)" + std::to_string(++last_) + "}"; }
  template <typename Record>
  void object(const char* /*key*/, std::optional<Record>& record) {
    record.emplace().describe(*this);
  }
  template <typename Record>
  void list(const char* /*key*/, std::vector<Record>& records) {
    records.emplace_back().describe(*this), records.emplace_back().describe(*this);
  }
  template <typename Record>
  void required_list(const char* key, std::vector<Record>& records) {
    list(key, records);
  }

 private:
  int64_t last_ = 0;
};

/// One of each event: as it is made, or with every field filled.
template <size_t... Index>
std::vector<RunEvent> one_of_each(bool filled, std::index_sequence<Index...> /*all*/) {
  std::vector<RunEvent> events{RunEvent(std::in_place_index<Index>)...};
  FieldFiller filler;
  if (filled)
    for (RunEvent& event : events) std::visit([&](auto& record) { record.describe(filler); }, event);
  return events;
}
std::vector<RunEvent> all_events(bool filled) { return one_of_each(filled, std::make_index_sequence<std::variant_size_v<RunEvent>>()); }

RunEvent event_of(const std::string& line) { return read_event(parse_strict_ordered_json(line, {.path = "file"}), "file:1").value(); }

void add_keys(const Json& value, std::set<std::string>& keys) {
  if (!value.is_structured()) return;
  for (const auto& [key, member] : value.items()) {
    if (value.is_object()) keys.insert(key);
    add_keys(member, keys);
  }
}

TEST_CASE("run events: what is written is read, known or not") {
  for (const bool filled : {true, false})
    for (const RunEvent& event : all_events(filled)) {
      const std::string line = to_line(event);
      CAPTURE(line);
      CHECK(line.find('\n') == line.size() - 1);
      const RunEvent again = event_of(line);
      CHECK(again.index() == event.index());
      CHECK(to_line(again) == line);
    }
}

TEST_CASE("run events: names are different, and of names that nobody knows there is none") {
  std::set<std::string> names;
  for (const RunEvent& event : all_events(false)) names.insert(to_json(event)["event"]);
  CHECK(names.size() == std::variant_size_v<RunEvent>);
  CHECK(!read_event(Json{{"event", "something_new"}, {"step", "x"}}, "file:1"));
}

TEST_CASE("run events: lines as they have always been") {
  CHECK(
      to_line(StepRecord{1, 2.5, 0.25, 512, 0.125, 0.0625, 0, 0, 1e-3}) ==
      R"({"event":"step","step":1,"loss":2.5,"step_seconds":0.25,"samples_per_second":512.0,"data_seconds":0.125,"compute_seconds":0.0625,)"
      R"("exchange_seconds":0.0,"optimizer_seconds":0.0,"learning_rate":0.001})"
      "\n");
  CHECK(contains(to_line(StepRecord{.gradient_norm = 0}), R"("gradient_norm":0.0})"));
  CHECK(contains(to_line(StepRecord{.gradient_norm = std::numeric_limits<double>::infinity()}), R"("gradient_norm":null})"));
  CHECK(to_line(EvalRecord{2, std::numeric_limits<double>::infinity(), kUnknown}) ==
        R"({"event":"eval","step":2,"val_loss":null,"val_error":null})"
        "\n");
  CHECK(to_line(DoneRecord{.step = 3, .peak_memory_bytes = {5, 6}, .run = "r"}) ==
        R"({"event":"done","step":3,"loss":null,"val_loss":null,"val_error":null,"seconds":null,"predicted_step_seconds":null,)"
        R"("measured_step_seconds":null,"first_step_seconds":null,"peak_memory_bytes":[5,6],"run":"r"})"
        "\n");
  CHECK(contains(to_line(DoneRecord{.skipped_steps = 0, .noise_scale = kUnknown}), R"("skipped_steps":0,"noise_scale":null})"));
  CHECK(to_line(StartRecord{.layout = R"({"dp":2,"stages":[{"layers":["a"]}]})", .parameters = 7, .loss = "own"}) ==
        R"({"event":"start","world_size":1,"layout":{"dp":2,"stages":[{"layers":["a"]}]},"parameters":7,"model":"","data":"","backend":"",)"
        R"("launcher":"","version":"","torch":"","host":"","started":"","loss":"own"})"
        "\n");
  CHECK(to_line(RanksRecord{{{.rank = 1, .host = "h", .part = PartRecord{.data = "1 of 1", .layers = {"a"}, .stages = {0}}}}}) ==
        R"({"event":"ranks","ranks":[{"rank":1,"host":"h","data_seconds":null,"compute_seconds":null,"exchange_seconds":null,)"
        R"("optimizer_seconds":null,"part":{"data":"1 of 1","pipe":"","tensor":"","layers":["a"],"stages":[0]}}]})"
        "\n");
  CHECK(to_line(FailureRecord{4, "not UTF-8: \xff", "now", "r"}) ==
        "{\"event\":\"failed\",\"exit_code\":4,\"cause\":\"not UTF-8: \xef\xbf\xbd\",\"ended\":\"now\",\"run\":\"r\"}\n");
}

TEST_CASE("run events: keys that are missing are not known") {
  const auto step = std::get<StepRecord>(event_of(R"({"event":"step","step":1,"loss":null,"new_key":[]})"));
  CHECK(std::isnan(step.loss));
  CHECK(std::isnan(step.gradient_norm));
  CHECK(std::get<InterruptedRecord>(event_of(R"({"event":"interrupted"})")).run.empty());
  CHECK(!std::get<DoneRecord>(event_of(R"({"event":"done","step":1})")).noise_scale);
  CHECK(std::isnan(*std::get<DoneRecord>(event_of(R"({"event":"done","step":1,"noise_scale":null})")).noise_scale));
  CHECK(std::get<StartRecord>(event_of(R"({"event":"start","world_size":2,"layout":"dp=2"})")).layout == R"("dp=2")");
}

TEST_CASE("run events: values of the wrong kind name key, what was expected and what was found") {
  const auto error = [](const std::string& line) { return error_of([&] { event_of(line); }); };
  CHECK(error(R"({"event":"shares","from_step":1,"shares":[0.5,"x"]})") == "file:1: 'shares': expected numbers or null, found \"x\"");
  CHECK(error(R"({"event":"shares","from_step":1,"shares":0.5})") == "file:1: 'shares': expected a list, found 0.5");
  CHECK(error(R"({"event":"missing_lines"})") == "file:1: 'lines': expected a whole number from 0 up, found nothing");
  CHECK(error(R"({"event":"start","world_size":1,"optimizer":3})") == "file:1: 'optimizer': expected an object, found 3");
  CHECK(error(R"({"event":"ranks"})") == "file:1: 'ranks': expected a list, found nothing");
  CHECK(error(R"({"event":"ranks","ranks":[{}]})") == "file:1: 'rank': expected a whole number from 0 up, found nothing");
  CHECK(error(R"({"event":"confusion","step":1})") == "file:1: a confusion matrix needs the lists 'classes' and 'counts'");
  CHECK(error(R"({"event":"confusion","step":1,"classes":["a"],"counts":[3]})") ==
        "file:1: 'counts': expected rows of whole numbers from 0 up, found 3");
}

/// From the table of docs/formats/metrics.md: for each event the words in backticks that could be keys.
std::map<std::string, std::set<std::string>> documented_keys() {
  std::ifstream in(repository_file("docs/formats/metrics.md"));
  std::map<std::string, std::set<std::string>> keys;
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> cells = split(line, '|');
    if (cells.size() < 4 || !trim(cells[1]).starts_with('`')) continue;
    std::set<std::string>& of_event = keys[split(cells[1], '`').at(1)];
    const std::vector<std::string> words = split(cells[2], '`');
    for (size_t i = 1; i < words.size(); i += 2)
      if (words[i].find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == std::string::npos) of_event.insert(words[i]);
  }
  return keys;
}

TEST_CASE("docs/formats/metrics.md has the keys of every event, and no others") {
  std::map<std::string, std::set<std::string>> keys = documented_keys();
  for (const RunEvent& event : all_events(true)) {
    Json object = to_json(event);
    const std::string name = object["event"];
    object.erase("event");
    for (const char* const named : {"metrics", "test_metrics"})
      if (object.contains(named)) object[named] = nullptr;      // Its keys are names.
    if (object.contains("layout")) object["layout"] = nullptr;  // Its keys stand in docs/formats/layout.md.
    std::set<std::string> known;
    add_keys(object, known);
    for (const std::string& key : known) CHECK_MESSAGE(keys[name].contains(key), name, " lacks ", key);
    for (const std::string& key : keys[name]) CHECK_MESSAGE(known.contains(key), name, " has no ", key);
  }
  CHECK(keys.size() == std::variant_size_v<RunEvent>);
}

}  // namespace
}  // namespace cohort
