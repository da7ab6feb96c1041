#pragma once
// Loss and error of a trial's model over many samples, divided over its team.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

#include "cohort/comm/group.h"
#include "cohort/trials/dense_chain.h"
#include "cohort/trials/trial_data.h"

namespace cohort {

class LayerGraph;

struct TrialEvaluation {
  double loss = 0;   ///< Mean cross-entropy over all targets, without label smoothing.
  double error = 0;  ///< Share of targets whose likeliest class is wrong; of labels, whose score is on the wrong side of 0.
  double precision = std::numeric_limits<double>::quiet_NaN();  ///< Of labels the mean average precision; else NaN.
};

/// Of `logits` {targets, classes}, floats, and `target` {targets}: how many have another likeliest class (the first of equals); also those
/// outside of the classes. One pass over the logits.
int64_t count_wrong_targets(const at::Tensor& logits, const at::Tensor& target);

/// The first `num_samples` samples. Collective; the same bits on every rank and, for equal weights, for every size of the team: chunks do
/// not depend on it and their sums are added in order. `chain`, where not null, computes instead of `model`, which is in eval mode
/// meanwhile.
TrialEvaluation evaluate_trial(LayerGraph& model, DenseChain* chain, const TrialSamples& samples, int64_t num_samples, Group& team);

}  // namespace cohort
