#include "cohort/cli/study.h"

#include <cmath>
#include <optional>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/study/spec/spec.h"

namespace cohort {
namespace {

struct Action {
  const char* name;
  int (*run)(const Arguments&);
};
constexpr Action kActions[] = {
    {"run", study_run}, {"fit", study_fit}, {"report", study_report}, {"export", study_export}, {"import", study_import}};

int run_action(const Arguments& arguments) {
  Config config;
  config.plugin = arguments.option("plugin", "");
  load_plugin(config);
  const std::string& name = arguments.action;
  std::vector<std::string> names;
  for (const Action& action : kActions) {
    if (name == action.name) return action.run(arguments);
    names.emplace_back(action.name);
  }
  fail(ErrorCode::kBadInput, "study: '", name, "' is not an action", did_you_mean(name, names), "; actions: ", join(names, " "));
}

}  // namespace

double reference_batch(const Arguments& arguments) {
  const std::string text = arguments.option("reference-batch", "");
  if (!arguments.options.contains("reference-batch")) return 0;
  const std::optional<double> value = parse_number(text);
  if (!value || !std::isfinite(*value) || *value <= 0)
    fail(ErrorCode::kBadInput, "--reference-batch ", text, ": expected a batch size above 0");
  return *value;
}

void check_reference_batch(double reference, const std::set<double>& measured) {
  if (reference == 0 || measured.contains(reference)) return;
  std::vector<std::string> names;
  for (const double size : measured) names.push_back(study::number_text(size));
  fail(ErrorCode::kBadInput, "--reference-batch ", study::number_text(reference), " was not measured as a batch size; there are ",
       join(names, " "));
}

Verb study_verb() {
  return {
      .name = "study",
      .summary =
          "How many training steps does each batch size need, where does a larger one stop helping, and how many workers is that worth? "
          "run searches the hyperparameters anew for every batch size; fit and report say what came out.",
      .examples = {"cohort study run studies/quick.toml --out runs/quick --workers 2", "cohort study run studies/quick.toml --dry-run",
                   "cohort study report runs/quick", "cohort study fit runs/quick --goal 'val_error<0.14'",
                   "cohort study fit runs/quick --law all --reference-batch 256",
                   "mpirun -n 2 cohort study run studies/quick.toml --out runs/mpi", "cohort study export runs/quick --out archive",
                   "cohort study import archive", "cohort train --global-batch auto --study runs/quick --workers 2"},
      .positional_help = "run SPEC.toml | fit TABLE.csv|DIR | report DIR... | export DIR | import FOLDER",
      .options =
          {{"out", "DIR",
            "run: the study's folder, new or one to go on with; report: FILE.html (default DIR/report.html); export: the archive's root; "
            "import: a study's folder to make of the archive's one workload"},
           {"workers", "N",
            "run: ranks on this machine (default: one a core); under mpirun, srun or torchrun theirs; report: step times are measured for "
            "1 to N"},
           {"dry-run", "", "run: trials, steps and hours beforehand; nothing is written"},
           {"synthetic", "", "run: synthetic data of the spec's shape instead of its own"},
           {"batch-sizes", "B,B,...", "run: only these batch sizes of the spec"},
           {"trials", "N", "run: N trials count at each batch size"},
           {"steps", "N", "run: budget of a trial at every batch size"},
           {"seed", "S", "run: another seed of points, weights and data order"},
           {"no-censoring", "", "run: every trial uses its whole budget"},
           {"censor-margin", "X", "run: a trial may go on to X times the best steps so far (default 1, or as the spec says)"},
           {"halving", "", "run: successive halving of trials. Biased: slow starters are cut; results say so"},
           {"goal", "GOAL", "fit, report: such as 'val_error<0.14' (default: the spec's first)"},
           {"goals", "GOAL,GOAL,...", "report: goals of figure 2 beside --goal, on the same metric (default: chosen)"},
           {"law", "NAME", "fit: hyperbola, knee, log-linear or all (default all)"},
           {"reference-batch", "B",
            "fit, report: linear scaling is taken from here, and plots of shares are relative to it (default: the smallest)"},
           {"budget-steps", "N,N,...", "report: budgets of figures 9 and 11, in steps (default: chosen)"},
           {"budget-epochs", "X,X,...", "report: the same in passes over the training data"},
           {"noise-run", "RUN",
            "report: a run of the same workload made with `train --noise-scale N`: its gradient noise scale is shown beside the fits"},
           {"no-times", "", "report: no step times are measured; those of an earlier report are used"},
           {"backend", "NAME", "run: auto, shm, gloo, mpi, shm+gloo or shm+mpi, for batches divided over workers"},
           {"timeout", "SECONDS", "run: the longest an exchange may take (default 60)"},
           {"grace", "SECONDS", "run: after Ctrl-C or SIGTERM ranks may take so long to stop (default 30)"},
           {"plugin", "FILE.so", "run, report: loads the models that a shared library registers"},
           {"json", "", "one JSON object a line"},
           {"quiet", "", "run, report: no progress bar, no notes"}},
      .actions = {{.name = "run",
                   .most_words = 1,
                   .reads = {"out", "workers", "dry-run", "synthetic", "batch-sizes", "trials", "steps", "seed", "no-censoring",
                             "censor-margin", "halving", "backend", "timeout", "grace", "plugin", "json", "quiet"}},
                  {.name = "fit", .most_words = 1, .reads = {"goal", "law", "reference-batch", "json"}},
                  {.name = "report",
                   .most_words = 1000,
                   .reads = {"out", "workers", "goal", "goals", "reference-batch", "budget-steps", "budget-epochs", "noise-run", "no-times",
                             "plugin", "json", "quiet"}},
                  {.name = "export", .most_words = 1, .reads = {"out", "json"}},
                  {.name = "import", .most_words = 1, .reads = {"out", "json"}}},
      .exclusive = {{"no-censoring", "censor-margin"}, {"no-times", "workers"}},
      .run = run_action};
}

}  // namespace cohort
