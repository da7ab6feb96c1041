#pragma once
// For programs with their own training loop: the rank of this process, its rows of each batch, and sums over ranks. With Session and
// Parallel a program for one process trains on many:
//
//   int main(int argc, char** argv) {
//     cohort::Session session = cohort::init(argc, argv);                        // mpirun, torchrun, srun, cohort launch, or --workers N
//     cohort::Parallel parallel(*net, session);
//     torch::optim::SGD optimizer(net->parameters(), 0.1);
//     for (...) {
//       auto loss = loss_of(net->forward(session.local(x)), session.local(y));   // x, y: the whole batch, the same on all ranks
//       loss.backward();
//       parallel.step(optimizer);                                                // the gradient is the mean over the whole batch
//       if (session.is_first()) print(session.mean(loss)) ...
//
// Guide: docs/guide/port_your_loop.md.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "cohort/base/export.h"
#include "cohort/comm/group.h"
#include "cohort/data/sampler.h"
#include "cohort/world/world.h"

namespace cohort {

struct SessionOptions {
  std::string layout;            ///< For Parallel; --layout of the command line overrides it.
  std::string backend = "auto";  ///< GroupOptions::backend.
  double timeout_seconds = 60;   ///< Limit for each exchange.
  uint64_t seed = 1;             ///< For seed_all(), seed_rank() and samplers.
};

/// One per process. A handle: copies are the same session. One thread. All ranks make collective calls in the same order.
class COHORT_API Session {
  friend class LoaderSampler;
  friend class Parallel;
  friend class SessionSampler;

 public:
  /// Collective. init() reads the command line first.
  explicit Session(const World& world, SessionOptions options = {});

  int rank() const;
  int size() const;
  /// True for one process of the job, which prints and writes files.
  bool is_first() const { return rank() == 0; }
  Group& group();
  const World& world() const;
  const std::string& layout() const;
  uint64_t seed() const;

  /// This rank's rows of a batch of `num_samples`; the numbers of rows differ by at most one, and may be 0. Ranks that share one copy of a
  /// model (Parallel under pp or tp) have the same rows.
  Share share(int64_t num_samples) const;
  /// The number of shares of a batch: that of ranks, or of copies of the model.
  int num_shares() const;
  /// A view of this rank's rows (dimension `dim`) of a batch that all ranks hold whole. Also sets the number of samples of this rank's next
  /// losses, as set_samples().
  at::Tensor local(const at::Tensor& batch, int64_t dim = 0);
  /// For programs that divide their data themselves: this rank's next losses are means over `num_samples`, 0 or more. Without it, and
  /// without local() or a SessionSampler, all ranks have the same weight. Collective.
  void set_samples(int64_t num_samples);
  /// The weight of this rank's loss in the mean over ranks: 1 if all have as many samples, 0 if it has none.
  double weight() const;
  /// (loss * weight()).backward(), in which the gradients are not weighted again. Needed with ParallelOptions::sync_batch_norm if ranks
  /// have different numbers of samples; otherwise equal to loss.backward().
  void backward(const at::Tensor& loss);

  /// The mean over all samples of a value that is this rank's mean over its own; the same bits on all ranks. Collective. The value of a
  /// rank without samples is ignored, even a NaN. Error(kBadInput) if a LoaderSampler's batch needs set_samples() first.
  double mean(double value);
  at::Tensor mean(const at::Tensor& value);
  /// Collective.
  double sum(double value);
  at::Tensor sum(const at::Tensor& value);
  /// True if it is true on any rank, to stop together. Collective.
  bool any(bool value);
  void barrier();

  /// Calls torch::manual_seed() with a seed of this rank, for noise that should differ between ranks (dropout); seed_all() uses one seed
  /// for all ranks. Another `purpose` (a step, say) gives other numbers.
  void seed_rank(uint64_t purpose = 0);
  void seed_all(uint64_t purpose = 0);

 private:
  Share take_share(int64_t num_samples);
  /// Called by Parallel: this rank has share `index` of `count`, and random stream `stream`. Error(kBadInput) if another model of the
  /// session divides batches otherwise.
  void divide_by(int index, int count, int stream);
  int64_t first_sample() const;  ///< This rank's first row in the batch that local() divided last.
  bool loss_is_weighted() const;
  double loss_weight() const;
  void forget_batches();
  void add_parameters(const torch::nn::Module& module);
  bool has_parameter(const at::Tensor& tensor) const;
  void batch_was_taken(bool is_even);
  void check_samples_told(const char* call) const;
  void check_one_batch(const char* call) const;
  void set_in_pipeline_loss(bool value);  ///< While the last stage alone computes the loss, exchanges are an Error.

  struct State;
  std::shared_ptr<State> state_;
};

/// Joins the job that launched this process. Without a launcher it is a job of one process, or with `--workers N` the process forks N
/// ranks, and the call returns in these only. Removes `--workers N`, `--layout TEXT` and `--backend NAME` (also --workers=N) from the
/// arguments before
/// `--`. The program checks the rest, since they are its own options (argc is 1 if none are left); a probable typing error such as
/// `--wokers` gives a warning. Call it first in main(), before threads are started and LibTorch computes. Each rank uses its part of the
/// cores unless OMP_NUM_THREADS is set; stdout of several ranks is line-buffered. From here on an uncaught exception ends the program with
/// one line, see docs/errors.md. Collective. Error(kBadInput) for an option without its value.
COHORT_API Session init(int& argc, char** argv, SessionOptions options = {});

/// This rank's samples in each step, for the program's own loader. Each epoch has a new order by the session's seed, the same on all ranks.
/// The global batches are those of `cohort train`.
class COHORT_API SessionSampler {
 public:
  /// `global_batch`: samples of a step over all ranks. Error(kBadInput) for less than one sample a rank.
  SessionSampler(Session session, int64_t num_samples, int64_t global_batch, bool shuffle = true);
  int64_t steps_per_epoch() const;
  /// The samples of this rank in `step`, counted from 0 over all epochs. Also sets the number of samples of the next losses, as local().
  std::vector<int64_t> next(int64_t step);

 private:
  Session session_;
  Sampler sampler_;
};

}  // namespace cohort
