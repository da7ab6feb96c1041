#pragma once
// How one model spans the ranks: the value behind `--layout`. Torch-free; a planner writes it as JSON (docs/formats/layout.md).

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/base/text/json_fwd.h"
#include "cohort/job/specs/sync_mode.h"

namespace cohort {

/// A stage that a layout file spells out.
struct LayoutStage {
  std::vector<std::string> layers;  ///< By name.
  int worker = 0;                   ///< Place on the pipeline axis of the ranks that run it; several stages may share one.
  int dp = 1;                       ///< Ranks (each times tp) that share its micro-batches; the same for all stages of a worker.
  bool operator==(const LayoutStage&) const = default;
};

struct COHORT_API Layout {
  int dp = 1;                      ///< Data-parallel degree.
  int pp = 1;                      ///< Pipeline workers.
  int tp = 1;                      ///< Tensor-parallel degree.
  int zero = 0;                    ///< ZeRO stage, 0-3.
  SyncMode sync;                   ///< How data-parallel workers wait for one another.
  std::string schedule = "1f1b";   ///< Pipeline schedule: a name, or a file with a table.
  int microbatches = 1;            ///< Of each pipeline, a step.
  int accumulate = 0;              ///< Times that a step goes through the model; 0: as the configuration says.
  std::string precision;           ///< fp32, bf16, fp16; "": as the configuration says.
  std::string shares;              ///< Of the global batch by rank, 3:1:1; "": as the configuration says.
  std::string recompute = "none";  ///< none, all, auto, or the layers that do, by number: 0-5/9.
  std::string compress = "none";
  std::string split = "auto";       ///< auto, even, branches, or first layers of the stages but the first: 3/7.
  std::string order = "dp-pp-tp";   ///< Axes from the slowest to the fastest in rank order.
  bool sequence = false;            ///< tp: norms work on parts of the positions.
  std::vector<LayoutStage> stages;  ///< From a file; else empty, and `split` rules.

  int num_ranks() const;
  /// Whether ranks hold different parts of the model.
  bool is_model_parallel() const { return pp > 1 || tp > 1; }
  /// Data degree of each worker.
  std::vector<int> data_degrees() const;
  /// Whether all workers have the same: then there is that number of pipelines side by side, each with its share of the batch. Else there
  /// is one, whose micro-batches the replicas of a worker take in turn.
  bool is_even() const;
};
/// Whether `--layout` names a .json file with that.
COHORT_API bool is_layout_file(const std::string& text);
/// Which of a model's layers Layout::recompute names; none for "auto". Error(kBadInput) for one that the model has not.
COHORT_API std::vector<bool> recomputed_layers(const std::string& recompute, size_t num_layers);
/// As Layout::recompute writes them.
COHORT_API std::string recompute_text(const std::vector<bool>& layers);
/// Pipelines (or data-parallel replicas) that divide the batch.
COHORT_API int num_pipelines(const Layout& layout);

/// Reads `auto`, `single`, `KEY=VALUE,...`, the name of a .json file, or that file's text (from '{' on); a plan.json counts
/// by its layout. `workers` is the number of ranks
/// asked for, 0 where nothing was said; `auto` is data parallelism over all of them, and a layout of other size than `workers` is refused.
/// What this version cannot do is refused with a sentence that says what to use instead. Error(kBadInput). What would do nothing is for
/// check_options to refuse, which knows the configuration too.
COHORT_API Layout parse_layout(const std::string& text, int workers);

/// "dp=2" and so on: only what differs from one process; parse_layout reads it back. Layouts with stages of their own: JSON.
COHORT_API std::string to_text(const Layout& layout);
COHORT_API Json to_json(const Layout& layout);

}  // namespace cohort
