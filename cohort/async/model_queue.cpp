// A queue of models.
// 1. A free worker is served the model that waits longest (or the newest), which leaves the queue; if none waits, the one served last
// again.
// 2. It makes one full optimizer step on it with the mean gradient of its work item, at the full rate: the optimizer's state travels with
//    the model.
// 3. The finished model is merged into the newest one with weight b / B for b of the B samples of a step (weights, optimizer state and
//    running statistics alike), and the result queues up as the newest. In the plain scheme it queues up as it is, and what others learned
//    meanwhile is lost unless somebody trains on theirs. At most `capacity` models wait; the oldest beyond that is dropped.
//
// A single worker whose item is the whole step replaces the model by its own each time, which is the synchronous step. Messages: a model
// with its optimizer state each way per item, so (1 + slots) x the weights. Merging by samples into the newest, served newest first, is
// FedAsync (Xie, Koyejo, Gupta 2019, arXiv 1903.03934) with the constant mixing weight b / B.
#include "cohort/async/model_queue.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <set>

#include "cohort/async/packed_tensors.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json_fields.h"

namespace cohort {
namespace {

at::Tensor as_tensor(const std::vector<double>& numbers) {
  at::Tensor out = at::empty({static_cast<int64_t>(numbers.size())}, at::kDouble);
  std::copy(numbers.begin(), numbers.end(), out.data_ptr<double>());
  return out;
}

std::vector<double> as_numbers(const at::Tensor& tensor) {
  const double* const begin = tensor.data_ptr<double>();
  return {begin, begin + tensor.numel()};
}

}  // namespace

/// In the order of a push.
std::vector<at::Tensor> ModelQueue::Model::tensors() const { return joined(joined(weights, optimizer.arrays()), buffers); }

std::vector<at::Tensor> ModelQueue::Model::tensors_with_steps() const { return joined(tensors(), {as_tensor(optimizer.steps())}); }

ModelQueue::ModelQueue(const torch::nn::Module& module, const ModelQueueOptions& options)
    : options_(options), model_(module), initial_optimizer_(options.rule, model_.trained) {
  newest_ = served_ = copy_of_module();
  waiting_ = {newest_};
}

ModelQueue::ModelPointer ModelQueue::copy_of_module() const {
  return std::make_shared<Model>(Model{
      .version = {}, .weights = model_.copy_of_weights(), .buffers = model_.copy_of_buffers(), .optimizer = initial_optimizer_.copy()});
}

int64_t ModelQueue::pull_bytes() const {
  return model_.num_bytes + static_cast<int64_t>(options_.rule.slots().size()) * model_.gradient_bytes;
}

void ModelQueue::pull(Assignment& assignment) {
  if (!waiting_.empty()) {
    served_ = options_.newest ? waiting_.back() : waiting_.front();
    if (options_.newest) waiting_.pop_back();
    else waiting_.pop_front();
  }
  served_->version.mark_pull(assignment);
  model_.set_weights(served_->weights);
  model_.set_buffers(served_->buffers);
}

void ModelQueue::prepare_push(Assignment& assignment, WorkResult result, const StepNumbers& numbers) {
  Model trained{.version = {}, .weights = {}, .buffers = std::move(result.buffers), .optimizer = served_->optimizer.copy()};
  trained.optimizer.local_step(model_, assignment.item, result, numbers);
  trained.weights = model_.copy_of_weights();
  assignment.loss = result.loss;
  assignment.tensors = trained.tensors_with_steps();
}

PushOutcome ModelQueue::push(Assignment& assignment, const StepNumbers& /*numbers*/) {
  const PushOutcome outcome = version_.outcome(assignment, options_.global_batch);
  const double weight = options_.replaces ? 1 : assignment.item.weight();
  const auto merged = std::make_shared<Model>(Model{
      .version = {}, .weights = copies(newest_->weights), .buffers = copies(newest_->buffers), .optimizer = newest_->optimizer.copy()});
  const std::vector<double> steps = as_numbers(assignment.tensors.back());
  assignment.tensors.pop_back();
  mix_tensors(merged->tensors(), assignment.tensors, weight);
  std::vector<double> mixed = merged->optimizer.steps();
  for (size_t i = 0; i < mixed.size(); ++i) mixed[i] = weight == 1 ? steps[i] : mixed[i] + weight * (steps[i] - mixed[i]);
  merged->optimizer.set_steps(std::move(mixed));
  version_.add_push(assignment);
  merged->version = version_;
  waiting_.push_back(merged);
  if (std::ssize(waiting_) > options_.capacity) waiting_.pop_front();
  newest_ = merged;
  return outcome;
}

void ModelQueue::copy_to_module() {
  model_.set_weights(newest_->weights);
  model_.set_buffers(newest_->buffers);
}

/// By version.
std::vector<ModelQueue::ModelPointer> ModelQueue::distinct_models() const {
  std::map<int64_t, ModelPointer> all;
  for (const ModelPointer& model : waiting_) all[model->version.version] = model;
  for (const ModelPointer& model : {served_, newest_}) all[model->version.version] = model;
  std::vector<ModelPointer> models;
  for (const auto& [version, model] : all) models.push_back(model);
  return models;
}

std::vector<FlatPiece> ModelQueue::saved_pieces() {
  std::vector<FlatPiece> pieces = newest_->optimizer.pieces(model_.trained);
  for (const ModelPointer& model : distinct_models()) {
    const at::Tensor bytes = packed(model->tensors_with_steps());
    pieces.push_back({concat("async/model/", model->version.version), bytes, {bytes.numel()}, 0});
  }
  return pieces;
}

Json ModelQueue::state() const {
  Json models = Json::array(), waiting = Json::array();
  for (const ModelPointer& model : distinct_models()) models.push_back({model->version.version, model->version.samples});
  for (const ModelPointer& model : waiting_) waiting.push_back(model->version.version);
  return Json{{"version", version_.version}, {"samples", version_.samples},        {"models", models},
              {"waiting", waiting},          {"served", served_->version.version}, {"newest", newest_->version.version}};
}

std::vector<FlatPiece> ModelQueue::loaded_pieces(const Json& state, const std::string& where) {
  loading_.clear();
  newest_ = copy_of_module();
  std::vector<FlatPiece> pieces = newest_->optimizer.pieces(model_.trained);
  if (state.is_null()) return pieces;
  ModelVersion::from(state, where);
  const JsonFields fields(state, where);
  std::vector<int64_t> references = fields.naturals("waiting", static_cast<size_t>(options_.capacity));
  references = joined(std::move(references), {fields.natural("served"), fields.natural("newest")});
  std::set<int64_t> versions;
  for (const Json& row : fields.array("models", static_cast<size_t>(options_.capacity) + 2)) {
    if (!row.is_array() || row.size() != 2 || !is_natural(row[0]) || !is_natural(row[1])) fields.refuse("invalid row in \"models\"");
    const ModelPointer model = copy_of_module();
    model->version = {row[0].get<int64_t>(), row[1].get<int64_t>()};
    versions.insert(model->version.version);
    const int64_t bytes = packed_bytes(model->tensors_with_steps());
    loading_.emplace_back(model, at::empty({bytes}, at::kByte));
    pieces.push_back({concat("async/model/", model->version.version), loading_.back().second, {bytes}, 0});
  }
  for (const int64_t version : references)
    if (!versions.contains(version)) fields.refuse("the queue refers to model ", version, ", which is not among \"models\"");
  return pieces;
}

void ModelQueue::loaded(const Json& state) {
  if (state.is_null()) {
    newest_->optimizer.load_counts();
    newest_->weights = model_.copy_of_weights();
    newest_->buffers = model_.copy_of_buffers();
    served_ = newest_;
    waiting_ = {newest_};
    return;
  }
  std::map<int64_t, ModelPointer> models;
  for (const auto& [model, bytes] : loading_) {
    const std::vector<at::Tensor> tensors = model->tensors_with_steps();
    unpack(bytes, tensors);
    model->optimizer.set_steps(as_numbers(tensors.back()));
    models[model->version.version] = model;
  }
  loading_.clear();
  version_ = ModelVersion::from(state, "");
  served_ = models.at(state["served"].get<int64_t>());
  newest_ = models.at(state["newest"].get<int64_t>());
  waiting_.clear();
  for (const Json& version : state["waiting"]) waiting_.push_back(models.at(version.get<int64_t>()));
}

std::vector<at::Tensor> ModelQueue::served_tensors() const { return served_->tensors_with_steps(); }

QueueWorker::QueueWorker(const torch::nn::Module& module, const UpdateRule& rule)
    : model_(module), optimizer_(rule, model_.trained), steps_(as_tensor(optimizer_.steps())) {
  const std::vector<at::Tensor> all = model_.tensors();
  pull_buffers_ = joined(model_.weights, optimizer_.arrays());  // In the order of Model::tensors().
  pull_buffers_.insert(pull_buffers_.end(), all.begin() + std::ssize(model_.weights), all.end());
  pull_buffers_.push_back(steps_);
}

PushData QueueWorker::make_push(const WorkItem& item, WorkResult result, const StepNumbers& numbers) {
  optimizer_.set_steps(as_numbers(steps_));
  optimizer_.local_step(model_, item, result, numbers);
  std::copy(optimizer_.steps().begin(), optimizer_.steps().end(), steps_.data_ptr<double>());
  PushData out{.loss = result.loss, .tensors = pull_buffers_};
  std::copy(result.buffers.begin(), result.buffers.end(), out.tensors.end() - 1 - std::ssize(result.buffers));
  return out;
}

}  // namespace cohort
