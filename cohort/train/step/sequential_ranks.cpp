// The order of sums, which is that of the ranks:
//   - A rank adds up its micro-steps, then ranks are added in rank order. ZeRO 2 and 3 without a pipeline keep a part of the gradient only,
//     so they exchange each micro-step: ranks are added first, then micro-steps.
//   - With equal stages a micro-batch belongs to the rank of its share. Where the stages of a pipeline have different numbers of replicas,
//     there is one share, and the replicas of a stage take its micro-batches in turn, so the rank differs from layer to layer.
//   - A stage returns the gradient of a borrowed weight once after each round of micro-batches. Where one worker runs both stages, each
//   adds
//     a micro-batch's gradient in its backward, in the order of the schedule.
//   - Buffers are each rank's own during a step, and averaged by samples after it; counters are the first rank's.
// Cost: one copy of the buffers and one gradient for each rank, and no message.
#include "cohort/train/step/sequential_ranks.h"

#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <map>
#include <string>

#include "cohort/models/graph/layer_graph.h"

namespace cohort {

void add_defined(at::Tensor& sum, const at::Tensor& term) {
  if (term.defined()) sum = sum.defined() ? sum + term : term;
}

SequentialRanks::SequentialRanks(LayerGraph& model, const Layout& layout, std::vector<BorrowedWeight> borrowed, BackwardOrder order)
    : num_shares_(num_pipelines(layout)),
      microbatches_(layout.microbatches),
      even_(layout.is_even()),
      exchanges_each_(layout.zero >= 2 && layout.pp == 1),
      order_(std::move(order)) {
  for (BorrowedWeight& weight : borrowed) borrowed_.push_back({std::move(weight)});
  std::map<std::string, int> replicas_of_layer;
  for (const LayoutStage& stage : layout.stages)
    for (const std::string& layer : stage.layers) replicas_of_layer[layer] = stage.dp;
  const auto num_ranks = [&](const std::string& tensor) {
    const auto replicas = replicas_of_layer.find(tensor.substr(0, tensor.find('.')));
    return even_ ? num_shares_ : replicas == replicas_of_layer.end() ? 1 : replicas->second;
  };
  for (const NamedTensor& parameter : distinct_parameters(model))
    if (parameter.tensor.requires_grad()) gradients_.push_back({parameter, num_ranks(parameter.name), {}});
  for (const NamedTensor& buffer : distinct_buffers(model)) {
    const auto count = static_cast<size_t>(num_ranks(buffer.name));
    buffers_.push_back({buffer, {}, std::vector<at::Tensor>(count), std::vector<int64_t>(count), -1});
  }
}

void SequentialRanks::step(const LoadedBatch& batch, const std::function<void(const Share& piece, int64_t offset)>& compute) {
  const size_t pieces_of_share = batch.pieces.size() / static_cast<size_t>(num_shares_);
  int64_t offset = 0;
  begin_step();
  for (size_t i = 0; i < batch.pieces.size(); ++i) {
    const Share& piece = batch.pieces[i];
    if (piece.size() == 0) continue;
    begin_piece(static_cast<int>(i / pieces_of_share), static_cast<int>(i % pieces_of_share), piece.size());
    compute(piece, offset);
    offset += piece.size();
    end_piece();
  }
  end_step(batch.global_samples);
}

void SequentialRanks::begin_step() {
  at::NoGradGuard no_grad;
  for (Gradient& gradient : gradients_) gradient.terms.clear();
  for (Buffer& buffer : buffers_) {
    buffer.before = buffer.here.tensor.detach().clone();
    for (at::Tensor& copy : buffer.of_rank) copy = buffer.before.clone();
    std::fill(buffer.num_samples.begin(), buffer.num_samples.end(), 0);
    buffer.rank = 0;
  }
  for (const Loan& loan : borrowed_) loan.weight.copy.detach().copy_(loan.weight.owner);
  number_ = -1;
}

at::Tensor& SequentialRanks::term(Gradient& gradient) {
  const size_t row = exchanges_each_ ? static_cast<size_t>(number_) : 0;
  if (gradient.terms.size() <= row) gradient.terms.resize(row + 1, std::vector<at::Tensor>(static_cast<size_t>(gradient.num_ranks)));
  return gradient.terms[row][static_cast<size_t>(rank_of(gradient.num_ranks))];
}

void SequentialRanks::begin_piece(int share, int number, int64_t num_samples) {
  at::NoGradGuard no_grad;
  // A new share or a new round ends the round before.
  if (number_ >= 0 && (share != share_ || number / microbatches_ != number_ / microbatches_)) end_round();
  share_ = share;
  number_ = number;
  for (Gradient& gradient : gradients_) gradient.here.tensor.mutable_grad() = at::Tensor();
  for (Buffer& buffer : buffers_) {
    const int rank = rank_of(static_cast<int>(buffer.of_rank.size()));
    buffer.num_samples[static_cast<size_t>(rank)] += num_samples;
    if (rank == buffer.rank) continue;  // No write without need: layers may rely on an unchanged buffer within a step.
    put_back(buffer);
    buffer.rank = rank;
    buffer.here.tensor.copy_(buffer.of_rank[static_cast<size_t>(rank)]);
  }
}

bool SequentialRanks::waits(const Gradient& gradient) const {
  return std::any_of(borrowed_.begin(), borrowed_.end(),
                     [&](const Loan& loan) { return loan.weight.of_same_worker && gradient.here.tensor.is_same(loan.weight.owner); });
}

void SequentialRanks::end_piece() {
  at::NoGradGuard no_grad;
  for (Gradient& gradient : gradients_) {
    at::Tensor& piece = gradient.here.tensor.mutable_grad();
    if (waits(gradient)) gradient.of_round.push_back(piece);
    else add_defined(term(gradient), piece);
    piece = at::Tensor();
  }
  for (Loan& loan : borrowed_) {
    if (!loan.weight.of_same_worker) continue;
    loan.of_round.push_back(loan.weight.copy.grad());
    loan.weight.copy.mutable_grad() = at::Tensor();
  }
}

void SequentialRanks::put_back(Buffer& buffer) { buffer.of_rank[static_cast<size_t>(buffer.rank)] = buffer.here.tensor.detach().clone(); }

void SequentialRanks::add_as_backward_comes(Gradient& gradient, int num_micro_batches) {
  for (const auto& [stage, k] : order_(num_micro_batches)) {
    bool owner_done = false;
    for (const Loan& loan : borrowed_) {
      if (!loan.weight.of_same_worker || !gradient.here.tensor.is_same(loan.weight.owner)) continue;
      if (stage == loan.weight.stage) add_defined(term(gradient), loan.of_round.at(static_cast<size_t>(k)));
      if (stage == loan.weight.owner_stage && !std::exchange(owner_done, true))
        add_defined(term(gradient), gradient.of_round.at(static_cast<size_t>(k)));
    }
  }
  gradient.of_round.clear();
}

void SequentialRanks::end_round() {
  for (Gradient& gradient : gradients_)
    if (!gradient.of_round.empty()) add_as_backward_comes(gradient, static_cast<int>(gradient.of_round.size()));
  for (Loan& loan : borrowed_) {
    loan.of_round.clear();
    if (loan.weight.of_same_worker) continue;
    const auto owner = std::find_if(gradients_.begin(), gradients_.end(),
                                    [&](const Gradient& gradient) { return gradient.here.tensor.is_same(loan.weight.owner); });
    at::Tensor copy = loan.weight.copy;
    if (owner != gradients_.end()) add_defined(term(*owner), copy.grad());
    copy.mutable_grad() = at::Tensor();
  }
}

void SequentialRanks::end_step(int64_t num_samples) {
  at::NoGradGuard no_grad;
  if (number_ >= 0) end_round();
  for (Gradient& gradient : gradients_) {
    at::Tensor sum;
    for (const std::vector<at::Tensor>& row : gradient.terms) {
      at::Tensor of_row;
      for (const at::Tensor& of_rank : row) add_defined(of_row, of_rank);
      add_defined(sum, of_row);
    }
    gradient.here.tensor.mutable_grad() = sum;
  }
  for (Buffer& buffer : buffers_) {
    if (buffer.of_rank.size() == 1) continue;
    put_back(buffer);
    const at::ScalarType type = at::toOpMathType(buffer.before.scalar_type());  // Ranks average half precision in fp32.
    const auto part = [&](size_t rank) {
      return buffer.of_rank[rank].to(type).mul(static_cast<double>(buffer.num_samples[rank]) / static_cast<double>(num_samples));
    };
    at::Tensor average = buffer.of_rank.front();
    const bool is_constant =
        std::all_of(buffer.of_rank.begin(), buffer.of_rank.end(), [&](const at::Tensor& one) { return one.equal(buffer.before); });
    if (average.is_floating_point() && !is_constant) {
      average = part(0);
      for (size_t rank = 1; rank < buffer.of_rank.size(); ++rank) average = average + part(rank);
    }
    buffer.here.tensor.copy_(average);
  }
}

}  // namespace cohort
