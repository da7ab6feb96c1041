#pragma once
// Reduce-scatter of gradients, shared by ZeRO stages 1 to 3.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/parallel/zero/zero_units.h"

namespace cohort {

struct NamedTensor;

/// One per model and rank; one thread. A pass, one for each backward that exchanges, is the exchange of every unit once, in the same order
/// on all ranks.
class ZeroReduce {
 public:
  /// Collective. `units`: the trained ones. keep_whole: stage 1, where `.grad` stays whole and a step has one pass; else `.grad` is
  /// released when it is sent, and the passes of a step accumulate in the slices. `memory` must outlive this.
  ZeroReduce(Group group, const std::vector<NamedTensor>& parameters, const std::vector<ZeroUnit>& units, UnitMemory& memory,
             bool keep_whole);

  /// `.grad` of a parameter is ready. Error(kFailed), naming it, when it has been sent already.
  void on_gradient(int parameter);
  /// Units at the head of the order, started ones included, whose gradients are all ready.
  int64_t num_ready() const;
  /// Starts the exchanges of the first `count` units of the order that have not started.
  void start_up_to(int64_t count);
  int64_t num_units() const { return static_cast<int64_t>(units_.size()); }
  /// Per parameter whether it had a gradient in this pass; complete when all units have started.
  const std::vector<uint8_t>& used() const { return used_; }
  /// Waits for all exchanges and ends the pass. Collective, after start_up_to(num_units()). The order is not learnt from a `dropped` pass,
  /// which a rank did not complete.
  void finish_pass(bool dropped = false);

  /// Stages 2 and 3: places gradient_stand_in() in `.grad` of sent gradients, where `has_gradient`, until lift_stand_ins(), so that the
  /// program does not take them for missing.
  void lay_stand_ins(const std::vector<uint8_t>& has_gradient);
  /// Returns the parameters whose stand-in the program has removed (Module::zero_grad()).
  std::vector<int> lift_stand_ins();

  /// This rank's slice of a unit's summed gradient, valid after a pass.
  const at::Tensor& slice(size_t unit) const { return units_[unit].sum; }
  /// Forgets all gradients.
  void clear();
  /// Bytes of one pass, with padding.
  int64_t pass_bytes() const;
  /// Bytes of gradients held between passes.
  int64_t held_bytes() const;

 private:
  struct Unit {
    ZeroUnit plan;
    std::string name;
    at::Tensor whole;                ///< Send buffer; has memory in stage 1, else only in transit.
    std::vector<at::Tensor> places;  ///< Aliases of `whole`, one per parameter.
    at::Tensor sum;                  ///< The slice.
    bool has_sum = false;
    size_t num_missing = 0;
    bool started = false;
  };
  struct InFlight {
    size_t unit = 0;
    at::Tensor output;
    std::unique_ptr<Pending> pending;
  };

  void start(size_t unit);
  void pack(Unit& unit);
  void complete_oldest();
  void learn_order();

  Group group_;
  const std::vector<NamedTensor>& parameters_;
  UnitMemory& memory_;
  const bool keep_whole_;
  std::vector<Unit> units_;
  std::vector<size_t> unit_of_;    ///< Parameter -> unit.
  std::vector<int64_t> order_;     ///< Units in the order of exchange.
  std::vector<int64_t> arrivals_;  ///< Units in the order of completion in the first pass.
  bool order_learnt_ = false;
  std::vector<uint8_t> ready_, used_;
  std::vector<at::Tensor> stand_ins_;  ///< One per parameter, created on demand.
  std::vector<uint8_t> stands_in_;     ///< Which of them are in `.grad`.
  size_t next_ = 0;
  std::deque<InFlight> in_flight_;
};

}  // namespace cohort
