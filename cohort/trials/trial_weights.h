#pragma once
// The trained parameters of a model as one flat array, with the optimizer's state beside it.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/parallel/common/parameters.h"
#include "cohort/parallel/optimizer/update.h"
#include "cohort/study/spec/data.h"

namespace cohort {

class LayerGraph;

/// Parameters of an adopted model are views into weights(). One thread.
class TrialWeights {
 public:
  struct Segment {
    std::string name;
    at::Tensor parameter;     ///< As the model has it; tied ones once.
    int64_t offset, count;    ///< Elements of the flat arrays; offsets are multiples of a cache line.
    int64_t num_updates = 0;  ///< Of the optimizer, so far.
  };

  /// Copies the model's trained parameters into the array, makes them views of it, and begins with a fresh optimizer. Frozen parameters
  /// stay what they are. A later model of the same shapes uses the same memory. `average_decay` above 0: an average of the weights is kept
  /// too, which begins as they do. Error(kBadInput) for trained parameters that are not floats on the CPU, or where there are none.
  void adopt(const LayerGraph& model, const UpdateRule& rule, double average_decay = 0);

  std::vector<Segment>& segments() { return segments_; }
  const std::vector<Segment>& segments() const { return segments_; }
  int64_t size() const { return weights_.defined() ? weights_.numel() : 0; }  ///< Elements, gaps between segments included.
  const at::Tensor& weights() const { return weights_; }                      ///< {size()}
  /// Of UpdateRule::slots(), each {size()}, and behind them the average of the weights where one is kept.
  const std::vector<at::Tensor>& slots() const { return slots_; }
  bool has_average() const { return average_decay_ > 0; }

  /// One update of one segment; `gradient` has its `count` elements.
  void update(Segment& segment, double learning_rate, const float* gradient);
  /// Of all of them by a flat gradient. All must have had the same number of updates.
  void update_all(double learning_rate, const float* gradient);
  /// After each step: average = decay x average + (1 - decay) x weights, where one is kept (Zhang et al. 2024, "How does critical batch
  /// size scale in pre-training?", section 2: with a constant learning rate it takes the place of a decay, so one run answers for every
  /// budget).
  void update_average();
  /// The model computes with the average, until the next call. Only where one is kept.
  void swap_average();

 private:
  size_t num_slots() const { return slots_.size() - (has_average() ? 1 : 0); }  // Of the optimizer.

  UpdateRule rule_;
  double average_decay_ = 0;
  std::vector<Segment> segments_;
  at::Tensor weights_;
  std::vector<at::Tensor> slots_;
};

// The state of a running trial on disk: a safetensors file that is replaced as a whole.

/// What a trial has besides its weights and buffers.
struct TrialProgress {
  int64_t step = 0;    ///< Updates done.
  double seconds = 0;  ///< That it took so far, of all workers together; 0 in files of versions that did not keep it.
  std::vector<study::Measurement> measurements;
};

/// `trial` says which trial this is: what decides its result, as one line of text. Error(kFailed) when the file cannot be written.
void save_trial_snapshot(const std::string& path, const std::string& trial, const TrialProgress& progress, const TrialWeights& weights,
                         const std::vector<NamedTensor>& buffers);

/// Fills weights, optimizer state, counts and buffers (of the same model and optimizer) and `progress`, and returns true; or changes
/// nothing and returns false where there is no file. A file that is damaged, or another trial's: false, and a warning that names it.
bool load_trial_snapshot(const std::string& path, const std::string& trial, TrialProgress& progress, TrialWeights& weights,
                         const std::vector<NamedTensor>& buffers);

}  // namespace cohort
