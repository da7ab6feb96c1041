// Compressed pushes with error feedback.
//
// Definitions: g the gradient that a worker has for a ticket, as it hands it over (of the sum of the losses over the samples of the whole
//   step), e the worker's residual (zero at first), c() the code of a parameter: halves, or bytes in blocks of 256 with a scale each.
// Steps of a push:
//   1. the worker: x = g + e, parameter by parameter; it sends c(x) and keeps e = x - c(x).
//   2. the server takes c(x) for the gradient: clipping and the optimizer see nothing else.
// So after any pushes the sum of what was applied and of all residuals is the sum of the gradients of all tickets, whoever did them, but
// for the residuals of workers that were lost or came again by another connection (what they had sent last may have come or not): those
// begin at zero, and at most one push's rounding is lost.
//
// Cost of a push: 2 bytes an element (fp16, bf16) or 1.016 (int8) in place of 4, one pass to encode, one to decode; n floats of memory at
// the worker, n at the server. Buffers, and parameters of type Double, travel as they are, and so do
// versions to the worker: a code of them would be an error in what gradients are computed on, which nothing feeds back.
//
// Source: Karimireddy et al. 2019 ("Error Feedback Fixes SignSGD", algorithm 2), with one worker at a time in place of a sum over workers,
// as Zheng et al. 2019 ("Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback") has it for a server. Difference:
// what goes back is not coded.
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

std::byte* bytes_of(const at::Tensor& code) { return reinterpret_cast<std::byte*>(code.data_ptr<uint8_t>()); }

}  // namespace

PushCode::PushCode(const std::string& compress, const std::vector<NamedTensor>& trained) : codec_(make_codec(compress)) {
  for (const auto& [name, tensor] : trained) {
    Part part{.like = tensor.detach()};
    if (tensor.scalar_type() == at::kFloat) {
      part.residual_from = num_coded_;
      part.code_bytes = codec_->bytes(tensor.numel());
      num_coded_ += tensor.numel();
    }
    parts_.push_back(std::move(part));
  }
}

std::unique_ptr<const PushCode> PushCode::of(const std::string& compress, const std::vector<NamedTensor>& trained) {
  return compress == "none" ? nullptr : std::make_unique<const PushCode>(compress, trained);
}

at::Tensor PushCode::fresh() const { return at::zeros({num_coded_}, at::kFloat); }

std::vector<at::Tensor> PushCode::empty() const {
  std::vector<at::Tensor> out;
  for (const Part& part : parts_)
    out.push_back(part.residual_from < 0 ? at::empty_like(part.like) : at::empty({part.code_bytes}, at::kByte));
  return out;
}

int64_t PushCode::num_bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.residual_from < 0 ? static_cast<int64_t>(part.like.nbytes()) : part.code_bytes;
  return bytes;
}

std::vector<at::Tensor> PushCode::encode(const std::vector<at::Tensor>& gradients, const at::Tensor& residual) const {
  std::vector<at::Tensor> codes = empty();
  float* const left_out = residual.data_ptr<float>();
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!gradients[i].defined() || parts_[i].residual_from < 0) codes[i] = gradients[i];
    else codec_->encode(gradients[i].data_ptr<float>(), left_out + parts_[i].residual_from, gradients[i].numel(), 1, bytes_of(codes[i]));
  }
  return codes;
}

std::vector<at::Tensor> PushCode::decode(const std::vector<at::Tensor>& codes, std::vector<at::Tensor>& memory) const {
  if (memory.empty())
    for (const Part& part : parts_) memory.push_back(part.residual_from < 0 ? at::Tensor() : at::empty_like(part.like));
  std::vector<at::Tensor> gradients = codes;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!codes[i].defined() || parts_[i].residual_from < 0) continue;
    codec_->decode(bytes_of(codes[i]), memory[i].numel(), 1, false, memory[i].data_ptr<float>());
    gradients[i] = memory[i];
  }
  return gradients;
}

// A push of b of the B samples of its step is the part b / B of a step (push_optimizer.h), whenever it comes. Buffers (running statistics
// of batch norm) follow with the same weight: those of pushes from one version, up to a whole step of them, become the mean over their
// samples, as of one step; a late push moves the server's towards the worker's by b / B. They are never outside of what workers saw. Cost
// of a push: one pass of the optimizer over the model; of a pull: none here. Sources: Dean et al. 2012 (DistBelief, "Downpour SGD"); Ho et
// al. 2013 (stale synchronous parallel), whose bound the tickets keep.

namespace {

constexpr int64_t kMostWorkers = int64_t{1} << 20;

/// Gradients, coded or not, then buffers.
std::vector<at::Tensor> empty_push(const ServedModel& model, const PushCode* code) {
  std::vector<at::Tensor> all = empty_copies(model.tensors());
  if (!code) return all;
  const std::vector<at::Tensor> codes = code->empty();
  std::copy(codes.begin(), codes.end(), all.begin());
  return all;
}

}  // namespace

GradientServer::GradientServer(const torch::nn::Module& module, const GradientServerOptions& options)
    : options_(options),
      model_(module),
      code_(PushCode::of(options.compress, model_.trained)),
      optimizer_(options.rule, model_.trained),
      group_start_(model_.copy_of_buffers()) {}

int64_t GradientServer::push_bytes() const {
  return code_ ? code_->num_bytes() + model_.num_bytes - model_.gradient_bytes : model_.num_bytes;
}

int64_t GradientServer::bytes_in_flight() const { return push_bytes() + (code_ ? code_->residual_bytes() : 0); }

std::vector<at::Tensor> GradientServer::empty_handed_over() const { return empty_push(model_, code_.get()); }

void GradientServer::pull(Work& work) {
  work.base_version = version_;
  work.base_samples = samples_;
}

void GradientServer::worked(Work& work, TicketResult result, const StepNumbers& /*numbers*/) {
  work.loss = result.loss;
  if (code_ && !residuals_.contains(work.worker)) residuals_[work.worker] = code_->fresh();
  work.tensors = code_ ? code_->encode(result.gradients, residuals_[work.worker]) : std::move(result.gradients);
  work.tensors.insert(work.tensors.end(), result.buffers.begin(), result.buffers.end());
}

PushOutcome GradientServer::push(Work& work, const StepNumbers& numbers) {
  const auto part = [&](size_t first, size_t count) {
    const auto begin = work.tensors.begin() + static_cast<std::ptrdiff_t>(first);
    return std::vector<at::Tensor>(begin, begin + static_cast<std::ptrdiff_t>(count));
  };
  const size_t num_trained = model_.trained.size(), num_buffers = model_.buffers.size();
  std::vector<at::Tensor> gradients = part(0, num_trained);
  if (code_) gradients = code_->decode(gradients, decoded_);
  PushOutcome outcome{.staleness = version_ - work.base_version,
                      .late_steps = static_cast<double>(samples_ - work.base_samples) / static_cast<double>(options_.global_batch)};
  outcome.gradient_norm = optimizer_.apply(
      {.weight = work.ticket.weight(), .learning_rate = numbers.learning_rate * options_.rate_factor, .clip_norm = numbers.clip_norm},
      model_.weights, gradients);
  merge_buffers(work, part(num_trained, num_buffers));
  ++version_;
  samples_ += work.ticket.num_samples();
  return outcome;
}

void GradientServer::merge_buffers(const Work& work, const std::vector<at::Tensor>& pushed) {
  if (pushed.empty()) return;
  constexpr double kRounding = 1e-9;
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> own;
  for (const NamedTensor& buffer : model_.buffers) own.push_back(buffer.tensor.detach());
  const double weight = work.ticket.weight();
  const bool is_of_group = work.base_version == group_version_ && group_weight_ + weight <= 1 + kRounding;
  if (!is_of_group && work.base_version != version_) return mix_tensors(own, pushed, weight);
  if (!is_of_group) {
    mix_tensors(group_start_, own, 1);
    group_version_ = version_;
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
  Json state{
      {"version", version_}, {"samples", samples_}, {"group", {group_version_, group_weight_}}, {"optimizer_steps", optimizer_.steps()}};
  if (!code_) return state;
  state["residuals"] = Json::array();
  for (const auto& [worker, residual] : residuals_) state["residuals"].push_back(worker);
  return state;
}

std::vector<FlatPiece> GradientServer::loaded_pieces(const Json& state, const std::string& where) {
  if (state.is_null()) return optimizer_.pieces(model_.trained);
  const auto is_count = [&](const char* key) { return state.contains(key) && is_natural(state[key]); };
  const Json steps = state.value("optimizer_steps", Json()), group = state.value("group", Json());
  const bool fits = is_count("version") && is_count("samples") && group.is_array() && group.size() == 2 && group[0].is_number_integer() &&
                    group[1].is_number() && steps.is_array() && steps.size() == model_.trained.size();
  if (!fits) fail(ErrorCode::kBadInput, where, ": the state of the update server is damaged, or that of another model");
  for (const Json& number : steps)
    if (!number.is_number())
      fail(ErrorCode::kBadInput, where, ": 'optimizer_steps' holds ", number.dump().substr(0, 40), ", which is no number");
  residuals_.clear();
  const Json residuals = code_ ? state.value("residuals", Json()) : Json::array();
  if (!residuals.is_array()) fail(ErrorCode::kBadInput, where, ": the state of the update server has no list of 'residuals'");
  for (const Json& worker : residuals) {
    if (!worker.is_number_unsigned() || worker.get<int64_t>() >= kMostWorkers)
      fail(ErrorCode::kBadInput, where, ": 'residuals' holds ", worker.dump().substr(0, 40), ", which is no worker");
    residuals_[worker.get<int>()] = code_->fresh();
  }
  return saved_pieces();
}

void GradientServer::loaded(const Json& state) {
  optimizer_.load_counts();
  if (state.is_null()) return;
  version_ = state["version"].get<int64_t>();
  samples_ = state["samples"].get<int64_t>();
  group_version_ = state["group"][0].get<int64_t>();
  group_weight_ = state["group"][1].get<double>();
  optimizer_.set_steps(state["optimizer_steps"].get<std::vector<double>>());
}

GradientWorker::GradientWorker(const torch::nn::Module& module, const std::string& compress)
    : model_(module), pulled_(model_.tensors()), code_(PushCode::of(compress, model_.trained)) {
  begin_anew();
}

std::vector<at::Tensor> GradientWorker::empty_handed_over() const { return empty_push(model_, code_.get()); }

HandedOver GradientWorker::hand_over(const Ticket& /*ticket*/, TicketResult result, const StepNumbers& /*numbers*/) {
  HandedOver out{.loss = result.loss, .tensors = code_ ? code_->encode(result.gradients, residual_) : std::move(result.gradients)};
  out.tensors.insert(out.tensors.end(), result.buffers.begin(), result.buffers.end());
  return out;
}

void GradientWorker::begin_anew() {
  if (code_) residual_ = code_->fresh();
}

}  // namespace cohort
