#pragma once
// Saving a run and going on from where it was: weights, buffers, optimizer state, position in the data. Everything random is a function of
// (seed, step), so there is no generator state to save. Files: docs/formats/checkpoint.md.

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

// Which tensors of a checkpoint the optimizer's state of this run goes on from. With local steps each data-parallel worker has a state of
// its own (parallel/local/state_names.h); every other layout has one, and so has a run with another number of workers. Torch-free.

/// A value.
class StateSources {
 public:
  /// `tensors`: the names that the checkpoint has; `num_workers`: data-parallel workers of this run.
  StateSources(const std::vector<std::string>& tensors, int num_workers)
      : tensors_(tensors.begin(), tensors.end()), num_workers_(num_workers) {}

  /// Of the piece `name` of this run:
  ///   one name     its values are that tensor's: its own, or where the checkpoint has one state for all workers, that one;
  ///   several      its values are their mean: the states of the workers of another layout;
  ///   none         an outer momentum that the checkpoint lacks: it begins at zero; with fragments a worker's own weights where the
  ///                checkpoint has none, or those of another number of workers.
  /// A name that the checkpoint lacks comes back as it is, for the reader to refuse.
  std::vector<std::string> of(const std::string& name) const;
  /// The checkpoint's workers that have a state of their own; 0: there is one for all.
  int num_states() const;

 private:
  std::vector<std::string> of_workers(const std::string& name) const;

  std::set<std::string> tensors_;
  int num_workers_;
};

/// What the data are, as a checkpoint keeps it.
struct DataIdentity {
  int64_t train_samples = 0;
  std::string fingerprint;   ///< data/source/fingerprint.h; "" where nobody asked: then it is neither kept nor compared.
  std::string teacher = {};  ///< Fingerprint of the teacher (train/distil/teacher.h); "" where there is none.
};

class RunState {
 public:
  /// `config`: the job's with defaults and folder filled in. References must outlive the object.
  RunState(const Job& job, LayerGraph& model, Strategy& strategy, Group& group, ParameterPlaces places, DataIdentity data);

  /// Collective. Writes RUN/checkpoints/step-...: every rank the pieces that it owns, rank 0 the manifest. `extra` is kept in the
  /// checkpoint's state (rank 0's counts). `best_step`: whose checkpoint is the best and stays; -1: none's. `makes_run`: the run's folder
  /// too where it is missing (rank 0's counts). Returns the path on every rank. Error(kFailed) on every rank when any cannot.
  std::string save(int64_t step, const Json& extra, int64_t best_step, bool makes_run);
  /// Collective. Loads the newest valid checkpoint of RUN; returns its step, its `extra` and its path. Ranks that cannot read the folder
  /// (another host's disk) get the values from rank 0. Error(kBadInput) on every rank when there is none or it is of another model,
  /// optimizer, global batch, seed or other data.
  int64_t load_latest(Json* extra, std::string* path);

 private:
  std::string newest_checkpoint() const;
  void read_pieces(const Checkpoint& checkpoint, std::vector<FlatPiece>& pieces) const;
  void read_mean(const Checkpoint& checkpoint, const std::vector<std::string>& sources, FlatPiece& piece) const;
  void tell_averaged(const Checkpoint& checkpoint);
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
  std::string settings_;  // As the run's config.toml has them.
};

}  // namespace cohort
