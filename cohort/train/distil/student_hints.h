#pragma once
// The student's side of --hint: what its layers give, to be compared with what its teacher's do (attention_transfer.h).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/data/source/source.h"
#include "cohort/job/specs/small_specs.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/train/distil/layer_taps.h"

namespace cohort {

class LayerGraph;

/// One thread.
class StudentHints {
 public:
  /// `model` is whole, on the CPU; one sample of `train` goes through it. Error(kBadInput) for a layer that it does not have.
  StudentHints(LayerGraph& model, const std::vector<HintPair>& pairs, const DataSource& train);

  /// Names of the teacher's layers, in the order of take().
  std::vector<std::string> teacher_layers() const;
  /// Error(kBadInput) where the teacher's outputs for one sample cannot be compared with the student's.
  void check(const std::vector<at::Tensor>& of_teacher) const;
  /// What the layers gave in the newest forward, once.
  std::vector<at::Tensor> take() const { return taps_.take(); }

 private:
  std::vector<HintPair> pairs_;
  LayerTaps taps_;
  std::vector<std::vector<int64_t>> sizes_;  ///< For one sample.
};

}  // namespace cohort
