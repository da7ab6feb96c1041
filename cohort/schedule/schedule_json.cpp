// The file format of schedules: docs/formats/schedule.md.
#include <algorithm>
#include <array>
#include <string_view>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/schedule/generators.h"
#include "cohort/schedule/schedule.h"

namespace cohort {
namespace {

constexpr size_t kMaxFileBytes = size_t{512} << 20;
constexpr std::array<std::string_view, 8> kLetters = {"F", "B", "I", "W", "SF", "RF", "SB", "RB"};  // In the order of ActionKind.

/// At most four digits, which the bounds allow for.
int parse_index(std::string_view text) {
  if (text.empty() || text.size() > 4) return -1;
  int value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return -1;
    value = 10 * value + (c - '0');
  }
  return value;
}

/// False where `text` is no action.
bool parse_action(std::string_view text, Action& action) {
  const size_t digits = text.find_first_of("0123456789");
  if (digits == std::string_view::npos) return false;
  size_t kind = 0;
  while (kind < kLetters.size() && kLetters[kind] != text.substr(0, digits)) ++kind;
  if (kind == kLetters.size()) return false;
  action = {.kind = static_cast<ActionKind>(kind)};
  text.remove_prefix(digits);
  if (is_transfer(action.kind)) {
    const size_t arrow = text.find(kLetters[kind].front() == 'S' ? '>' : '<');
    if (arrow == std::string_view::npos) return false;
    action.peer = parse_index(text.substr(arrow + 1));
    if (action.peer < 0) return false;
    text = text.substr(0, arrow);
  }
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos) return false;
  action.stage = parse_index(text.substr(0, dot));
  action.micro_batch = parse_index(text.substr(dot + 1));
  return action.stage >= 0 && action.micro_batch >= 0;
}

int read_count(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) fail(ErrorCode::kBadInput, "schedule: the key '", key, "' is missing");
  if (!found->is_number_integer() || *found < 1 || *found > kMaxScheduleSize)
    fail(ErrorCode::kBadInput, "schedule: '", key, "' is ", found->dump().substr(0, 40), "; expected 1 to ", kMaxScheduleSize);
  return found->get<int>();
}

std::vector<std::pair<int, int>> read_edges(const Json& json, int num_stages) {
  const auto found = json.find("edges");
  if (found == json.end()) return chain_edges(num_stages);
  if (!found->is_array()) fail(ErrorCode::kBadInput, "schedule: 'edges' is not a list of [from, to]");
  std::vector<std::pair<int, int>> edges;
  for (const Json& edge : *found) {
    const auto is_stage = [&](const Json& value) { return value.is_number_integer() && value >= 0 && value < num_stages; };
    if (!edge.is_array() || edge.size() != 2 || !is_stage(edge[0]) || !is_stage(edge[1]))
      fail(ErrorCode::kBadInput, "schedule: edge ", edges.size(), " is ", quote_text(edge.dump()), "; expected [from, to] of stages 0 to ",
           num_stages - 1);
    edges.emplace_back(edge[0].get<int>(), edge[1].get<int>());
  }
  return edges;
}

std::vector<Action> read_rank(const Json& list, size_t rank, int64_t& num_actions) {
  if (!list.is_array()) fail(ErrorCode::kBadInput, "schedule: entry ", rank, " of 'ranks' is not a list of actions");
  num_actions += static_cast<int64_t>(list.size());
  if (num_actions > kMaxScheduleActions) fail(ErrorCode::kBadInput, "schedule: more than ", with_commas(kMaxScheduleActions), " actions");
  std::vector<Action> actions(list.size());
  for (size_t i = 0; i < list.size(); ++i)
    if (!list[i].is_string() || !parse_action(list[i].get_ref<const std::string&>(), actions[i]))
      fail(ErrorCode::kBadInput, "schedule: rank ", rank, ", action ", i, ": ", quote_text(list[i].dump()),
           " is no action; they look like F2.5, B2.5, I2.5, W2.5 (stage 2, micro-batch 5), SF2.5>3, RF3.5<2, SB3.5>2, RB2.5<3");
  return actions;
}

}  // namespace

Json to_json(const Schedule& schedule) {
  Json ranks = Json::array();
  for (const std::vector<Action>& actions : schedule.actions) {
    Json list = Json::array();
    for (const Action& action : actions) list.push_back(action_text(action));
    ranks.push_back(std::move(list));
  }
  Json edges = Json::array();
  for (const auto& [from, to] : schedule.edges) edges.push_back({from, to});
  return {{"name", schedule.name},
          {"stages", schedule.num_stages},
          {"micro_batches", schedule.num_micro_batches},
          {"edges", std::move(edges)},
          {"ranks", std::move(ranks)}};
}

Schedule schedule_from_json(const Json& json) {
  if (!json.is_object()) fail(ErrorCode::kBadInput, "schedule: not a JSON object");
  static const std::vector<std::string> keys = {"name", "stages", "micro_batches", "edges", "ranks"};
  for (const auto& [key, value] : json.items())
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      fail(ErrorCode::kBadInput, "schedule: unknown key ", quote_text(key), did_you_mean(key, keys), "; keys: ", join(keys, " "));
  Schedule schedule;
  if (const auto name = json.find("name"); name != json.end()) {
    if (!name->is_string()) fail(ErrorCode::kBadInput, "schedule: 'name' is not text");
    schedule.name = printable(name->get_ref<const std::string&>()).substr(0, 100);
  }
  schedule.num_stages = read_count(json, "stages");
  schedule.num_micro_batches = read_count(json, "micro_batches");
  schedule.edges = read_edges(json, schedule.num_stages);
  check_edges(schedule.edges, schedule.num_stages, schedule.num_micro_batches);
  const auto ranks = json.find("ranks");
  if (ranks == json.end() || !ranks->is_array() || ranks->empty() || ranks->size() > kMaxScheduleSize)
    fail(ErrorCode::kBadInput, "schedule: 'ranks' must be a list of 1 to ", kMaxScheduleSize, " lists of actions");
  int64_t num_actions = 0;
  for (const Json& list : *ranks) schedule.actions.push_back(read_rank(list, schedule.actions.size(), num_actions));
  return schedule;
}

Schedule read_schedule_file(const std::string& path) {
  const std::string text = read_small_file(path, kMaxFileBytes);
  try {
    return schedule_from_json(parse_strict_ordered_json(text, {.path = path}));
  } catch (const Error& error) {
    const std::string what = error.what();
    fail(error.code(), what.find(path) == std::string::npos ? path + ": " : "", what);
  }
}

}  // namespace cohort
