#include "cohort/verify/verifiable.h"

#include <string>

#include "cohort/base/fail.h"
#include "cohort/job/job.h"
#include "cohort/job/specs/sync_mode.h"
#include "cohort/train/check_run.h"

namespace cohort {
namespace {

/// Whether an exchange takes the workers' mean, and no outer step is made.
bool averages(const SyncMode& sync, const Config& config) {
  return sync.kind == SyncKind::kLocal || (sync.kind == SyncKind::kDiloco && config.outer_lr == 1 && config.outer_momentum == 0);
}

/// Of workers that do not wait: one alone is one process; and all gradients of one version, applied one after the other, are what plain SGD
/// sums, as is an average of all workers after every step.
void check_served(const SyncMode& sync, const Config& config, const Layout& layout) {
  if (layout.num_ranks() == 1 && (sync.quorum == 0 || averages(sync, config))) return;
  const bool waits_for_all = sync.quorum == layout.num_ranks() && sync.number == 1 && averages(sync, config);
  const bool is_step = waits_for_all || (sync.kind == SyncKind::kStale && sync.number == 0 && config.remedy.empty());
  if (!is_step)
    fail(ErrorCode::kBadInput, "verify: sync=", layout.sync, config.remedy.empty() ? "" : name_settings(" with --remedy " + config.remedy),
         " is another training by design, so there is nothing to compare; verify the layout with sync=step",
         sync.quorum > 0 ? name_settings(", or see the exchange itself with sync=local:1:quorum=N of N workers and --optimizer sgd")
                         : name_settings(", or see the server itself with sync=stale:0 and --optimizer sgd, or with one worker"));
  if (config.optimizer != "sgd" || config.clip_norm > 0)
    fail(ErrorCode::kBadInput, "verify: sync=", layout.sync,
         config.clip_norm > 0 ? concat(name_settings(" with --clip-norm "), config.clip_norm)
                              : name_settings(" with --optimizer " + config.optimizer),
         sync.quorum == 0       ? " moves the weights a worker's share at a time, which is another training by design; "
         : config.clip_norm > 0 ? " is another training by design: each worker clips its own gradient; "
                                : " keeps a state in each worker, which no single process has; ",
         name_settings("use --optimizer sgd without --clip-norm"), ", or sync=step");
}

/// Of workers that train by themselves between exchanges, what is the same training as `step`: an average after every step of what plain
/// SGD is linear in; or one worker, which nobody averages with.
void check_sync(const Config& config, const Layout& layout) {
  const SyncMode& sync = layout.sync;
  if (sync.kind == SyncKind::kStep) return;
  if (!is_local(sync)) return check_served(sync, config, layout);
  const std::string outer = sync.kind == SyncKind::kDiloco ? concat(name_settings(" with --outer-lr "), config.outer_lr,
                                                                    name_settings(" and --outer-momentum "), config.outer_momentum)
                                                           : "";
  const bool is_alone = num_pipelines(layout) == 1;
  if (!averages(sync, config) || (sync.number > 1 && !is_alone))
    fail(ErrorCode::kBadInput, "verify: sync=", layout.sync, outer,
         " is another training by design, so there is nothing to compare; verify the layout with sync=step",
         name_settings(", or see the exchange itself with sync=local:1 (or diloco:1 --outer-lr 1 --outer-momentum 0) and --optimizer sgd"));
  if (!is_alone && config.optimizer != "sgd")
    fail(ErrorCode::kBadInput, "verify: sync=", layout.sync, name_settings(" with --optimizer "), config.optimizer,
         name_settings(" keeps a state in each worker, which no single process has; use --optimizer sgd, or sync=step"));
  if (!is_alone && config.clip_norm > 0)
    fail(ErrorCode::kBadInput, "verify: sync=", layout.sync, name_settings(" with --clip-norm "), config.clip_norm,
         name_settings(" is another training by design: each worker clips its own gradient; leave --clip-norm out, or use sync=step"));
}

}  // namespace

void check_verifiable(const Config& config, const Layout& layout, const DataSet& data) {
  check_sync(config, layout);
  if (layout.compress != "none")
    fail(ErrorCode::kBadInput,
         "verify: compressed gradients are another training by design, so there is nothing to compare; verify the layout with "
         "compress=none");
  if (config.shares == "auto")
    fail(ErrorCode::kBadInput,
         name_settings("verify: --shares auto follows the speed of the moment, so no two runs are alike; give numbers, as 3:1"));
  const Job job = resolve(config, layout);
  check_data(job, data);
  check_run(job, data.train->shape().kind == DataShape::Kind::kText);
}

}  // namespace cohort
