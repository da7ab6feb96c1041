#include <algorithm>
#include <csignal>

#include "cohort/base/backend_names.h"
#include "cohort/base/fail.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/study.h"
#include "cohort/study/search/study_queue.h"
#include "cohort/study/store/store.h"
#include "cohort/trials/run_study.h"
#include "cohort/world/launch.h"

namespace cohort {
namespace {

using study::BatchSpec;
using study::StudySpec;

constexpr double kMostNumber = 1e9;  // The largest margin, or seconds.

void keep_batch_sizes(StudySpec& spec, const std::string& text) {
  std::vector<BatchSpec> kept;
  std::vector<std::string> names;
  for (const BatchSpec& batch : spec.batches) names.push_back(std::to_string(batch.batch_size));
  for (const std::string& part : split(text, ',')) {
    const auto size = parse_integer(trim(part));
    const auto found = std::find_if(spec.batches.begin(), spec.batches.end(), [&](const BatchSpec& one) { return size == one.batch_size; });
    if (found == spec.batches.end())
      fail(ErrorCode::kBadInput, "--batch-sizes: '", part, "' is not one of the spec's; it has ", join(names, " "));
    kept.push_back(*found);
  }
  std::sort(kept.begin(), kept.end(), [](const BatchSpec& a, const BatchSpec& b) { return a.batch_size < b.batch_size; });
  for (size_t i = 1; i < kept.size(); ++i)
    if (kept[i].batch_size == kept[i - 1].batch_size) fail(ErrorCode::kBadInput, "--batch-sizes names ", kept[i].batch_size, " twice");
  if (kept.empty()) fail(ErrorCode::kBadInput, "--batch-sizes names none");
  spec.batches = std::move(kept);
}

/// Checked first: only teams need a backend, and they may be formed after hours.
std::string backend_of(const Arguments& arguments) {
  const std::string backend = arguments.option("backend", "auto");
  if (std::find(kBackendNames.begin(), kBackendNames.end(), backend) == kBackendNames.end())
    fail(ErrorCode::kBadInput, "--backend '", printable(backend), "'", did_you_mean(backend, kBackendNames), ": expected one of ",
         join(kBackendNames, " "));
  return backend;
}

StudySpec spec_of(const Arguments& arguments) {
  if (arguments.positional.size() != 2) fail(ErrorCode::kBadInput, "study run takes one SPEC.toml: cohort study run SPEC.toml --out DIR");
  StudySpec spec = study::read_spec(arguments.positional[1]);
  if (arguments.options.contains("batch-sizes")) keep_batch_sizes(spec, arguments.option("batch-sizes", ""));
  for (BatchSpec& batch : spec.batches) {
    batch.num_trials = arguments.integer_option("trials", batch.num_trials, 1, 1'000'000);
    batch.train_steps = arguments.integer_option("steps", batch.train_steps, 1, INT64_C(1) << 40);
  }
  spec.seed = static_cast<uint64_t>(arguments.integer_option("seed", static_cast<int64_t>(spec.seed), 0, INT64_C(1) << 53));
  spec.censor_margin = arguments.number_option("censor-margin", spec.censor_margin, 1, kMostNumber);
  if (arguments.options.contains("no-censoring")) spec.censor = false;
  if (arguments.options.contains("halving")) spec.halving = true;
  if (arguments.options.contains("synthetic")) {
    if (spec.synthetic.empty() && !spec.is_noisy_quadratic())
      fail(ErrorCode::kBadInput, arguments.positional[1], " names no synthetic data (synthetic = \"synthetic:SHAPE,...\" in [workload])");
    // Sizes of the real data do not apply.
    if (!spec.is_noisy_quadratic()) spec.data = spec.synthetic, spec.image_size = spec.val_samples = spec.train_samples = 0;
    if (spec.evaluate_test) log_info("evaluate_test is left out: synthetic data have no test samples");
    spec.evaluate_test = false;
  }
  study::check_spec(spec);
  return spec;
}

/// One worker for each core, but no more than the trials can occupy.
int default_workers(const StudySpec& spec) {
  int64_t useful = 1;
  for (const BatchSpec& batch : spec.batches) useful += batch.num_trials * study::team_size(spec, batch.batch_size, num_usable_cores());
  return static_cast<int>(std::min<int64_t>(num_usable_cores(), useful));
}

}  // namespace

int study_run(const Arguments& arguments) {
  ::signal(SIGPIPE, SIG_IGN);  // A reader that leaves does not end the study, as in train.
  const std::string backend = backend_of(arguments);
  const StudySpec spec = spec_of(arguments);
  const World world = world_from_environment();
  const bool is_launched = world.launcher != "none", dry_run = arguments.options.contains("dry-run");
  const int workers = static_cast<int>(arguments.integer_option("workers", is_launched ? world.size : default_workers(spec), 1, 4096));
  if (is_launched && workers != world.size && !dry_run)
    fail(ErrorCode::kBadInput, "--workers ", workers, " under ", world.launcher, ", which started ", world.size,
         " ranks; leave --workers out");
  StudyRunOptions options{.folder = arguments.option("out", ""),
                          .json = arguments.options.contains("json"),
                          .quiet = arguments.options.contains("quiet"),
                          .timeout = arguments.number_option("timeout", 60, 0.001, kMostNumber),
                          .backend = backend};
  if (options.folder.empty() && !dry_run)
    fail(ErrorCode::kBadInput, "study run: --out DIR is missing: the study's folder, new or one to go on with");
  if (dry_run) {
    if (world.rank == 0) forecast_study(spec, open_study_workload(spec), options.folder, workers, options.json);
    return 0;
  }
  const StudyWorkload workload = open_study_workload(spec);
  // Errors of DIR are reported before ranks are started. The store is closed again, since it does not survive a fork.
  if (world.rank == 0) study::Store::open(options.folder, spec);
  if (is_launched) {
    if (world.size > 1) set_log_rank(world.rank);
    return guarded(world, [&](const World& rank) { return run_study(spec, workload, rank, options); });
  }
  if (options.backend == "mpi" || options.backend == "shm+mpi")
    fail(ErrorCode::kBadInput, "--backend ", options.backend, " exchanges over the MPI that started the ranks; start them with mpirun -n ",
         std::max(2, workers), " cohort study run ...");
  if (workers == 1) return guarded(world, [&](const World& rank) { return run_study(spec, workload, rank, options); });
  MessageListener listener = MessageListener::for_forks();
  options.listener = &listener;
  const int code =
      run_ranks({.num_ranks = workers, .stop_seconds = arguments.number_option("grace", 30, 0.1, kMostNumber), .counts_steps = false},
                [&](const World& rank) { return run_study(spec, workload, rank, options); });
  if (code == static_cast<int>(ErrorCode::kEnvironment)) log_info(concat("the same command goes on with ", options.folder));
  return code;
}

}  // namespace cohort
