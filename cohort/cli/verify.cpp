#include "cohort/verify/verify.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/cli/options/verb.h"
#include "cohort/job/layout.h"
#include "cohort/job/specs/sync_mode.h"
#include "cohort/world/world.h"

namespace cohort {
namespace {

/// The layouts of --layouts or --layout, each for every number of ranks of --ranks or --workers.
std::vector<Layout> layouts_asked_for(const Arguments& arguments) {
  std::vector<int> worlds;
  for (const std::string& text : split(arguments.option("ranks", ""), ',')) {
    const auto number = parse_integer(text);
    if (!number || *number < 2 || *number > 256) fail(ErrorCode::kBadInput, "--ranks: '", text, "' is not a number of ranks from 2 to 256");
    worlds.push_back(static_cast<int>(*number));
  }
  std::vector<Layout> layouts;
  const std::string many = arguments.option("layouts", "");
  for (const std::string& text : many.empty() ? std::vector<std::string>{arguments.config.layout} : split(many, ';')) {
    if (trim(text).empty()) fail(ErrorCode::kBadInput, "--layouts ", many, ": one of the layouts is empty");
    for (const int world : worlds) layouts.push_back(parse_layout(trim(text), world));
    if (!worlds.empty()) continue;
    Layout layout = parse_layout(trim(text), many.empty() ? arguments.config.workers : 0);
    const bool asked_for_one = trim(text) == "single" || (many.empty() && arguments.was_given("workers"));
    if (layout.num_ranks() == 1 && asked_for_one)
      fail(ErrorCode::kBadInput, "verify: ", trim(text), " is one process, and the comparison is with one process; give --workers N, or a ",
           "layout of more ranks");
    if (layout.num_ranks() == 1) layout.dp = 2;
    layouts.push_back(std::move(layout));
  }
  return layouts;
}

const char* text_of(FaultResult::Outcome outcome) {
  return outcome == FaultResult::Outcome::kFound ? "found" : outcome == FaultResult::Outcome::kMissed ? "missed" : "does nothing";
}

/// Prints suspects, in one line those of a class that have the same reason.
void print_suspects(const std::vector<Suspect>& suspects) {
  constexpr size_t kMostNames = 3;
  std::map<std::string, std::vector<std::string>> modules_of_reason;
  for (const Suspect& suspect : suspects)
    modules_of_reason[concat(suspect.class_name.empty() ? "" : concat(" (", suspect.class_name, ")"), ": ", suspect.why)].push_back(
        suspect.module);
  for (auto& [reason, modules] : modules_of_reason) {
    const size_t num_modules = modules.size();
    modules.resize(std::min(num_modules, kMostNames));
    std::printf("  suspect: %s%s%s\n", join(modules, ", ").c_str(),
                num_modules > kMostNames ? concat(" and ", num_modules - kMostNames, " more").c_str() : "", reason.c_str());
  }
}

void print_table(const VerifyResult& result, bool all) {
  std::printf("%s: %d ranks against one process, %lld steps\n", to_text(result.layout).c_str(), result.layout.num_ranks(),
              static_cast<long long>(result.steps));
  if (!result.strict || *result.strict != 0 || all) {
    std::printf("  %-44s %12s %12s\n", "difference, relative to the update", "", "explained");
    const size_t shown = all ? result.tensors.size() : std::min<size_t>(8, result.tensors.size());
    for (size_t i = 0; i < shown; ++i)
      std::printf("  %-44s %12.3g %12.3g%s\n", result.tensors[i].name.c_str(), result.tensors[i].difference, result.tensors[i].bound,
                  result.tensors[i].difference <= result.tensors[i].bound ? "" : "  TOO FAR");
    if (shown < result.tensors.size()) std::printf("  ... and %zu more, all nearer (--all shows them)\n", result.tensors.size() - shown);
  }
  if (result.strict)
    std::printf("  one process in the ranks' order of arithmetic: %s\n",
                *result.strict == 0 ? concat("equal in every bit of ", result.tensors.size(), " tensors").c_str()
                                    : concat("up to ", *result.strict, " of a tensor's update away").c_str());
  std::printf("  one process that takes each batch whole: %.3g of the update away\n  two runs of this layout: %s\n", result.to_one_process,
              result.repeats ? "bitwise equal" : "DIFFER");
  for (const FaultResult& fault : result.faults)
    std::printf("  fault %-24s %s\n", name_of(fault.fault).c_str(),
                fault.outcome == FaultResult::Outcome::kFound    ? concat("found, ", fault.factor, " times what passes").c_str()
                : fault.outcome == FaultResult::Outcome::kMissed ? "MISSED"
                                                                 : "does nothing here");
  const char* const verdict = result.verdict == Verdict::kSame        ? "the same training"
                              : result.verdict == Verdict::kDifferent ? "A DIFFERENT TRAINING"
                                                                      : "NOT PROVEN";
  std::printf("  %s: %s\n", verdict, result.reason.c_str());
  print_suspects(result.suspects);
}

void print_lines(const VerifyResult& result) {
  for (const TensorVerdict& tensor : result.tensors)
    print_line(Json{{"event", "tensor"},
                    {"ranks", result.layout.num_ranks()},
                    {"name", tensor.name},
                    {"relative_difference", finite_json(tensor.difference)},
                    {"bound", finite_json(tensor.bound)}});
  for (const FaultResult& fault : result.faults)
    print_line(Json{{"event", "fault"},
                    {"layout", to_json(result.layout)},
                    {"fault", name_of(fault.fault)},
                    {"outcome", text_of(fault.outcome)},
                    {"factor", finite_json(fault.factor)}});
  Json suspects = Json::array();
  for (const Suspect& suspect : result.suspects)
    suspects.push_back(Json{{"module", suspect.module}, {"class", suspect.class_name}, {"why", suspect.why}});
  const TensorVerdict worst = result.tensors.empty() ? TensorVerdict{} : result.tensors.front();
  const Json strict = !result.strict ? Json(nullptr) : *result.strict == 0 ? Json("bitwise") : finite_json(*result.strict);
  const Json line{{"event", "verify"},
                  {"layout", to_json(result.layout)},
                  {"steps", result.steps},
                  {"max_relative_difference", finite_json(worst.difference)},
                  {"bound", finite_json(worst.bound)},
                  {"worst_parameter", worst.name},
                  {"ok", result.ok()},
                  {"verdict", text_of(result.verdict)},
                  {"strict", strict},
                  {"reason", result.reason},
                  {"suspects", suspects},
                  {"to_one_process", finite_json(result.to_one_process)},
                  {"repeats_bitwise", result.repeats}};
  print_line(line);
}

int run_verify(const Arguments& arguments) {
  Config config = arguments.config;
  if (world_from_environment().launcher != "none")
    fail(ErrorCode::kBadInput, "verify starts its own ranks; run it without a launcher, with --workers N");
  if (config.steps == 0 && config.epochs == 0) config.steps = 4;
  // The optimizer's state is compared too, and sgd has none.
  if (config.optimizer == Config().optimizer && !arguments.was_given("optimizer")) config.optimizer = "momentum";
  check_config(config);
  const std::vector<Layout> layouts = layouts_asked_for(arguments);
  config.workers = 0;
  load_plugin(config);
  const DataSet data = open_data(config);
  const std::string faults = arguments.option("faults", "");
  for (const Layout& layout : layouts)
    if (!faults.empty() && has_server(layout.sync))
      fail(ErrorCode::kBadInput, "--faults with sync=", layout.sync,
           ": the faults are injected into the exchange between ranks, and these exchange with a server only; leave --faults out, or use "
           "sync=step");
  bool all_same = true, different = false;
  verify(config, data, layouts, faults.empty() ? std::vector<Fault>() : parse_faults_of_verify(faults), [&](const VerifyResult& result) {
    all_same = all_same && result.ok();
    different = different || result.verdict == Verdict::kDifferent || !result.all_faults_found();
    if (config.json) print_lines(result);
    else print_table(result, arguments.options.contains("all"));
    std::fflush(stdout);
  });
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    fail(ErrorCode::kFailed, "verify: the verdict could not be written to standard output");
  if (all_same && !different) return 0;
  return static_cast<int>(different ? ErrorCode::kFailed : ErrorCode::kNotProven);
}

}  // namespace

Verb verify_verb() {
  return {
      .name = "verify",
      .summary = "Trains a few steps under one process and under a layout and compares every tensor.",
      .examples =
          {"cohort verify --model cnn --data fashion-mnist --workers 2",
           "cohort verify --model transformer --data text:/usr/share/common-licenses --ranks 2,3,4 --optimizer adamw --steps 5 --json",
           "cohort verify --model resnet8 --layout zero=3 --workers 3 --precision bf16",
           "cohort verify --model transformer --data text:/usr/share/common-licenses --layouts 'pp=2,microbatches=4; tp=2'",
           "cohort verify --model cnn --workers 2 --steps 2 --faults all"},
      .positional_help = "config.toml, whose settings the options override",
      // Its trainings are neither kept nor evaluated.
      .settings = settings_without({"resume", "run", "study", "metrics", "goal", "patience", "test-samples", "eval-every",
                                    "checkpoint-every", "keep-checkpoints", "noise-scale", "log-every", "prompt", "sample-bytes", "quiet",
                                    "remedy", "virtual", "serve"}),
      .takes_file = true,
      .options = {{"layouts", "A;B;..", "several layouts; the trainings of one process that they are compared with run once"},
                  {"ranks", "N,N,..", "numbers of ranks to compare with one process (default: --workers, or 2)"},
                  {"all", "", "show every tensor"},
                  {"faults", "A,B|all", "injects each of these faults into one more run of each layout, whose result must then differ"}},
      .exclusive = {{"layouts", "layout"}, {"ranks", "workers"}},
      .run = run_verify};
}

}  // namespace cohort
