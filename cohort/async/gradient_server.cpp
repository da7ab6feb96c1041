// Asynchronous gradients with compressed pushes and error feedback.
//
// A push of b of the B samples of its step is applied on arrival, as the fraction b / B of a step (push_optimizer.h). Buffers (running
// statistics of batch norm) follow with the same weight: pushes computed from one version, up to a whole step of them, average their
// buffers by samples, as within one step; a late push moves the server's buffers towards the worker's by b / B. The result always lies
// between what workers saw.
//
// Compression. Definitions: g the gradient that a worker pushes for a work item (of the sum of the losses over the samples of the whole
//   step), e the worker's residual (zero at first), c() the code of a parameter: half precision, or int8 in blocks of 256 with a scale
//   each.
// Steps of a push:
//   1. the worker: x = g + e, parameter by parameter; it sends c(x) and keeps e = x - c(x).
//   2. the server uses c(x) as the gradient: clipping and the optimizer see nothing else.
// So at any time the sum of what was applied and of all residuals is the sum of the gradients of all items, whoever computed them, except
// for workers that were lost or reconnected (their last push may or may not have arrived): their residuals restart at zero, and at most one
// push's rounding is lost.
//
// Cost of a push: one pass of the optimizer over the model, and 2 bytes an element (fp16, bf16) or 1.016 (int8) in place of 4, one pass to
// encode, one to decode; n floats of memory at the worker and at the server. Buffers and parameters of type Double are sent unencoded, and
// so are versions to the worker: their error would be one in what gradients are computed on, which nothing feeds back.
//
// Sources: Dean et al. 2012 (DistBelief, "Downpour SGD"); Ho et al. 2013 (stale synchronous parallel), whose bound the work queue enforces.
// Karimireddy et al. 2019 ("Error Feedback Fixes SignSGD", algorithm 2), with one worker at a time in place of a sum over workers, as Zheng
// et al. 2019 ("Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback") has it for a server. Difference: what is
// sent back is not encoded.
#include "cohort/async/gradient_server.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/json_fields.h"
#include "cohort/parallel/common/flat_piece.h"

namespace cohort {
namespace {

constexpr int64_t kMaxWorkers = int64_t{1} << 20;

/// Gradients, encoded or not, then buffers.
std::vector<at::Tensor> empty_gradient_push(const ModelTensors& model, const PushCodec* codec) {
  std::vector<at::Tensor> all = empty_copies(model.tensors());
  if (!codec) return all;
  const std::vector<at::Tensor> codes = codec->empty_codes();
  std::copy(codes.begin(), codes.end(), all.begin());
  return all;
}

std::byte* code_bytes(const at::Tensor& code) { return reinterpret_cast<std::byte*>(code.data_ptr<uint8_t>()); }

}  // namespace

PushCodec::PushCodec(const std::string& compress, const std::vector<NamedTensor>& trained) : codec_(make_codec(compress)) {
  for (const auto& [name, tensor] : trained) {
    Parameter parameter{.like = tensor.detach()};
    if (tensor.scalar_type() == at::kFloat) {
      parameter.residual_offset = num_coded_;
      parameter.code_bytes = codec_->bytes(tensor.numel());
      num_coded_ += tensor.numel();
    }
    parameters_.push_back(std::move(parameter));
  }
}

std::unique_ptr<const PushCodec> PushCodec::of(const std::string& compress, const std::vector<NamedTensor>& trained) {
  return compress == "none" ? nullptr : std::make_unique<const PushCodec>(compress, trained);
}

at::Tensor PushCodec::empty_residual() const { return at::zeros({num_coded_}, at::kFloat); }

std::vector<at::Tensor> PushCodec::empty_codes() const {
  std::vector<at::Tensor> out;
  for (const Parameter& each : parameters_)
    out.push_back(each.residual_offset < 0 ? at::empty_like(each.like) : at::empty({each.code_bytes}, at::kByte));
  return out;
}

int64_t PushCodec::num_bytes() const {
  int64_t bytes = 0;
  for (const Parameter& each : parameters_) bytes += each.residual_offset < 0 ? static_cast<int64_t>(each.like.nbytes()) : each.code_bytes;
  return bytes;
}

std::vector<at::Tensor> PushCodec::encode(const std::vector<at::Tensor>& gradients, const at::Tensor& residual) const {
  std::vector<at::Tensor> codes = empty_codes();
  float* const left_out = residual.data_ptr<float>();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!gradients[i].defined() || parameters_[i].residual_offset < 0) codes[i] = gradients[i];
    else
      codec_->encode(gradients[i].data_ptr<float>(), left_out + parameters_[i].residual_offset, gradients[i].numel(), 1,
                     code_bytes(codes[i]));
  }
  return codes;
}

std::vector<at::Tensor> PushCodec::decode(const std::vector<at::Tensor>& codes, std::vector<at::Tensor>& memory) const {
  if (memory.empty())
    for (const Parameter& each : parameters_) memory.push_back(each.residual_offset < 0 ? at::Tensor() : at::empty_like(each.like));
  std::vector<at::Tensor> gradients = codes;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!codes[i].defined() || parameters_[i].residual_offset < 0) continue;
    codec_->decode(code_bytes(codes[i]), memory[i].numel(), 1, false, memory[i].data_ptr<float>());
    gradients[i] = memory[i];
  }
  return gradients;
}

GradientServer::GradientServer(const torch::nn::Module& module, const GradientServerOptions& options)
    : options_(options),
      model_(module),
      codec_(PushCodec::of(options.compress, model_.trained)),
      optimizer_(options.rule, model_.trained),
      group_start_(model_.copy_of_buffers()) {}

int64_t GradientServer::push_bytes() const {
  return codec_ ? codec_->num_bytes() + model_.num_bytes - model_.gradient_bytes : model_.num_bytes;
}

int64_t GradientServer::bytes_in_flight() const { return push_bytes() + (codec_ ? codec_->residual_bytes() : 0); }

std::vector<at::Tensor> GradientServer::empty_push() const { return empty_gradient_push(model_, codec_.get()); }

void GradientServer::prepare_push(Assignment& assignment, WorkResult result, const StepNumbers& /*numbers*/) {
  assignment.loss = result.loss;
  if (codec_ && !residuals_.contains(assignment.worker)) residuals_[assignment.worker] = codec_->empty_residual();
  assignment.tensors =
      joined(codec_ ? codec_->encode(result.gradients, residuals_[assignment.worker]) : std::move(result.gradients), result.buffers);
}

PushOutcome GradientServer::push(Assignment& assignment, const StepNumbers& numbers) {
  const auto buffers = assignment.tensors.begin() + std::ssize(model_.trained);
  std::vector<at::Tensor> gradients(assignment.tensors.begin(), buffers);
  if (codec_) gradients = codec_->decode(gradients, decoded_);
  PushOutcome outcome = version_.outcome(assignment, options_.global_batch);
  outcome.gradient_norm = optimizer_.apply(
      {.weight = assignment.item.weight(), .learning_rate = numbers.learning_rate * options_.rate_factor, .clip_norm = numbers.clip_norm},
      model_.weights, gradients);
  merge_buffers(assignment, {buffers, buffers + std::ssize(model_.buffers)});
  version_.add_push(assignment);
  return outcome;
}

void GradientServer::merge_buffers(const Assignment& assignment, const std::vector<at::Tensor>& pushed) {
  if (pushed.empty()) return;
  constexpr double kRounding = 1e-9;
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> own;
  for (const NamedTensor& buffer : model_.buffers) own.push_back(buffer.tensor.detach());
  const double weight = assignment.item.weight();
  const bool in_group = assignment.base_version == group_version_ && group_weight_ + weight <= 1 + kRounding;
  if (!in_group && assignment.base_version != version_.version) return mix_tensors(own, pushed, weight);
  if (!in_group) {
    mix_tensors(group_start_, own, 1);
    group_version_ = version_.version;
    group_weight_ = 0;
  }
  group_weight_ += weight;
  for (size_t i = 0; i < own.size(); ++i) {
    if (weight == 1 || !own[i].is_floating_point()) mix_tensors({own[i]}, {pushed[i]}, weight);
    else own[i].add_(pushed[i] - group_start_[i], weight);
  }
}

std::vector<FlatPiece> GradientServer::saved_pieces() {
  std::vector<FlatPiece> pieces = optimizer_.pieces(model_.trained);
  for (size_t i = 0; i < group_start_.size(); ++i)
    pieces.push_back({"async/group/" + model_.buffers[i].name, alias_of(group_start_[i], 0, {group_start_[i].numel()}),
                      group_start_[i].sizes().vec(), 0});
  for (const auto& [worker, residual] : residuals_) pieces.push_back({concat("async/residual/", worker), residual, {residual.numel()}, 0});
  return pieces;
}

Json GradientServer::state() const {
  Json state{{"version", version_.version},
             {"samples", version_.samples},
             {"group", {group_version_, group_weight_}},
             {"optimizer_steps", optimizer_.steps()}};
  if (!codec_) return state;
  state["residuals"] = Json::array();
  for (const auto& [worker, residual] : residuals_) state["residuals"].push_back(worker);
  return state;
}

std::vector<FlatPiece> GradientServer::loaded_pieces(const Json& state, const std::string& where) {
  if (state.is_null()) return optimizer_.pieces(model_.trained);
  ModelVersion::from(state, where);
  const JsonFields fields(state, where);
  const Json& group = fields.array("group", 2);
  if (group.size() != 2 || !group[0].is_number_integer() || !group[1].is_number() ||
      fields.numbers("optimizer_steps", model_.trained.size()).size() != model_.trained.size())
    fields.refuse("invalid state of the parameter server, or that of another model");
  residuals_.clear();
  if (codec_)
    for (const int64_t worker : fields.naturals("residuals", static_cast<size_t>(kMaxWorkers))) {
      if (worker >= kMaxWorkers) fields.refuse("expected workers below ", kMaxWorkers, " in \"residuals\", found ", worker);
      residuals_[static_cast<int>(worker)] = codec_->empty_residual();
    }
  return saved_pieces();
}

void GradientServer::loaded(const Json& state) {
  optimizer_.load_counts();
  if (state.is_null()) return;
  version_ = ModelVersion::from(state, "");
  group_version_ = state["group"][0].get<int64_t>();
  group_weight_ = state["group"][1].get<double>();
  optimizer_.set_steps(state["optimizer_steps"].get<std::vector<double>>());
}

GradientWorker::GradientWorker(const torch::nn::Module& module, const std::string& compress)
    : model_(module), pull_buffers_(model_.tensors()), codec_(PushCodec::of(compress, model_.trained)) {
  reset();
}

std::vector<at::Tensor> GradientWorker::empty_push() const { return empty_gradient_push(model_, codec_.get()); }

PushData GradientWorker::make_push(const WorkItem& /*item*/, WorkResult result, const StepNumbers& /*numbers*/) {
  return {.loss = result.loss,
          .tensors = joined(codec_ ? codec_->encode(result.gradients, residual_) : std::move(result.gradients), result.buffers)};
}

void GradientWorker::reset() {
  if (codec_) residual_ = codec_->empty_residual();
}

}  // namespace cohort
