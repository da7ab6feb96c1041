#include "cohort/schedule/simulate.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/cli/options/verb.h"
#include "cohort/schedule/schedule.h"

namespace cohort {
namespace {

/// The numbers of `--name 1,2,1`, one for each rank; a single number counts for all.
std::vector<double> times(const Arguments& arguments, const std::string& name, const std::string& fallback, int num_ranks) {
  const std::string text = arguments.option(name, fallback);
  std::vector<double> out;
  for (const std::string& number : split(text, ',')) {
    const auto value = parse_number(number);
    if (!value || *value < 0)
      fail(ErrorCode::kBadInput, "--", name, " ", text, ": invalid time '", number, "', expected a number of at least 0");
    out.push_back(*value);
  }
  if (out.size() == 1) out.resize(num_ranks, out.front());
  if (static_cast<int>(out.size()) != num_ranks)
    fail(ErrorCode::kBadInput, "--", name, " ", text, ": give one number, or one for each of the ", num_ranks, " ranks");
  return out;
}

double single_time(const Arguments& arguments, const std::string& name) { return times(arguments, name, "0", 1).front(); }

/// The assignment of stages to ranks.
struct Placement {
  std::vector<int> rank_of_stage;  ///< The first rank if several share a stage.
  std::vector<int> num_stages_of_rank;
};

Placement placement_of(const Schedule& schedule) {
  std::vector<std::set<int>> stages(schedule.num_ranks());
  Placement placement;
  for (const std::vector<int>& ranks : ranks_of_stages(schedule)) {
    const int stage = static_cast<int>(placement.rank_of_stage.size());
    for (const int rank : ranks) stages[rank].insert(stage);
    placement.rank_of_stage.push_back(ranks.front());
  }
  for (const std::set<int>& of_rank : stages) placement.num_stages_of_rank.push_back(std::max<int>(1, static_cast<int>(of_rank.size())));
  return placement;
}

/// The options give the time of one micro-batch through all stages of a rank; each stage gets an equal part of it.
StageCosts costs_of(const Arguments& arguments, const Placement& placement) {
  const auto shares = [&](const std::string& name) {
    const std::vector<double> of_rank = times(arguments, name, "1", static_cast<int>(placement.num_stages_of_rank.size()));
    std::vector<double> of_stage;
    for (const int rank : placement.rank_of_stage) of_stage.push_back(of_rank[rank] / placement.num_stages_of_rank[rank]);
    return of_stage;
  };
  StageCosts costs;
  costs.forward = shares("forward");
  costs.backward_input = shares("backward-input");
  costs.backward_weight = shares("backward-weight");
  const double transfer = single_time(arguments, "transfer");
  costs.transfer = [transfer](int, int) { return transfer; };
  costs.send = single_time(arguments, "send");
  costs.receive = single_time(arguments, "receive");
  return costs;
}

struct Case {
  Schedule schedule;
  StageCosts costs;
};

Case read_case(const Arguments& arguments) {
  constexpr int kMost = 4096;
  const std::string name = arguments.option("schedule", "1f1b");
  const bool is_file = name.ends_with(".json") || name.find('/') != std::string::npos;
  Case out;
  if (is_file) out.schedule = read_schedule_file(name);
  const int num_ranks = static_cast<int>(arguments.integer_option("stages", is_file ? out.schedule.num_ranks() : 4, 1, kMost));
  const int num_micro_batches =
      static_cast<int>(arguments.integer_option("microbatches", is_file ? out.schedule.num_micro_batches : 8, 1, kMost));
  if (is_file) {
    if (num_ranks != out.schedule.num_ranks() || num_micro_batches != out.schedule.num_micro_batches)
      fail(ErrorCode::kBadInput, name, " is for ", out.schedule.num_ranks(), " ranks and ", out.schedule.num_micro_batches,
           " micro-batches; leave out --stages and --microbatches");
    if (out.schedule.name.empty()) out.schedule.name = name;
    out.costs = costs_of(arguments, placement_of(out.schedule));
    return out;
  }
  PipelineShape shape = {.num_ranks = num_ranks, .num_micro_batches = num_micro_batches};
  out.costs = costs_of(arguments, placement_of(make_schedule(name, shape)));
  shape.costs = &out.costs;
  out.schedule = make_schedule(name, shape);
  return out;
}

std::vector<double> stash_shares(const Schedule& schedule, const Timeline& timeline) {
  const Placement placement = placement_of(schedule);
  std::vector<double> shares;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank)
    shares.push_back(static_cast<double>(timeline.peak_stash[rank]) / placement.num_stages_of_rank[rank]);
  return shares;
}

void print_json(const Schedule& schedule, const Timeline& timeline) {
  Json stash = Json::array();
  for (const double share : stash_shares(schedule, timeline)) stash.push_back(number_json(share));
  print_line(Json{{"event", "simulate"},
                  {"schedule", schedule.name},
                  {"stages", schedule.num_ranks()},
                  {"microbatches", schedule.num_micro_batches},
                  {"makespan", timeline.makespan},
                  {"bubble", timeline.bubble},
                  {"peak_stash", std::move(stash)}});
}

void print_table(const Schedule& schedule, const Timeline& timeline) {
  std::printf("%s: %d stages on %d ranks, %d micro-batches\n", schedule.name.c_str(), schedule.num_stages, schedule.num_ranks(),
              schedule.num_micro_batches);
  std::printf("makespan %.6g, idle %.2f %% of it (bubble)\n\n", timeline.makespan, 100 * timeline.bubble);
  std::printf("rank        busy        idle  peak stash\n");
  const std::vector<double> shares = stash_shares(schedule, timeline);
  for (int rank = 0; rank < schedule.num_ranks(); ++rank)
    std::printf("%4d  %10.6g  %10.6g  %10.4g\n", rank, timeline.busy[rank], timeline.makespan - timeline.busy[rank], shares[rank]);
}

int run_simulate(const Arguments& arguments) {
  const Case given = read_case(arguments);
  const Timeline timeline = simulate(given.schedule, given.costs);
  const bool json = arguments.options.contains("json");
  json ? print_json(given.schedule, timeline) : print_table(given.schedule, timeline);
  // With --json standard output has JSON lines only, so the chart goes to standard error.
  if (arguments.options.contains("chart")) std::fprintf(json ? stderr : stdout, "%s%s", json ? "" : "\n", timeline_text(timeline).c_str());
  const auto write = [&](const std::string& option, const auto& content) {
    if (const std::string path = arguments.option(option, ""); !path.empty()) write_file_atomically(path, content());
  };
  write("svg", [&] { return timeline_svg(timeline); });
  write("trace", [&] { return timeline_trace(timeline).dump() + "\n"; });
  write("out", [&] { return to_json(given.schedule).dump() + "\n"; });
  return 0;
}

}  // namespace

Verb simulate_verb() {
  return {.name = "simulate",
          .summary =
              "Times one pipeline schedule without running it: makespan, bubble (idle time / (ranks x makespan)) and peak stash, the "
              "most micro-batches that a rank keeps at once, in shares of a rank: with V stages a rank each counts 1/V.",
          .examples = {"cohort simulate --schedule 1f1b --stages 4 --microbatches 8 --chart",
                       "cohort simulate --schedule zb-v --stages 4 --microbatches 8 --transfer 0.1 --svg zb-v.svg",
                       "cohort simulate --schedule gpipe --stages 3 --forward 1,2,1 --json"},
          .options = {{"schedule", "NAME|FILE.json", join(schedule_names(), ", ") + ", or a table of one's own (default 1f1b)"},
                      {"stages", "P", "Ranks of the pipeline (default 4)"},
                      {"microbatches", "M", "Micro-batches of a step (default 8)"},
                      {"forward", "X[,X...]",
                       "Time of one micro-batch through a rank's whole share, forward; one number or one a rank (default 1)"},
                      {"backward-input", "X[,X...]", "The same, gradients of inputs (default 1)"},
                      {"backward-weight", "X[,X...]", "The same, gradients of weights (default 1)"},
                      {"transfer", "X", "From the end of a send to its arrival (default 0)"},
                      {"send", "X", "What a message costs the sender's processor (default 0)"},
                      {"receive", "X", "What it costs the receiver's (default 0)"},
                      {"json", "", "One line of JSON"},
                      {"chart", "", "Draw the chart (with --json to standard error)"},
                      {"svg", "FILE", "Write the chart as SVG"},
                      {"trace", "FILE", "Write it as Chrome trace events; Perfetto opens them"},
                      {"out", "FILE.json", "Write the schedule's table; --schedule FILE.json reads it"}},
          .run = run_simulate};
}

}  // namespace cohort
