#pragma once
// What a data-parallel training without waiting does with the work of its workers, whoever they are and whenever they come: states and
// transitions, which know nothing of clocks, processes or messages. gradient_server.h applies gradients to one model; model_queue.h passes
// whole models around. async/simulated/ drives them under a simulated clock.
//
//   mode.pull(work);                                      // the module holds what the worker is served
//   result = ticket_work.compute(work.ticket);            // forward and backward on it
//   mode.worked(work, std::move(result), numbers);        // what the worker will hand over; the module is the mode's again
//   mode.push(work, numbers);                             // whenever that is
//
// Where the worker is another process its half of this is a WorkerSide:
//
//   mode.pull(work); send(mode.served());
//   receive(side.pulled()); send(side.hand_over(ticket, ticket_work.compute(ticket), numbers).tensors);
//   mode.push(work, numbers);                             // with those

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/data/tickets.h"
#include "cohort/parallel/common/flat_piece.h"
#include "cohort/parallel/common/parameters.h"

namespace cohort {

/// What forward and backward of a ticket gave.
struct TicketResult {
  double loss = 0;                    ///< The ticket's part of its step's loss: the sum over its samples / samples of the step.
  std::vector<at::Tensor> gradients;  ///< Of that, one a trained parameter; undefined where there is none.
  std::vector<at::Tensor> buffers;    ///< As forward left them, one a buffer.
};

/// Of one worker, from its pull to its push.
struct Work {
  Ticket ticket;
  int worker = 0;            ///< For modes that do the workers' half too.
  int64_t base_version = 0;  ///< Pushes applied when it was served,
  int64_t base_samples = 0;  ///< and samples of them.
  double loss = 0;
  std::vector<at::Tensor> tensors;  ///< What it hands over, in the mode's order; some may be undefined.
};

/// The numbers of the step in which a push, or the training of a queued model, happens.
struct StepNumbers {
  double learning_rate = 0, clip_norm = 0;
};

struct PushOutcome {
  int64_t staleness = 0;  ///< Pushes applied between its pull and this push,
  double late_steps = 0;  ///< and the same in steps.
  double gradient_norm = 0;
};

/// The model of such a training as others see it: evaluated, saved, loaded.
class AsyncModel {
 public:
  virtual ~AsyncModel() = default;

  /// The module holds the newest whole version: to evaluate and save it.
  virtual void show() = 0;

  virtual int64_t pull_bytes() const = 0;       ///< Of a message to a worker,
  virtual int64_t push_bytes() const = 0;       ///< and from it.
  virtual int64_t bytes_in_flight() const = 0;  ///< Memory for the work of one worker.

  /// After show(): tensors beside the module's own parameters and buffers.
  virtual std::vector<FlatPiece> saved_pieces() = 0;
  virtual Json state() const = 0;
  /// Memory to read into for that state, the optimizer's included. Error(kBadInput) beginning with `where`; a null state: a training that
  /// had none of this before.
  virtual std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) = 0;
  /// After they and the module's own were read.
  virtual void loaded(const Json& state) = 0;
};

class LocalServer;

/// One that is pulled and pushed to, a ticket at a time.
class AsyncMode : public AsyncModel {
 public:
  virtual void pull(Work& work) = 0;
  virtual void worked(Work& work, TicketResult result, const StepNumbers& numbers) = 0;
  virtual PushOutcome push(Work& work, const StepNumbers& numbers) = 0;
  /// After pull(): what a worker elsewhere needs, aliases.
  virtual std::vector<at::Tensor> served() const = 0;
  virtual int64_t version() const = 0;  ///< Pushes applied.
  /// What worked() keeps from one ticket of that worker to the next is gone with it.
  virtual void forget(int /*worker*/) {}
  /// The mode itself, where an exchange merges the works of a quorum of workers; else null.
  virtual LocalServer* quorum() { return nullptr; }

  /// Tensors as a worker hands them over, to read into; of those that come first num_optional() may be missing.
  virtual std::vector<at::Tensor> empty_handed_over() const = 0;
  virtual size_t num_optional() const = 0;
};

/// What a worker gives for its ticket.
struct HandedOver {
  double loss = 0;
  std::vector<at::Tensor> tensors;  ///< As empty_handed_over() has them.
};

/// A ticket that a worker was given, and how it is computed.
struct OrderedTicket {
  const Tickets& tickets;
  int64_t step = 0;
  int share = 0;
  StepNumbers numbers;                                                     ///< Of that step,
  std::function<double(int64_t step)> rate_at;                             ///< and the learning rate of any.
  std::function<TicketResult(const Ticket& ticket, double rate)> compute;  ///< Forward and backward on what was pulled.
};

/// A worker's half of a mode whose model another process has. One thread.
class WorkerSide {
 public:
  virtual ~WorkerSide() = default;
  /// Memory for what served() sends: the module's own where it has it.
  virtual const std::vector<at::Tensor>& pulled() const = 0;
  /// As AsyncMode's.
  virtual std::vector<at::Tensor> empty_handed_over() const = 0;
  virtual HandedOver hand_over(const Ticket& ticket, TicketResult result, const StepNumbers& numbers) = 0;
  /// All of an order: one forward and backward, or with local steps all of its steps, each an update of the worker's own.
  virtual HandedOver work(const OrderedTicket& order);
  /// State of an optimizer of the worker's own, which nobody else has; load_counts() after reading into it.
  virtual std::vector<FlatPiece> pieces() { return {}; }
  virtual void load_counts() {}
  /// Nobody knows whether what was handed over last has come: what is kept from one ticket to the next is not any more.
  virtual void begin_anew() {}
};

/// A push that was applied.
struct AppliedPush {
  Ticket ticket;
  double loss = 0;
  PushOutcome outcome;
};

/// What modes are made for.
struct ServedModel {
  explicit ServedModel(const torch::nn::Module& module);
  std::vector<NamedTensor> trained, buffers;
  std::vector<at::Tensor> weights;  ///< Flat aliases of the trained parameters.
  int64_t num_bytes = 0;            ///< Of trained parameters and buffers,
  int64_t gradient_bytes = 0;       ///< and of the trained parameters alone.

  /// Weights and buffers as they are, not copied.
  std::vector<at::Tensor> tensors() const;
  std::vector<at::Tensor> copy_of_weights() const;
  std::vector<at::Tensor> copy_of_buffers() const;
  void set_weights(const std::vector<at::Tensor>& values) const;
  void set_buffers(const std::vector<at::Tensor>& values) const;
};

/// to = to + part x (from - to) for floating point, part 1: exactly; what counts (batches seen) takes the greater.
void mix_tensors(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from, double part);
std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors);
std::vector<at::Tensor> empty_copies(const std::vector<at::Tensor>& tensors);

}  // namespace cohort
