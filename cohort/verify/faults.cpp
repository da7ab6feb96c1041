// Where each fault is injected:
//
//   gradient-scaled, share-dropped, dropout-of-another-step, learning-rate   TrainOptions::make_step: one number of the step differs
//   bucket-not-exchanged    a hook on a parameter of this rank's part, before the strategy exchanges its gradient
//   partial-sum-missing     the terms of tensor-parallel sums (tensor/collective_ops.h)
//   stale-borrowed-weight   the tied weight that a stage borrows (pipeline/pipeline_runner.h)
//   batch-norm-not-shared   TrainOptions::shares_batch_norm
#include "cohort/verify/faults.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/job/job.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/tensor/collective_ops.h"
#include "cohort/train/step/training_step.h"
#include "cohort/train/train_options.h"

namespace cohort {
namespace {

bool is_of_last_replica(const ModelPart& part) { return part.here().data + 1 == part.mesh().data_size(part.here().pipe); }

/// A training step with one wrong number.
class FaultyStep : public TrainingStep {
 public:
  FaultyStep(Fault fault, const Job& job, const DataShape& shape, LayerGraph& model, Strategy& strategy, ModelPart& part,
             TrainingStepOptions options)
      : TrainingStep(job, shape, model, strategy, part, std::move(options)),
        fault_(fault),
        is_alone_(part.mesh().data_size(part.here().pipe) == 1) {}

 private:
  double loss_factor(bool is_last) const override {
    const double factor = TrainingStep::loss_factor(is_last);
    if (fault_ == Fault::kShareDropped && is_last) return 0;
    // With a single replica clipping and Adam would undo a factor of the whole gradient.
    return fault_ == Fault::kGradientScaled && (is_last || !is_alone_) ? factor * 1.01 : factor;
  }
  StepContext context_of(const Share& piece, int64_t number) const override {
    return TrainingStep::context_of(piece, fault_ == Fault::kDropoutOfAnotherStep ? number + 1 : number);
  }
  double effective_learning_rate(int64_t number) const override {
    return TrainingStep::effective_learning_rate(number) * (fault_ == Fault::kLearningRate ? 1.01 : 1);
  }

  Fault fault_;
  bool is_alone_;
};

/// Some faults affect one replica, others all.
bool changes_step(Fault fault, const Job& job, const ModelPart& part) {
  // Without a second micro-batch the whole gradient would be dropped.
  const int pieces = part.mesh().data_size(part.here().pipe) * job.config.accumulate * job.layout.microbatches;
  return fault == Fault::kLearningRate || (is_of_last_replica(part) && (fault != Fault::kShareDropped || pieces > 1));
}

void exchange_no_gradient(LayerGraph& model, ModelPart& part) {
  const std::vector<NamedTensor> trained = trained_parameters(distinct_parameters(model));
  if (part.here().data > 0 && !trained.empty())
    trained.front().tensor.register_hook([](const at::Tensor& gradient) { return gradient * 0; });
}

void add_nothing(const ModelPart& part, const Layout& layout) {
  if (layout.tp > 1 && part.here().tensor + 1 == layout.tp) change_summands([](const at::Tensor& input) { return at::zeros_like(input); });
}

void keep_first_borrowed(ModelPart& part) {
  if (!part.pipeline()) return;
  part.pipeline()->change_borrowed([first = std::map<int64_t, at::Tensor>()](int64_t number, const at::Tensor& value) mutable {
    return first.try_emplace(number, value.clone()).first->second;
  });
}

}  // namespace

const std::vector<FaultName>& fault_names() {
  static const std::vector<FaultName> names = {
      {Fault::kGradientScaled, "gradient-scaled",
       "the gradient of one replica (its last micro-batch's, where it is the only one) is 1.01 times what it should be"},
      {Fault::kBucketNotExchanged, "bucket-not-exchanged", "the gradient of one parameter is the first replica's alone"},
      {Fault::kShareDropped, "share-dropped", "the last micro-batch of one replica counts for nothing"},
      {Fault::kDropoutOfAnotherStep, "dropout-of-another-step", "one replica draws the dropout masks of the next step"},
      {Fault::kLearningRate, "learning-rate", "the learning rate is 1.01 times what it should be"},
      {Fault::kPartialSumMissing, "partial-sum-missing", "one rank of a tensor-parallel group adds nothing to sums"},
      {Fault::kStaleBorrowedWeight, "stale-borrowed-weight", "a stage goes on with the tied weight that it borrowed first"},
      {Fault::kBatchNormNotShared, "batch-norm-not-shared", "batch norm over all ranks uses each rank's own statistics"},
  };
  return names;
}

std::vector<Fault> parse_faults_of_verify(const std::string& text) {
  std::vector<std::string> known;
  for (const FaultName& entry : fault_names()) known.push_back(entry.name);
  std::vector<Fault> faults;
  for (const std::string& name : text == "all" ? known : split(text, ',')) {
    const auto found = std::find(known.begin(), known.end(), trim(name));
    if (found == known.end())
      fail(ErrorCode::kBadInput, name_settings("--faults: '"), name, "'", did_you_mean(name, known),
           " is not a fault; expected all, or some of: ", join(known, " "));
    faults.push_back(fault_names()[static_cast<size_t>(found - known.begin())].fault);
  }
  return faults;
}

const std::string& name_of(Fault fault) {
  for (const FaultName& entry : fault_names())
    if (entry.fault == fault) return entry.name;
  static const std::string none = "none";
  return none;
}

void inject_fault(Fault fault, const Job& job, TrainOptions& options) {
  switch (fault) {
    case Fault::kNone:
      return;
    case Fault::kGradientScaled:
    case Fault::kShareDropped:
    case Fault::kDropoutOfAnotherStep:
    case Fault::kLearningRate:
      options.make_step = [fault](const Job& own, const DataShape& shape, LayerGraph& model, Strategy& strategy, ModelPart& part,
                                  TrainingStepOptions how) {
        return std::make_unique<FaultyStep>(changes_step(fault, own, part) ? fault : Fault::kNone, own, shape, model, strategy, part,
                                            std::move(how));
      };
      return;
    case Fault::kBucketNotExchanged:
      options.alter_part = exchange_no_gradient;
      return;
    case Fault::kPartialSumMissing:
      options.alter_part = [&job](LayerGraph&, ModelPart& part) { add_nothing(part, job.layout); };
      return;
    case Fault::kStaleBorrowedWeight:
      options.alter_part = [](LayerGraph&, ModelPart& part) { keep_first_borrowed(part); };
      return;
    case Fault::kBatchNormNotShared:
      options.shares_batch_norm = false;
      return;
  }
}

}  // namespace cohort
