#include "cohort/schedule/schedule.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/schedule/generators.h"
#include "cohort/schedule/slots.h"

namespace cohort {

namespace {

constexpr std::array<std::string_view, 8> kLetters = {"F", "B", "I", "W", "SF", "RF", "SB", "RB"};  // In the order of ActionKind.

struct Generator {
  std::string name;
  bool takes_chunks;   ///< NAME:V, default 2.
  int default_chunks;  ///< Stages per rank.
  Schedule (*make)(const PipelineShape&);
};

const std::vector<Generator>& generators() {
  static const std::vector<Generator> all = {
      {"gpipe", false, 1, make_gpipe},      {"1f1b", false, 1, make_one_f_one_b},     {"interleaved", true, 2, make_interleaved},
      {"bfs", true, 2, make_breadth_first}, {"zb-h1", false, 1, make_zero_bubble_h1}, {"zb-v", false, 2, make_zero_bubble_v}};
  return all;
}

struct Chosen {
  const Generator* generator;
  int chunks;
};

Chosen choose(const std::string& name) {
  const size_t colon = name.find(':');
  const std::string head = name.substr(0, colon);
  std::vector<std::string> heads;
  for (const Generator& generator : generators()) {
    heads.push_back(generator.name);
    if (generator.name != head) continue;
    if (colon == std::string::npos) return {&generator, generator.default_chunks};
    if (!generator.takes_chunks) fail(ErrorCode::kBadInput, "schedule '", name, "': ", head, " takes no number; write '", head, "'");
    const auto chunks = parse_integer(name.substr(colon + 1));
    if (!chunks || *chunks < 1 || *chunks > kMaxScheduleSize)
      fail(ErrorCode::kBadInput, "schedule '", name, "': expected the number of stages a rank after the colon, as in '", head, ":2'");
    return {&generator, static_cast<int>(*chunks)};
  }
  fail(ErrorCode::kBadInput, "unknown schedule '", name, "'", did_you_mean(head, heads), "; schedules: ", join(schedule_names(), " "));
}

int stages_of(const std::string& name, int chunks, int num_ranks) {
  if (num_ranks < 1 || num_ranks > kMaxScheduleSize || chunks > kMaxScheduleSize / num_ranks)
    fail(ErrorCode::kBadInput, "schedule '", name, "' on ", num_ranks, " ranks: there can be 1 to ", kMaxScheduleSize, " ranks and stages");
  return num_ranks * chunks;
}

}  // namespace

bool is_transfer(ActionKind kind) { return kind >= ActionKind::kSendForward; }

std::string action_text(const Action& action) {
  std::string text = concat(kLetters[static_cast<size_t>(action.kind)], action.stage, ".", action.micro_batch);
  if (!is_transfer(action.kind)) return text;
  const bool sends = action.kind == ActionKind::kSendForward || action.kind == ActionKind::kSendBackward;
  return concat(text, sends ? ">" : "<", action.peer);
}

std::vector<std::pair<int, int>> chain_edges(int num_stages) {
  std::vector<std::pair<int, int>> edges;
  for (int stage = 0; stage + 1 < num_stages; ++stage) edges.emplace_back(stage, stage + 1);
  return edges;
}

bool has_transfers(const Schedule& schedule) {
  return std::any_of(schedule.actions.begin(), schedule.actions.end(), [](const std::vector<Action>& rank) {
    return std::any_of(rank.begin(), rank.end(), [](const Action& action) { return is_transfer(action.kind); });
  });
}

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const Generator& generator : generators()) out.push_back(generator.name + (generator.takes_chunks ? ":V" : ""));
    return out;
  }();
  return names;
}

int num_stages_of(const std::string& name, int num_ranks) { return stages_of(name, choose(name).chunks, num_ranks); }

Schedule make_schedule(const std::string& name, const PipelineShape& shape) {
  const Chosen chosen = choose(name);
  stages_of(name, chosen.chunks, shape.num_ranks);
  PipelineShape used = shape;
  used.chunks = chosen.chunks;
  Schedule schedule = chosen.generator->make(used);
  schedule.name = chosen.generator->takes_chunks ? concat(chosen.generator->name, ":", chosen.chunks) : name;
  return schedule;
}

void check_edges(const std::vector<std::pair<int, int>>& edges, int num_stages, int num_micro_batches) {
  const auto text = [](const std::pair<int, int>& edge) { return concat("edge (", edge.first, ", ", edge.second, ")"); };
  for (size_t i = 0; i < edges.size(); ++i) {
    const auto& [from, to] = edges[i];
    if (from < 0 || from >= to || to >= num_stages)
      fail(ErrorCode::kBadInput, "schedule: ", text(edges[i]), ": stages are 0 to ", num_stages - 1, " and values flow to higher numbers");
    if (i > 0 && edges[i] <= edges[i - 1])
      fail(ErrorCode::kBadInput, "schedule: ", text(edges[i]), " after ", text(edges[i - 1]), ": edges come sorted, each once");
  }
  if (static_cast<int64_t>(edges.size()) * num_micro_batches > kMaxScheduleActions)
    fail(ErrorCode::kBadInput, "schedule: ", edges.size(), " edges x ", num_micro_batches, " micro-batches are more than ",
         with_commas(kMaxScheduleActions), " values to hand on");
}

Schedule empty_schedule(const PipelineShape& shape, int num_stages) {
  const auto check = [](const char* what, int value) {
    if (value < 1 || value > kMaxScheduleSize)
      fail(ErrorCode::kBadInput, "schedule: ", value, " ", what, ": expected 1 to ", kMaxScheduleSize);
  };
  check("ranks", shape.num_ranks);
  check("stages", num_stages);
  check("micro-batches", shape.num_micro_batches);
  Schedule schedule;
  schedule.num_stages = num_stages;
  schedule.num_micro_batches = shape.num_micro_batches;
  schedule.edges = shape.edges.empty() ? chain_edges(num_stages) : shape.edges;
  check_edges(schedule.edges, num_stages, shape.num_micro_batches);
  schedule.actions.resize(shape.num_ranks);
  return schedule;
}

std::vector<std::vector<int>> ranks_of_stages(const Schedule& schedule) {
  const Slots slots(schedule, false);
  std::vector<std::vector<int>> ranks(schedule.num_stages, std::vector<int>(schedule.num_micro_batches));
  for (int stage = 0; stage < schedule.num_stages; ++stage)
    for (int k = 0; k < schedule.num_micro_batches; ++k) {
      const int rank = slots.location(slots.forward(stage, k)).rank;
      if (rank < 0) fail(ErrorCode::kBadInput, "schedule '", schedule.name, "': no rank does ", action_text(forward(stage, k)));
      ranks[stage][k] = rank;
    }
  return ranks;
}

// The file format of schedules: docs/formats/schedule.md.

namespace {

constexpr size_t kMaxFileBytes = size_t{512} << 20;

/// At most four digits, as the limits allow.
int parse_index(std::string_view text) {
  if (text.empty() || text.size() > 4) return -1;
  int value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return -1;
    value = 10 * value + (c - '0');
  }
  return value;
}

/// False for an invalid action.
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
