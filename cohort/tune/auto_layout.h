#pragma once
// --layout auto: refuses what no layout can do before it measures, measures the model here, plans, and where two plans are too close to
// tell lets them run some steps.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/text/json.h"
#include "cohort/data/source/source.h"
#include "cohort/job/config.h"
#include "cohort/job/job.h"
#include "cohort/plan/plan.h"
#include "cohort/study/goal_curve.h"
#include "cohort/world/world.h"

namespace cohort {

// What --layout auto can refuse before it measures: one line, and no seconds spent.

/// Error(kBadInput) where a configuration is refused with every kind of layout that may be chosen for `num_ranks` ranks: one process (where
/// fewer ranks may be taken), data parallelism, ZeRO, a pipeline, divided layers. It is what data parallelism is refused for.
void check_any_layout(const Config& config, int num_ranks, bool may_be_fewer, std::optional<bool> is_text);

/// Error(kBadInput) for what the model cannot do in any layout, as a run would say it; Error(kInfeasible) where its weights and gradients
/// are more than --memory-limit even in equal parts on all ranks. The model is built: with `forks` in a process of its own, which leaves
/// this one with its one thread, and which says on stderr what is wrong; the Error has no text then.
void check_model_for_auto(const Job& job, const DataSet& data, int num_ranks, bool forks);

/// What a plan of `config` asks: its batch, optimizer, memory limit and precision, its --accumulate where that was given; without cluster.
SearchRequest measured_request(const Config& config, const ModelProfile& profile);

/// 1, 2, 4, ... and `most`: the numbers of workers that are measured where at most so many may be chosen.
std::vector<int> numbers_of_workers(int most);

/// What --layout auto chooses the batch by as well: steps to the goal of --study.
struct AutoGoal {
  study::GoalCurve curve;
  /// A configuration with a batch of the curve becomes the one with the metaparameters of its best trial.
  std::function<Config(const Config& config, const Layout& layout)> settle;
};

/// What a plan need not find out.
struct KnownBefore {
  std::optional<ModelProfile> profile;  ///< Measured before; nothing: it is measured.
  std::string calibration_file;         ///< Of the errors of forecasts before; "": none.
  double measured_seconds = 0;          ///< What `profile` took, where it was measured just now.
};

struct AutoLayout {
  Config config;                            ///< With the layout, its workers, precision and accumulate.
  Json plan;                                ///< plan.json.
  std::optional<PlanProblem> problem = {};  ///< What the plan is of, where the choice was made by this process.
  std::vector<std::string> sentences;       ///< What was chosen and why, for people.
};

/// For at most config.workers ranks (0: 1) of this host, forked by run_ranks. The process must have one thread. Error as train(): kBadInput
/// for a model that can not be measured, kInfeasible where nothing fits.
///
/// With a goal (null: none) batch, workers and layout are those that are soonest there, of the batches up to the flat point;
/// config.global_batch is the largest of them then, and the layers are measured up to it.
AutoLayout choose_layout(const Config& config, const DataSet& data, bool shows_progress, const KnownBefore& known = {},
                         const AutoGoal* goal = nullptr);

/// Under a launcher: for exactly the ranks that there are, which all call it, before they make any other group. The same answer on all.
AutoLayout choose_layout_together(const Config& config, const DataSet& data, const World& world, const KnownBefore& known = {},
                                  const AutoGoal* goal = nullptr);

}  // namespace cohort
