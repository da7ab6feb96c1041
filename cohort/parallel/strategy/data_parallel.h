#pragma once
// Synchronous data parallelism for any torch::nn::Module: every rank computes gradients of its own samples; their mean arrives in `.grad`
// of every parameter, on every rank bitwise the same, when backward() returns. Gradients leave in buckets while backward still runs.
//
//   cohort::Group group = cohort::Group::create(cohort::world_from_environment());
//   cohort::DataParallel parallel(*model, group);
//   ...
//   loss.backward();        // gradients are exchanged here
//   optimizer.step();       // any optimizer
//
// Works with: parameters that some or all ranks do not use in a step (a parameter that no rank used keeps no gradient, as in one process),
// tied, frozen and repeatedly used parameters, sparse gradients (exchanged dense), empty ones, several dtypes, parameters that come, go,
// are frozen or unfrozen later, gradients that the program keeps, and recomputation inside backward().

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/comm/group.h"
#include "cohort/parallel/common/flat_piece.h"

namespace cohort {

/// What the exchanged gradient is.
enum class GradientMean {
  kRanks,    ///< The mean of the ranks' gradients. Exact for equal batches.
  kSamples,  ///< The mean weighted by set_local_samples(): exact for uneven batches, where each rank's loss is the mean over its own
             ///< samples.
  kSum,      ///< The sum: losses are already divided by the number of samples of all ranks.
};

/// How buffers that forward changed are synchronised.
enum class BufferPolicy {
  kAverage,    ///< Of floating-point type: their average by each rank's share of the samples. Others: the largest, where not all ranks
               ///< changed them (counters).
  kBroadcast,  ///< Rank 0's.
  kNone,       ///< Each rank keeps its own.
};
COHORT_API const char* name_of(BufferPolicy policy);

struct DataParallelOptions {
  GradientMean mean = GradientMean::kRanks;
  int64_t bucket_bytes = 8 << 20;
  int64_t first_bucket_bytes = 1 << 20;
  bool broadcast_model = true;                    ///< Every rank starts with rank 0's parameters and buffers.
  BufferPolicy buffers = BufferPolicy::kAverage;  ///< How changed buffers are synchronised.
  /// Used in messages, and compared between ranks at each exchange, which detects two models whose backwards run in different orders. ""
  /// stands for "model 0", "model 1", ... in the order of construction.
  std::string name;
  bool check_weights = true;      ///< A hash of some weights travels with each exchange: ranks that drift apart are found within steps.
  std::string compress = "none";  ///< Of gradients of type Float; see parallel/compress/compressor.h.
  uint64_t seed = 1;              ///< Of compressors; the same on all ranks.
};

/// Cost of the last exchange for this rank.
struct ExchangeStatistics {
  int64_t bytes = 0;          ///< Gradients, with padding.
  int64_t sent_bytes = 0;     ///< Sent by this rank where gradients are compressed, else 0.
  int64_t buffer_bytes = 0;   ///< Buffers.
  int64_t num_exchanges = 0;  ///< In total.
  int num_buckets = 0;
  double exposed_seconds = 0;  ///< Time that backward() waited for it.
};

/// One per model and rank; the module must outlive it. Not thread-safe. backward() throws Error: kEnvironment when a peer is lost; kFailed
/// when a rank left the step (abandon_step()), and where ranks exchange different models, have different parameters or no longer the same
/// weights; kBadInput for a second gradient of a parameter after its exchange, and for create_graph. From a gradient's exchange to the end
/// of backward() its `.grad` is undefined.
class COHORT_API DataParallel {
 public:
  /// Collective. Throws Error(kFailed), naming ranks and parameter, when the ranks' models or options differ.
  DataParallel(torch::nn::Module& module, Group group, DataParallelOptions options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Call after registering, replacing or loading parameters: all ranks get rank 0's values and exchange the new parameters from the next
  /// backward() on. Without it a change is noticed too, but new parameters must then have equal values on all ranks. Collective.
  void adopt_model();
  /// While false (see NoSync), backward() only accumulates in `.grad`; the next backward() with it true exchanges the accumulated gradient.
  void set_sync(bool on);
  bool is_sync() const;
  /// For kSamples: the number of samples, possibly 0, in this rank's exchanged gradients, until it is called again.
  void set_local_samples(int64_t samples);
  /// Multiplies gradients on their way into the exchange (initially 1): 1 / loss scale, so that residuals of compressors have no scale. The
  /// same on all ranks.
  void set_gradient_factor(double factor);
  /// Share of this rank in the average of floating-point buffers (batch-norm statistics), 1 / ranks unless set. Shares of all ranks add up
  /// to 1.
  void set_buffer_share(double share);
  /// Takes part in an exchange without a backward (a rank without samples in this step). Collective with the others' backward().
  void exchange_without_backward();

  /// This rank cannot make the step that the others make: an exception ended its forward or backward. Takes part in their exchange, in
  /// which backward() throws Error(kFailed), naming this rank; no rank keeps gradients of the step, or what compression kept of it, and the
  /// next step works on all. In the catch block around every step or around none: it does nothing where all ranks have dropped the step
  /// already. A backward() that failed after its first gradient is also made up for by the next backward() that exchanges. Collective as
  /// that is.
  void abandon_step();
  /// Whether an exception ended a backward() that was to exchange, and neither abandon_step() nor another backward() has followed.
  bool backward_failed() const;
  /// Counts a step of the program's optimizer. Ranks compare their counts at each exchange: a rank that left out a backward() in between is
  /// an Error(kFailed) on all ranks, naming it. All ranks call it at each step or none does.
  void count_step();
  /// The last exchanged gradients are not applied (one is infinite): restores the state of compressors. No exchange; all ranks call it or
  /// none.
  void forget_exchange();

  /// Numbers exchanged with the gradients at no extra message; control_sum(slot) is their sum over the ranks after the exchange.
  static constexpr int kNumControls = 4;
  void set_control(int slot, float value);
  float control_sum(int slot) const;

  const ExchangeStatistics& statistics() const;
  Group& group();
  GradientMean mean() const;
  /// State of compressors, to be saved or filled in place: "compress/bucket-N/SLOT". A residual is this rank's row of a tensor {ranks,
  /// elements}; other slots are equal on all ranks (in rank 0's list when `saving`).
  std::vector<FlatPiece> compressor_state(bool saving);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Micro-steps that only accumulate: { cohort::NoSync micro(parallel); loss.backward(); } May be nested.
class NoSync {
 public:
  explicit NoSync(DataParallel& parallel) : parallel_(parallel), synced_before_(parallel.is_sync()) { parallel_.set_sync(false); }
  ~NoSync() { parallel_.set_sync(synced_before_); }
  NoSync(const NoSync&) = delete;

 private:
  DataParallel& parallel_;
  const bool synced_before_;
};

}  // namespace cohort
