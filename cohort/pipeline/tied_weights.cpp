#include "cohort/pipeline/tied_weights.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>

#include "cohort/job/specs/faults.h"
#include "cohort/pipeline/hidden_parameter.h"

namespace cohort {
namespace {

PacketKey key_of(const TiedWeight& weight, int64_t number, PacketKey::Kind kind) { return {kind, weight.owner, weight.user, number}; }

}  // namespace

TiedWeights::TiedWeights(LayerGraph& graph, std::vector<TiedWeight> weights, std::vector<std::vector<int>> ranks_of_stage, Group group)
    : rank_(group.rank()) {
  const auto runs = [&](int rank, int stage) {
    const std::vector<int>& ranks = ranks_of_stage[static_cast<size_t>(stage)];
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  };
  std::map<std::string, at::Tensor> borrowed;
  for (size_t number = 0; number < weights.size(); ++number) {
    const TiedWeight& weight = weights[number];
    const std::vector<int>&owners = ranks_of_stage[static_cast<size_t>(weight.owner)],
          &users = ranks_of_stage[static_cast<size_t>(weight.user)];
    for (size_t user = 0; user < users.size(); ++user) {
      if (runs(users[user], weight.owner)) continue;  // Both stages there: one tensor, and autograd adds up.
      Loan loan{static_cast<int64_t>(number), weight, owners[user % owners.size()], users[user], {}, false};
      if (loan.lender == rank_) loan.tensor = find_parameter(graph, weight.name);
      if (loan.borrower == rank_) {
        // Layers of one rank that borrow the same weight share what they borrowed: it is one tensor in all of them.
        loan.tensor = hide_parameter(graph, weight.user_name);
      }
      if (loan.tensor.defined()) loans_.push_back(std::move(loan));
    }
  }
}

void TiedWeights::lend(PacketMail& mail) {
  at::NoGradGuard no_grad;
  for (Loan& loan : loans_) {
    const PacketKey key = key_of(loan.weight, loan.number, PacketKey::kSharedWeight);
    if (loan.lender == rank_) {
      mail.send(key, loan.borrower, {loan.tensor.detach()});
    } else {
      mail.wait_for(key, loan.lender);
      const at::Tensor value = mail.take(key).at(0);
      if (!bears_fault(Fault::kStaleBorrowedWeight) || !loan.has_come) loan.tensor.detach().copy_(value);
      loan.has_come = true;
      loan.tensor.mutable_grad() = at::Tensor();
    }
  }
}

void TiedWeights::give_back(PacketMail& mail) {
  for (Loan& loan : loans_) {
    const PacketKey key = key_of(loan.weight, loan.number, PacketKey::kSharedWeightGradient);
    if (loan.borrower == rank_) {
      mail.send(key, loan.lender, {loan.tensor.grad()});
      loan.tensor.mutable_grad() = at::Tensor();
    } else {
      mail.wait_for(key, loan.borrower);
      const at::Tensor gradient = mail.take(key).at(0);
      // As backward() would leave it: added to `.grad`, hooks run.
      if (gradient.defined() && loan.tensor.requires_grad()) torch::autograd::backward({loan.tensor}, {gradient});
    }
  }
}

}  // namespace cohort
