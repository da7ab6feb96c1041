#pragma once
// Saves and loads the state of a run: weights, buffers, optimizer state, position in the data. All randomness is a function of (seed,
// step), so there is no generator state to save. Files: docs/formats/checkpoint.md.

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/comm/group.h"
#include "cohort/job/config.h"
#include "cohort/job/job.h"
#include "cohort/job/layout.h"
#include "cohort/parallel/strategy/strategy.h"
#include "cohort/train/model/checkpoint_pieces.h"

namespace cohort {

class LayerGraph;

/// Maps tensors of this run to those of a checkpoint. With local steps each data-parallel worker has an optimizer state of its own
/// (parallel/local/fragments.h); every other layout has one for all. A value; Torch-free.
class StateSources {
 public:
  /// `tensors`: the names in the checkpoint; `num_workers`: data-parallel workers of this run.
  StateSources(const std::vector<std::string>& tensors, int num_workers)
      : tensors_(tensors.begin(), tensors.end()), num_workers_(num_workers) {}

  /// The sources of the piece `name` of this run:
  ///   one       its own tensor, or the one state for all workers;
  ///   several   the states of another number of workers, of which the piece is the mean;
  ///   none      an outer momentum that the checkpoint lacks, which begins at zero; or with fragments a worker's own weights, where the
  ///             checkpoint has none, or those of another number of workers.
  /// A name that the checkpoint lacks is returned unchanged, for the reader to reject.
  std::vector<std::string> of(const std::string& name) const;
  /// Worker states in the checkpoint; 0: there is one for all.
  int num_states() const;

 private:
  std::vector<std::string> of_workers(const std::string& name) const;

  std::set<std::string> tensors_;
  int num_workers_;
};

/// The identity of a run's data and teacher, as a checkpoint stores it.
struct DataIdentity {
  int64_t train_samples = 0;
  std::string fingerprint;   ///< data/source/fingerprint.h; "": neither stored nor compared.
  std::string teacher = {};  ///< Fingerprint of the teacher; "": none.
};

class RunState {
 public:
  /// The job's configuration has its defaults and run folder filled in. References must outlive the object.
  RunState(const Job& job, LayerGraph& model, Strategy& strategy, Group& group, ParameterPlaces places, DataIdentity data);

  /// Collective. Writes RUN/checkpoints/step-...: every rank the pieces that it owns, rank 0 the manifest with its `extra`. `best_step`:
  /// its checkpoint is kept; -1: none. `makes_run`: rank 0 makes a missing run folder. Returns the path on every rank. Error(kFailed) on
  /// every rank when one cannot.
  std::string save(int64_t step, const Json& extra, int64_t best_step, bool makes_run);
  /// Collective. Loads the newest valid checkpoint of RUN; returns its step, its `extra` and its path. If some rank cannot read the folder
  /// (on another host's disk), all get the values from rank 0. Error(kBadInput) on every rank when there is none or it is of another model,
  /// optimizer, global batch, seed or other data.
  int64_t load_latest(Json* extra, std::string* path);

 private:
  std::string newest_checkpoint() const;
  void read_pieces(const Checkpoint& checkpoint, std::vector<FlatPiece>& pieces) const;
  void read_mean(const Checkpoint& checkpoint, const std::vector<std::string>& sources, FlatPiece& piece) const;
  void log_averaged(const Checkpoint& checkpoint);
  void read_compressor_state(const Checkpoint& checkpoint, FlatPiece& piece) const;
  void receive_residual(const Checkpoint* checkpoint, const std::string& name, const std::vector<int64_t>& shape, FlatPiece* piece);
  void receive_pieces(const Checkpoint* checkpoint, std::vector<FlatPiece>& pieces);
  Json describe(int64_t step, const Json& extra) const;

  const Job& job_;
  LayerGraph& model_;
  Strategy& strategy_;
  Group& group_;
  ParameterPlaces places_;
  DataIdentity data_;
  std::string settings_;  // The text of the run's config.toml.
};

}  // namespace cohort
