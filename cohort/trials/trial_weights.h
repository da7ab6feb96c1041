#pragma once
// The trained parameters of a model and its optimizer state as flat arrays, and their snapshot on disk.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/optimizer/update.h"
#include "cohort/study/spec/data.h"

namespace cohort {

class LayerGraph;

/// Parameters of an adopted model are views into weights(). Used by one thread.
class TrialWeights {
 public:
  struct Segment {
    std::string name;
    at::Tensor parameter;     ///< The model's tensor; tied parameters are listed once.
    int64_t offset, count;    ///< In elements of the flat arrays; offsets are multiples of a cache line.
    int64_t num_updates = 0;  ///< Optimizer updates so far.
  };

  /// Copies the model's trained parameters into the array, makes them views of it, and resets the optimizer. Frozen parameters are not
  /// changed. Later models of the same shapes reuse the memory. With `average_decay` above 0 an average of the weights is kept too, which
  /// starts equal to them. Error(kBadInput) for trained parameters that are not floats on the CPU, or where there are none.
  void adopt(const LayerGraph& model, const UpdateRule& rule, double average_decay = 0);

  std::vector<Segment>& segments() { return segments_; }
  const std::vector<Segment>& segments() const { return segments_; }
  int64_t size() const { return weights_.defined() ? weights_.numel() : 0; }  ///< Elements, gaps between segments included.
  const at::Tensor& weights() const { return weights_; }                      ///< {size()}
  /// The optimizer state, each {size()} (UpdateRule::slots()), followed by the average of the weights where one is kept.
  const std::vector<at::Tensor>& slots() const { return slots_; }
  bool has_average() const { return average_decay_ > 0; }

  /// Updates one segment; `gradient` has its `count` elements.
  void update(Segment& segment, double learning_rate, const float* gradient);
  /// Updates all segments by a flat gradient. All must have had the same number of updates.
  void update_all(double learning_rate, const float* gradient);
  /// Called after each step: average = decay x average + (1 - decay) x weights, where one is kept. Source: Zhang et al. 2024, "How does
  /// critical batch size scale in pre-training?", section 2: with a constant learning rate it replaces a decay, so that one run serves
  /// every budget.
  void update_average();
  /// Swaps weights and average. Requires that an average is kept.
  void swap_average();

 private:
  size_t num_slots() const { return slots_.size() - (has_average() ? 1 : 0); }  // Without the average.

  UpdateRule rule_;
  double average_decay_ = 0;
  std::vector<Segment> segments_;
  at::Tensor weights_;
  std::vector<at::Tensor> slots_;
};

// Snapshot of a running trial: a safetensors file that is replaced atomically.

/// The state of a trial besides its weights and buffers.
struct TrialProgress {
  int64_t step = 0;    ///< Completed updates.
  double seconds = 0;  ///< Time so far, summed over all workers; 0 in files of versions that did not store it.
  std::vector<study::Measurement> measurements;
};

/// `trial` identifies the trial by all settings that determine its result. Error(kFailed) where the file cannot be written.
void save_trial_snapshot(const std::string& path, const std::string& trial, const TrialProgress& progress, const TrialWeights& weights,
                         const std::vector<NamedTensor>& buffers);

/// Restores weights, optimizer state, update counts and buffers (of the same model and optimizer) and `progress`, and returns true; without
/// a file changes nothing and returns false. Also false, with a warning, for a damaged file or one of another trial.
bool load_trial_snapshot(const std::string& path, const std::string& trial, TrialProgress& progress, TrialWeights& weights,
                         const std::vector<NamedTensor>& buffers);

}  // namespace cohort
