#pragma once
// How a model is distributed over ranks: the value of `--layout`. Torch-free; JSON format: docs/formats/layout.md.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/base/text/json_fwd.h"
#include "cohort/job/specs/sync_mode.h"

namespace cohort {

/// A stage of a layout file.
struct LayoutStage {
  std::vector<std::string> layers;  ///< Names.
  int worker = 0;                   ///< Position on the pipeline axis; several stages may share one.
  int dp = 1;                       ///< Ranks (times tp) that share its micro-batches; the same for all stages of a worker.
  bool operator==(const LayoutStage&) const = default;
};

struct COHORT_API Layout {
  int dp = 1;                      ///< Data-parallel degree.
  int pp = 1;                      ///< Pipeline workers.
  int tp = 1;                      ///< Tensor-parallel degree.
  int zero = 0;                    ///< ZeRO stage, 0-3.
  SyncMode sync;                   ///< How data-parallel workers synchronize.
  std::string schedule = "1f1b";   ///< Pipeline schedule: a name, or a file.
  int microbatches = 1;            ///< Per pipeline and step.
  int accumulate = 0;              ///< Gradient accumulation; 0: of the configuration.
  std::string precision;           ///< fp32, bf16, fp16; "": of the configuration.
  std::string shares;              ///< Of the global batch per rank, 3:1:1; "": of the configuration.
  std::string recompute = "none";  ///< none, all, auto, or numbers of layers: 0-5/9.
  std::string compress = "none";
  std::string split = "auto";       ///< auto, even, branches, or the first layer of each stage but the first: 3/7.
  std::string order = "dp-pp-tp";   ///< Axes in rank order, the slowest first.
  bool sequence = false;            ///< tp: sequence parallelism of norms.
  std::vector<LayoutStage> stages;  ///< From a file; else empty, and `split` decides.

  int num_ranks() const;
  /// Whether ranks hold different parts of the model.
  bool is_model_parallel() const { return pp > 1 || tp > 1; }
  /// Data-parallel degree of each worker.
  std::vector<int> data_degrees() const;
  /// Whether all workers have the same degree: then there are that many pipelines, each with its share of the batch. Otherwise there is one
  /// pipeline, whose micro-batches are distributed round-robin over the replicas of a worker.
  bool is_even() const;
};
/// Whether `text` names a .json file.
COHORT_API bool is_layout_file(const std::string& text);
/// The layers that Layout::recompute selects; none for "auto". Error(kBadInput) for a layer that does not exist.
COHORT_API std::vector<bool> recomputed_layers(const std::string& recompute, size_t num_layers);
/// The reverse, as a value of Layout::recompute.
COHORT_API std::string recompute_text(const std::vector<bool>& layers);
/// Number of pipelines (or data-parallel replicas) that divide the batch.
COHORT_API int num_pipelines(const Layout& layout);

/// Parses `dp`, `single`, `KEY=VALUE,...`, the name of a .json file, or its text (beginning with '{'); of a plan.json its layout.
/// `workers`: requested number of ranks, 0 if unspecified; `dp` uses all of them. Error(kBadInput) for a layout of another size, and for
/// unsupported combinations, with an alternative. check_options() refuses keys without effect, as that depends on the configuration.
COHORT_API Layout parse_layout(const std::string& text, int workers);

/// The values that differ from the defaults ("dp=2,zero=1"), or JSON for a layout with stages; parse_layout() reads it back.
COHORT_API std::string to_text(const Layout& layout);
COHORT_API Json to_json(const Layout& layout);

}  // namespace cohort
