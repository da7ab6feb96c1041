#pragma once
// Weights that layers of several stages use (an embedding and the output layer). One lives, and is trained, in the first of these stages;
// the others get its value before each step and hand their gradients back after it, once each, so that optimizers, sharding and clipping
// see one weight. Cost a step and user: two messages of the weight's size.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cohort/models/graph/layer_graph.h"
#include "cohort/pipeline/packet_mail.h"
#include "cohort/pipeline/stage_cut.h"

namespace cohort {

using BorrowedChange = std::function<at::Tensor(int64_t number, const at::Tensor& value)>;

/// One rank's part. Replica u of a stage borrows from replica u mod (number of owners).
class TiedWeights {
 public:
  /// Before layers of other ranks are dropped from `graph`: borrowed weights are taken out of its parameters. `ranks_of_stage` are ranks of
  /// `group`, by stage.
  TiedWeights(LayerGraph& graph, std::vector<TiedWeight> weights, std::vector<std::vector<int>> ranks_of_stage, Group group);
  void lend(PacketMail& mail);
  void give_back(PacketMail& mail);
  /// See PipelineRunner.
  void change_borrowed(BorrowedChange change) { change_ = std::move(change); }

 private:
  struct Loan {
    int64_t number;
    TiedWeight weight;
    int lender, borrower;
    at::Tensor tensor;  ///< Of this rank; undefined where it has no part in it.
  };
  int rank_;
  std::vector<Loan> loans_;
  BorrowedChange change_;
};

}  // namespace cohort
