// Checks whether dividing a batch changes what is computed of it: compares the gradients and changed buffers of the first batch, whole and
// divided as the ranks divide it, tensor by tensor. Steps:
//   1. In double precision, where the order of sums hardly matters: if all differences are at most kExact, dividing does not matter. A
//      larger one matters if the tensor is computed in double throughout, which is tested by nudging the weights by kSmallNudge and twice
//      that: its values must move in proportion.
//   2. A model that does not compute in double, or does part of its work in fp32, is compared in fp32. Rounding is measured there: the
//      whole batch runs again with weights moved by kNudge. That is many times the effect of the order of sums, so it includes rare events
//      (a ReLU or a maximum that changes sides and takes a sample's whole gradient with it); kMargin is for tensors without a gradient,
//      whose values are rounding in either case.
//   3. A larger difference may still be such an event: it counts only if it is also there with the moved weights.
//   4. A batch whose second run differs has state outside the model's tensors.
//   5. If the nudge explains more than kCeiling of a tensor that step 1 found, or of most tensors, the answer is unknown.
// Cost: two forward and backward passes over one batch in double; three more if these differ, and five in fp32 if that does not decide.
#include "cohort/verify/batch_division.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/train/initial_model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/data/loader.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/train/model/batch_tensors.h"
#include "cohort/train/step/forward_backward.h"
#include "cohort/train/step/sequential_ranks.h"
#include "cohort/verify/trainings.h"
#include "cohort/world/launch.h"

namespace cohort {
namespace {

constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
constexpr double kExact = 1e-8;
constexpr double kNothing = 1e-12;  // Relative to all gradients together; a smaller tensor has no gradient.
constexpr double kSmallNudge = 1e-10, kNearlyNothing = 0.1;
constexpr double kNudge = 64 * kEpsilon;
constexpr double kMargin = 8;
constexpr double kSums = 32;
constexpr double kCeiling = 0.01;

/// The gradient of a parameter, or the change of a buffer.
struct Made {
  at::Tensor values;  // double
  double scale = 0;   // The norm of all gradients together, or of the buffer.
};
using MadeOfBatch = std::map<std::string, Made>;

double length(const at::Tensor& values) { return values.norm().item<double>(); }
double norm_of_difference(const at::Tensor& a, const at::Tensor& b) {
  const double distance = length(a - b);
  return std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance;
}
double part_of(double distance, double whole) {
  if (distance == 0) return 0;
  return whole > 0 ? distance / whole : std::numeric_limits<double>::infinity();
}

class FirstBatch {
 public:
  FirstBatch(const Config& config, const DataSet& data) : config_(config), data_(data) {}

  /// Runs the batch, divided by `layout`.
  MadeOfBatch run(at::ScalarType type, double nudge, const Layout& layout) {
    const std::shared_ptr<LayerGraph> model = initial_model(config_, data_.train->shape()).model;
    model->to(type);
    if (nudge > 0) nudge_weights(*model, nudge);
    model->train();
    SequentialRanks sequential(*model, layout, {});
    LoadedBatch loaded = batch(sequential.num_shares(), config_.accumulate * layout.microbatches, model->sample_granularity());
    const MadeOfBatch before = buffers(*model);
    torch::manual_seed(config_.seed);
    const at::Tensor unused = generator_state();
    BatchTensors whole = as_tensors(loaded.batch, data_.train->shape());
    if (whole.input.is_floating_point()) whole.input = whole.input.to(type);
    const LossRules rules = loss_rules(config_, data_.train->shape());
    sequential.step(loaded, [&](const Share& piece, int64_t offset) {
      const double weight = static_cast<double>(piece.size()) / static_cast<double>(loaded.global_samples);
      forward_backward(*model,
                       {whole.input.narrow(0, offset, piece.size()),
                        whole.target.narrow(0, offset, piece.size()),
                        weight,
                        {config_.seed, 0, piece.begin}},
                       rules);
    });
    draws_ = draws_ || !generator_state().equal(unused);
    MadeOfBatch made = buffers(*model);
    for (auto& [name, buffer] : made) buffer.values = buffer.values - before.at(name).values;
    double squares = 0;
    MadeOfBatch gradients;
    for (const NamedTensor& parameter : distinct_parameters(*model)) {
      if (!parameter.tensor.grad().defined()) continue;
      const at::Tensor gradient = parameter.tensor.grad().detach().to(at::kDouble).clone();
      squares += length(gradient) * length(gradient);
      gradients.emplace("the gradient of " + parameter.name, Made{gradient});
    }
    for (auto& [name, gradient] : gradients) gradient.scale = std::sqrt(squares);
    made.merge(gradients);
    return made;
  }

  /// True if a run() so far drew from LibTorch's generator.
  bool draws() const { return draws_; }

 private:
  static at::Tensor generator_state() {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  }

  LoadedBatch batch(int num_shares, int pieces, int64_t granularity) const {
    Loader loader(data_.train, {.global_batch = config_.global_batch,
                                .seed = config_.seed,
                                .num_ranks = num_shares,
                                .granularity = granularity,
                                .pieces = pieces,
                                .end_step = 1,
                                .reads_all_ranks = true,
                                .augmentation = Augmentation(config_.augment, data_.train->shape(), config_.seed)});
    return loader.next();
  }

  static MadeOfBatch buffers(const LayerGraph& model) {
    MadeOfBatch result;
    for (const NamedTensor& buffer : distinct_buffers(model))
      if (buffer.tensor.is_floating_point())
        result.emplace("buffer " + buffer.name,
                       Made{buffer.tensor.detach().to(at::kDouble).clone(), length(buffer.tensor.to(at::kDouble))});
    return result;
  }

  const Config& config_;
  const DataSet& data_;
  bool draws_ = false;
};

/// The largest difference in double that the order of sums explains.
double exact_bound(const Made& tensor) { return kExact * length(tensor.values) + kNothing * tensor.scale; }

/// True if a tensor is computed in double throughout: twice the nudge moves it twice as far. With rounding to fp32 it would jump.
bool is_smooth(const at::Tensor& whole, const at::Tensor& nudged, const at::Tensor& nudged_twice) {
  const at::Tensor once = nudged - whole, twice = nudged_twice - whole;
  const double moved = length(twice);
  return moved > kNothing * length(whole) && norm_of_difference(twice, 2 * once) <= kNearlyNothing * moved;
}

struct InDouble {
  std::vector<std::string> apart;  ///< Names of tensors.
  DivisionMatters worst;           ///< The worst tensor that is computed in double throughout.
};

/// Empty if the model does not compute in double.
std::optional<InDouble> compare_in_double(FirstBatch& batch, const Layout& layout) {
  InDouble result;
  MadeOfBatch whole, divided;
  try {
    whole = batch.run(at::kDouble, 0, Layout());
    divided = batch.run(at::kDouble, 0, layout);
  } catch (const std::exception&) {
    return {};
  }
  for (const auto& [name, tensor] : whole)
    if (norm_of_difference(tensor.values, divided.at(name).values) > exact_bound(tensor)) result.apart.push_back(name);
  if (result.apart.empty()) return result;
  const MadeOfBatch again = batch.run(at::kDouble, 0, Layout());
  for (const std::string& name : result.apart) {
    if (norm_of_difference(whole.at(name).values, again.at(name).values) <= exact_bound(whole.at(name))) continue;
    result.worst = {DivisionMatters::Answer::kNotRepeated, name};
    return result;
  }
  const MadeOfBatch nudged = batch.run(at::kDouble, kSmallNudge, Layout()), twice = batch.run(at::kDouble, 2 * kSmallNudge, Layout());
  for (const std::string& name : result.apart) {
    const at::Tensor& values = whole.at(name).values;
    if (!is_smooth(values, nudged.at(name).values, twice.at(name).values)) continue;
    const double difference = part_of(norm_of_difference(values, divided.at(name).values), length(values));
    if (difference > result.worst.difference) result.worst = {DivisionMatters::Answer::kYes, name, difference, kExact};
  }
  return result;
}

DivisionMatters judge(FirstBatch& batch, const Layout& layout) {
  using Answer = DivisionMatters::Answer;
  const std::optional<InDouble> found = compare_in_double(batch, layout);
  if (found && (found->apart.empty() || found->worst.answer != Answer::kNo)) return found->worst;

  const MadeOfBatch whole = batch.run(at::kFloat, 0, Layout()), divided = batch.run(at::kFloat, 0, layout);
  const MadeOfBatch repeated = batch.run(at::kFloat, 0, Layout());
  const MadeOfBatch nudged = batch.run(at::kFloat, kNudge, Layout()), nudged_divided = batch.run(at::kFloat, kNudge, layout);
  DivisionMatters worst, blurred;
  size_t num_blurred = 0, num_seen = 0;
  for (const auto& [name, tensor] : whole) {
    if (found && std::find(found->apart.begin(), found->apart.end(), name) == found->apart.end()) continue;
    const double size = length(tensor.values);
    const double explained =
        kSums * kEpsilon * size + kEpsilon * tensor.scale + kMargin * norm_of_difference(tensor.values, nudged.at(name).values);
    const double apart = norm_of_difference(tensor.values, divided.at(name).values);
    const double again = norm_of_difference(nudged.at(name).values, nudged_divided.at(name).values);
    if (norm_of_difference(tensor.values, repeated.at(name).values) > explained) return {Answer::kNotRepeated, name};
    const DivisionMatters here{Answer::kYes, name, part_of(apart, size), part_of(explained, size)};
    if (std::min(apart, again) > explained && here.difference > worst.difference) worst = here;
    ++num_seen;
    if (here.explained <= kCeiling) continue;
    ++num_blurred;
    if (here.explained > blurred.explained) blurred = here;
  }
  if (worst.answer == Answer::kYes) return worst;
  if (num_blurred == 0 || (!found && 2 * num_blurred <= num_seen)) return {};
  blurred.answer = Answer::kUnknown;
  return blurred;
}

}  // namespace

DivisionMatters does_division_matter(const Config& config, const DataSet& data, const Layout& layout, const std::string& path) {
  if (num_pipelines(layout) * layout.microbatches == 1) return {};
  const int code = run_ranks({.num_ranks = 1, .is_one_of_many = true, .counts_steps = false}, [&](const World&) {
    use_compute_threads(std::max(1, config.threads));
    FirstBatch batch(config, data);
    DivisionMatters matters = judge(batch, layout);
    matters.draws = batch.draws();
    write_file_atomically(path, Json{{"answer", static_cast<int>(matters.answer)},
                                     {"tensor", matters.tensor},
                                     {"difference", matters.difference},
                                     {"explained", matters.explained},
                                     {"draws", matters.draws}}
                                    .dump());
    return 0;
  });
  if (code != 0) throw Error(static_cast<ErrorCode>(code), "");  // It has reported why.
  constexpr size_t kMostBytes = 1 << 20;
  const Json answer = Json::parse(read_small_file(path, kMostBytes));
  return {static_cast<DivisionMatters::Answer>(answer.at("answer").get<int>()), answer.at("tensor").get<std::string>(),
          answer.at("difference").is_null() ? std::numeric_limits<double>::infinity() : answer.at("difference").get<double>(),
          answer.at("explained").is_null() ? std::numeric_limits<double>::infinity() : answer.at("explained").get<double>(),
          answer.at("draws").get<bool>()};
}

}  // namespace cohort
