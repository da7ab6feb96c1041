#include "cohort/schedule/schedule.h"

#include <algorithm>
#include <array>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/schedule/generators.h"
#include "cohort/schedule/slots.h"

namespace cohort {
namespace {

struct Generator {
  std::string name;
  bool takes_chunks;   ///< NAME:V; V is 2 where it is left out.
  int default_chunks;  ///< Stages a rank.
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
  static const std::array<const char*, 8> kNames = {"F", "B", "I", "W", "SF", "RF", "SB", "RB"};
  std::string text = concat(kNames[static_cast<size_t>(action.kind)], action.stage, ".", action.micro_batch);
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
      const int rank = slots.place(slots.forward(stage, k)).rank;
      if (rank < 0) fail(ErrorCode::kBadInput, "schedule '", schedule.name, "': no rank does ", action_text(forward(stage, k)));
      ranks[stage][k] = rank;
    }
  return ranks;
}

}  // namespace cohort
