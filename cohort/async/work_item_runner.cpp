#include "cohort/async/work_item_runner.h"

#include <ATen/core/Generator.h>
#include <c10/util/Exception.h>
#include <torch/utils.h>

#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/graph/model_errors.h"
#include "cohort/train/model/batch_tensors.h"
#include "cohort/train/step/forward_backward.h"
#include "cohort/train/step/loss_scaler.h"

namespace cohort {

WorkItemRunner::WorkItemRunner(const Job& job, const DataSource& source, LayerGraph& model, const TeacherAnswers* teacher)
    : job_(job),
      source_(source),
      model_(model),
      teacher_(teacher),
      tensors_(model),
      sampler_(source.num_samples(), job.config.global_batch, job.config.seed),
      augmentation_(job.config.augment, source.shape(), job.config.seed) {}

WorkResult WorkItemRunner::compute(const WorkItem& item, double rate) {
  WorkResult result;
  const std::vector<int64_t> samples = sampler_.samples(item.step, item.positions);
  source_.read(samples, batch_);
  augmentation_.apply(batch_, samples, item.step);
  const BatchTensors tensors = as_tensors(batch_, source_.shape());
  torch::manual_seed(random_bits(job_.config.seed, item.step, item.share));
  const std::vector<at::Tensor> buffers_before = tensors_.copy_of_buffers();
  for (const NamedTensor& parameter : tensors_.trained) parameter.tensor.mutable_grad() = at::Tensor();
  LossRules rules = loss_rules(job_.config, source_.shape());
  if (teacher_)
    rules.add = [&](const at::Tensor& mean, const at::Tensor& logits) { return teacher_->add_to(mean, logits, samples, tensors.input); };
  bool in_backward = false;
  const auto check_finite = [&](const at::Tensor& loss, double value) {
    if (!std::isfinite(value))
      fail_not_finite(model_, concat("the loss of share ", item.share), value, item.step, rate,
                      name_settings("), --warmup-steps, --clip-norm or a --remedy, or fewer workers: late gradients take smaller rates"),
                      first_not_finite(model_, tensors.input));
    in_backward = true;
    return loss;
  };
  try {
    result.loss = forward_backward(model_,
                                   {tensors.input,
                                    tensors.target,
                                    static_cast<double>(item.num_samples()) / static_cast<double>(item.global_samples),
                                    {job_.config.seed, item.step, item.positions.begin}},
                                   rules, {.precision = job_.precision, .before_backward = check_finite});
  } catch (const c10::Error& error) {
    if (!in_backward || !is_mismatch_error(error)) throw;
    fail(ErrorCode::kFailed, model_.title(), ": step ", item.step + 1, " failed in backward (", quote(error), ")");
  }
  for (const NamedTensor& parameter : tensors_.trained) {
    at::Tensor gradient = std::move(parameter.tensor.mutable_grad());
    parameter.tensor.mutable_grad() = at::Tensor();
    if (gradient.defined() && gradient.is_sparse()) gradient = gradient.to_dense();
    if (gradient.defined()) gradient = gradient.detach().contiguous();
    result.gradients.push_back(gradient);
  }
  if (!buffers_before.empty()) {
    result.buffers = tensors_.copy_of_buffers();
    tensors_.set_buffers(buffers_before);
  }
  return result;
}

}  // namespace cohort
