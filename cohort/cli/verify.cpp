#include "cohort/train/verify.h"

#include <algorithm>
#include <cstdio>

#include "cohort/base/error.h"
#include "cohort/base/json.h"
#include "cohort/base/layout.h"
#include "cohort/base/text.h"
#include "cohort/cli/verb.h"
#include "cohort/world/world.h"

namespace cohort {
namespace {

/// Layouts of --layouts or --layout, each on the numbers of ranks of --ranks or --workers.
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
    for (const int world : worlds) layouts.push_back(parse_layout(trim(text), world));
    if (!worlds.empty()) continue;
    Layout layout = parse_layout(trim(text), many.empty() ? arguments.config.workers : 0);
    if (layout.num_ranks() == 1) layout.dp = 2;
    layouts.push_back(std::move(layout));
  }
  return layouts;
}

void print_table(const VerifyResult& result, bool all) {
  std::printf("%s: %d ranks against one process, %lld steps: largest differences (bound %.3g)\n", to_text(result.layout).c_str(),
              result.layout.num_ranks(), static_cast<long long>(result.steps), result.bound);
  const size_t shown = all ? result.tensors.size() : std::min<size_t>(8, result.tensors.size());
  for (size_t i = 0; i < shown; ++i)
    std::printf("  %-44s %10.3g %s\n", result.tensors[i].name.c_str(), result.tensors[i].relative_difference,
                result.tensors[i].relative_difference <= result.bound ? "" : "OVER THE BOUND");
  if (shown < result.tensors.size()) std::printf("  ... and %zu more, all smaller (--all shows them)\n", result.tensors.size() - shown);
  std::printf("  bound: %s\n", result.reason.c_str());
  if (result.accumulated >= 0)
    std::printf("  one process that takes the %d ranks' shares in turn: %s\n", result.layout.num_ranks(),
                result.accumulated == 0 ? "bitwise equal" : concat("differs by ", result.accumulated).c_str());
  std::printf("  two runs of this layout: %s\n  %s\n", result.repeats ? "bitwise equal" : "DIFFER",
              result.ok() ? "the same training" : "NOT the same training");
}

void print_lines(const VerifyResult& result) {
  for (const TensorDifference& tensor : result.tensors)
    std::printf("%s\n", Json{{"event", "tensor"},
                             {"ranks", result.layout.num_ranks()},
                             {"name", tensor.name},
                             {"relative_difference", tensor.relative_difference}}
                            .dump()
                            .c_str());
  const Json line{{"event", "verify"},
                  {"layout", to_json(result.layout)},
                  {"steps", result.steps},
                  {"max_relative_difference", result.tensors.empty() ? 0.0 : result.tensors.front().relative_difference},
                  {"bound", result.bound},
                  {"worst_parameter", result.tensors.empty() ? "" : result.tensors.front().name},
                  {"ok", result.ok()},
                  {"reason", result.reason},
                  {"accumulated_max_relative_difference", result.accumulated >= 0 ? Json(result.accumulated) : Json(nullptr)},
                  {"repeats_bitwise", result.repeats}};
  std::printf("%s\n", line.dump().c_str());
}

int run_verify(const Arguments& arguments) {
  Config config = arguments.config;
  if (world_from_environment().launcher != "none")
    fail(ErrorCode::kBadInput, "verify starts its own ranks; run it without a launcher, with --workers N");
  if (config.steps == 0 && config.epochs == 0) config.steps = 4;
  check_config(config);
  const std::vector<Layout> layouts = layouts_asked_for(arguments);
  config.workers = 0;
  load_plugin(config);
  const DataSet data = open_data(config.data, {.context = config.context, .validation_samples = config.val_samples, .seed = config.seed});
  bool ok = true;
  verify(config, data, layouts, [&](const VerifyResult& result) {
    ok = ok && result.ok();
    if (config.json) print_lines(result);
    else print_table(result, arguments.options.contains("all"));
    std::fflush(stdout);
  });
  return ok ? 0 : static_cast<int>(ErrorCode::kFailed);
}

}  // namespace

Verb verify_verb() {
  return {
      .name = "verify",
      .summary = "Trains a few steps under one process and under a layout and compares every tensor.",
      .examples = {"cohort verify --model cnn --data fashion-mnist --workers 2",
                   "cohort verify --model transformer --data text:FILE --ranks 2,3,4 --optimizer adamw --steps 5 --json",
                   "cohort verify --model resnet8 --layout zero=3 --workers 3 --sync-batch-norm",
                   "cohort verify --model transformer --data text:FILE --layouts 'pp=2,microbatches=4; tp=2; dp=2,pp=2,microbatches=2'"},
      .positional_help = "config.toml, whose settings the options override",
      // Nothing is kept of its trainings, and nothing evaluated.
      .settings = settings_without({"resume", "run", "study", "goal", "eval-every", "checkpoint-every", "keep-checkpoints", "noise-scale",
                                    "log-every", "prompt", "sample-bytes", "quiet"}),
      .takes_file = true,
      .options = {{"layouts", "A;B;..", "several layouts; the trainings of one process that they are compared with run once"},
                  {"ranks", "N,N,..", "numbers of ranks to compare with one process (default: --workers, or 2)"},
                  {"all", "", "show every tensor"}},
      .exclusive = {{"layouts", "layout"}, {"ranks", "workers"}},
      .run = run_verify};
}

}  // namespace cohort
