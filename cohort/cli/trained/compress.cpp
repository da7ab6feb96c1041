#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/verb.h"
#include "cohort/cli/trained/compress.h"
#include "cohort/cli/trained/trained.h"

namespace cohort {

/// "0.5%" and "0.005" are the same. For a regression it is a part of a standard deviation.
std::optional<double> error_increase(const Arguments& arguments) {
  const std::string text = arguments.option("max-error-increase", "");
  if (text.empty()) return {};
  const bool is_percent = text.ends_with('%');
  const auto value = parse_number(is_percent ? text.substr(0, text.size() - 1) : text);
  const double part = value ? *value / (is_percent ? 100 : 1) : -1;
  if (!(part >= 0 && part <= 1))
    fail(ErrorCode::kBadInput, "--max-error-increase ", text, ": expected points of error such as 0.5%, or 0.005, from 0% to 100%");
  return part;
}

namespace {

int run_compress(const Arguments& arguments) {
  using Run = int (*)(const Arguments&);
  static const std::map<std::string, Run> runs = {
      {"quantize", run_quantize}, {"distill", run_distil}, {"prune", run_prune}, {"search", run_compress_search}};
  const auto run = runs.find(arguments.action);
  if (run == runs.end()) {
    const std::vector<std::string> actions = {"quantize", "prune", "distill", "search"};
    fail(ErrorCode::kBadInput, "compress: '", arguments.action, "' is not an action", did_you_mean(arguments.action, actions),
         "; actions: ", join(actions, " "));
  }
  Arguments of_action = arguments;  // Without the action's word.
  of_action.positional.erase(of_action.positional.begin());
  return run->second(of_action);
}

}  // namespace

Verb compress_verb() {
  Verb verb = {
      .name = "compress",
      .summary =
          "Makes a trained model smaller and faster for one weak computer, and says what it cost: int8 and int4, zeros, fewer channels, a "
          "student.",
      .examples = {"cohort train --model cnn --data fashion-mnist --steps 100 --run runs/x",
                   "cohort compress quantize runs/x --out small.safetensors", "cohort evaluate small.safetensors --split test",
                   "cohort compress quantize runs/x --calibration mse --max-error-increase 0.5% --out careful.safetensors",
                   "cohort compress quantize runs/x --bits 4 --scheme weight-only --out four.safetensors --json",
                   "cohort compress quantize runs/x --scheme qat --steps 10 --workers 2 --out tuned.safetensors",
                   "cohort compress prune runs/x --sparsity 0.9 --out sparse.safetensors",
                   "cohort compress prune runs/x --granularity channel --sparsity 0.5 --workers 2 --out half.safetensors",
                   "cohort compress distill runs/x --student fc:hidden=32 --steps 200 --out student.safetensors",
                   "cohort compress search runs/x --max-error-increase 1% --out best.safetensors --report tried.html"},
      .positional_help =
          "quantize, prune, distill or search, then a run folder (or one of its checkpoints) or a FILE.safetensors that checkpoint export "
          "wrote",
      .settings = distil_settings(),
      .defaults_from_run = settings_from_teacher(),
      .options = {{"out", "FILE.safetensors", "the file to write"},
                  {"calibration-samples", "N", "of the training part (default 512)"},
                  {"max-error-increase", "X%", "points of error; the most sensitive layers stay floats until it holds"},
                  distil_student_option(),
                  {"max-bytes", "N", "search: the largest file that will do"},
                  {"budget", "SECONDS", "search: no further way is begun after this (default 600)"},
                  {"report", "FILE.html", "a page with the table; of search with everything that was tried, error against size"},
                  checkpoint_option()},
      .actions = {quantize_action(),
                  {.name = "search",
                   .most_words = 100,
                   .reads = {"out", "max-error-increase", "max-bytes", "budget", "report", "calibration-samples", "checkpoint", "data",
                             "val-samples", "skip-bad", "plugin", "threads", "json"}},
                  distil_action()},
      .run = run_compress};
  for (const auto& options : {quantize_options(), prune_options()}) verb.options.insert(verb.options.end(), options.begin(), options.end());
  verb.actions.push_back(prune_action());
  return verb;
}

}  // namespace cohort
