#pragma once
// Gradients summed over the ranks, each rank keeping the slices that it updates: the half of the work that ZeRO stages 1 to 3 share.

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

/// One per model and rank; one thread. A pass is the exchange of every unit once, in an order that is the same on all ranks; each backward
/// that exchanges is one.
class ZeroReduce {
 public:
  /// Collective. `units`: the trained ones. keep_whole: stage 1, `.grad` stays whole and there is one pass a step. Else `.grad` is taken
  /// away when it leaves and the passes of a step add up in the slices. `memory` must outlive it.
  ZeroReduce(Group group, const std::vector<NamedTensor>& parameters, const std::vector<ZeroUnit>& units, UnitMemory& memory,
             bool keep_whole);

  /// `.grad` of a parameter is ready. Error(kFailed), naming it, when it has left already.
  void on_gradient(int parameter);
  /// Units at the head of the order whose gradients are all ready, started ones included.
  int64_t num_ready() const;
  /// Starts the exchange of the first `count` units of the order, as far as it has not started.
  void start_up_to(int64_t count);
  int64_t num_units() const { return static_cast<int64_t>(units_.size()); }
  /// Which parameters had a gradient in this pass; complete when all units have started. One number a parameter.
  const std::vector<uint8_t>& used() const { return used_; }
  /// Waits for everything that was started and ends the pass. Collective, after start_up_to(num_units()). Nothing is learnt from one that
  /// is `dropped`: a rank did not come to its end.
  void finish_pass(bool dropped = false);

  /// Stages 2 and 3: who looks at `.grad` of a parameter whose gradient has left, or drops it, must not take it for one that there never
  /// was: from lay_stand_ins() to lift_stand_ins() gradient_stand_in() lies there, where `has_gradient`.
  void lay_stand_ins(const std::vector<uint8_t>& has_gradient);
  /// Returns the parameters whose stand-in the program has taken away (Module::zero_grad()).
  std::vector<int> lift_stand_ins();

  /// This rank's slice of the summed gradient of a unit, valid after a pass.
  const at::Tensor& slice(size_t unit) const { return units_[unit].sum; }
  /// Forgets all gradients.
  void clear();
  /// Bytes of one pass, padding included.
  int64_t pass_bytes() const;
  /// Bytes of gradients held from pass to pass.
  int64_t held_bytes() const;

 private:
  struct Unit {
    ZeroUnit plan;
    std::string name;
    at::Tensor whole;                ///< What leaves; has memory in stage 1, else only while it travels.
    std::vector<at::Tensor> places;  ///< Aliases of `whole`, one a parameter.
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
  std::vector<int64_t> order_;     ///< Units as they are exchanged.
  std::vector<int64_t> arrivals_;  ///< Units in the order in which their gradients became complete in the first pass.
  bool order_learnt_ = false;
  std::vector<uint8_t> ready_, used_;
  std::vector<at::Tensor> stand_ins_;  ///< One a parameter, made when first needed.
  std::vector<uint8_t> stands_in_;     ///< Which of them lie in `.grad`.
  size_t next_ = 0;
  std::deque<InFlight> in_flight_;
};

}  // namespace cohort
