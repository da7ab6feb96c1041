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

// Checks of --layout auto before it measures.

/// Error(kBadInput) where a configuration is refused with every kind of layout that may be chosen for `num_ranks` ranks: one process (where
/// fewer ranks may be taken), data parallelism, ZeRO, a pipeline, divided layers. It is what data parallelism is refused for.
void check_any_layout(const Config& config, int num_ranks, bool may_be_fewer, std::optional<bool> is_text);

/// Error(kBadInput) for what the model cannot do in any layout, with the message of a run; Error(kInfeasible) where its weights and
/// gradients are more than --memory-limit even in equal parts on all ranks. The model is built: with `forks` in a process of its own, which
/// leaves this one with its one thread, and which says on stderr what is wrong; the Error has no text then.
void check_model_for_auto(const Job& job, const DataSet& data, int num_ranks, bool forks);

/// The search request of `config`: batch, optimizer, memory limit, precision and a given --accumulate; without cluster.
SearchRequest measured_request(const Config& config, const ModelProfile& profile);

/// 1, 2, 4, ... and `most`: the numbers of workers that are measured where at most so many may be chosen.
std::vector<int> numbers_of_workers(int most);

/// Steps to the goal of --study, by which --layout auto also chooses the batch.
struct AutoGoal {
  study::GoalCurve curve;
  /// A configuration with a batch of the curve becomes the one with the hyperparameters of its best trial.
  std::function<Config(const Config& config, const Layout& layout)> settle;
};

/// Known inputs of a plan.
struct KnownInputs {
  std::optional<ModelProfile> profile;  ///< Measured before; nothing: it is measured.
  std::string calibration_file;         ///< Errors of earlier forecasts; "": none.
  double measured_seconds = 0;          ///< What `profile` took, where it was measured just now.
};

struct AutoLayout {
  Config config;                            ///< The configuration with the chosen layout, workers, precision and accumulate.
  Json plan;                                ///< plan.json.
  std::optional<PlanProblem> problem = {};  ///< The problem of the plan, where this process made the choice.
  std::vector<std::string> sentences;       ///< The choice and its reasons, for the user.
};

/// Chooses a layout for at most config.workers ranks (0: 1) of this host, which run_ranks forks. The process must have one thread. Errors
/// are those of train(): kBadInput for a model that cannot be measured, kInfeasible where nothing fits.
///
/// With a goal (null: none) it chooses batch, workers and layout that reach the goal first, among batches up to the flat point;
/// config.global_batch is then the largest of these, and layers are measured up to it.
AutoLayout choose_layout(const Config& config, const DataSet& data, bool shows_progress, const KnownInputs& known = {},
                         const AutoGoal* goal = nullptr);

/// Chooses a layout for exactly the ranks that a launcher started. All call it before they make any other group and get the same answer.
AutoLayout choose_layout_together(const Config& config, const DataSet& data, const World& world, const KnownInputs& known = {},
                                  const AutoGoal* goal = nullptr);

}  // namespace cohort
