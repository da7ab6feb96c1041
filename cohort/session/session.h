#pragma once
// The front door for programs that keep their own training loop: who this process is among the ranks, which part of a batch is its own, and
// the few numbers that ranks share. With it, and Parallel, a program for one process trains on many:
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
  std::string layout;            ///< For Parallel; --layout of the command line takes its place.
  std::string backend = "auto";  ///< GroupOptions::backend.
  double timeout_seconds = 60;   ///< The longest any exchange may take.
  uint64_t seed = 1;             ///< Of what all ranks draw alike, and of what each draws for itself (seed_rank()).
};

/// One per process. A handle: copies are the same session. One thread. Calls marked collective are made by all ranks, in the same order.
class COHORT_API Session {
  friend class LoaderSampler;
  friend class Parallel;
  friend class SessionSampler;

 public:
  /// Collective. The process's own world; init() reads the command line first.
  explicit Session(const World& world, SessionOptions options = {});

  int rank() const;
  int size() const;
  /// Prints, writes files: one process of the job.
  bool is_first() const { return rank() == 0; }
  Group& group();
  const World& world() const;
  const std::string& layout() const;
  uint64_t seed() const;

  /// Which rows of a batch of `num_samples` are this rank's; those of all ranks differ by at most one, and may be empty. Ranks that have
  /// parts of one copy of a model (Parallel under pp or tp) take the same rows.
  Share share(int64_t num_samples) const;
  /// Into how many parts a batch is divided: the ranks, or the copies of a model that they share.
  int num_shares() const;
  /// This rank's rows (dimension `dim`) of a batch that all ranks hold whole, as a view. Says at the same time how many samples this rank's
  /// next losses are the mean of.
  at::Tensor local(const at::Tensor& batch, int64_t dim = 0);
  /// For programs that divide their data themselves: the losses of this rank's next steps are means over `num_samples`, 0 or more. Without
  /// it, and without local() or a SessionSampler, all ranks count alike. Collective.
  void set_samples(int64_t num_samples);
  /// What this rank's loss counts for in the mean over the ranks: 1 where all have as many samples, 0 where it has none.
  double weight() const;
  /// loss.backward() of what the loss counts for: gradients are weighted from the start, and not on their way out. The same where all ranks
  /// have as many samples; needed with ParallelOptions::sync_batch_norm where they have not.
  void backward(const at::Tensor& loss);

  /// The mean over all ranks' samples of a value that is this rank's mean over its own; the same bits on all ranks. Collective. A rank
  /// without samples adds nothing, not even a NaN. Error(kBadInput) where a LoaderSampler's batch wants set_samples() first.
  double mean(double value);
  at::Tensor mean(const at::Tensor& value);
  /// Collective.
  double sum(double value);
  at::Tensor sum(const at::Tensor& value);
  /// Whether any rank says so: to stop together. Collective.
  bool any(bool value);
  void barrier();

  /// Calls torch::manual_seed() with a seed for this rank alone: for noise that should differ between ranks (a generator's input, dropout).
  /// `purpose` gives other numbers (a step, say). seed_all() is the same for all ranks.
  void seed_rank(uint64_t purpose = 0);
  void seed_all(uint64_t purpose = 0);

 private:
  Share take_share(int64_t num_samples);
  /// From Parallel: this rank takes part `index` of `count` of each batch, and draws the numbers of `stream`. Error(kBadInput) where
  /// another model of the session divides batches otherwise.
  void divide_by(int index, int count, int stream);
  int64_t first_sample() const;  ///< Of this rank in the batch that local() divided last.
  bool loss_is_weighted() const;
  double loss_weight() const;
  void forget_batches();
  void add_parameters(const torch::nn::Module& module);
  bool has_parameter(const at::Tensor& tensor) const;
  void batch_was_taken(bool is_even);
  void check_samples_told(const char* call) const;
  void check_one_batch(const char* call) const;  ///< That backward() is of.
  void set_in_pipeline_loss(bool value);         ///< Which the ranks of the last stage alone compute.

  struct State;
  std::shared_ptr<State> state_;
};

/// Joins the job that launched this process, or is one process; with `--workers N` (and no launcher) this process starts N ranks of itself
/// first, in which alone the call returns. Takes `--workers N`, `--layout TEXT` and `--backend NAME` (also --workers=N) out of the
/// arguments, up to `--`, and leaves the program its own: it cannot know which those are, so refusing the rest is the program's part (argc
/// is 1 after it where nothing is left), and of `--wokers 2`, which looks like a slip, there is a warning. Call it first in main(): before
/// threads are started and LibTorch computes. Each rank computes with its part of the cores unless OMP_NUM_THREADS is set; stdout of
/// several ranks is written line by line. From here on an exception that nobody catches ends the program with its one line, see
/// docs/errors.md. Collective. Error(kBadInput) for an option without its value.
COHORT_API Session init(int& argc, char** argv, SessionOptions options = {});

/// Positions of this rank in each step of an epoch, for a loader of the program's own: every epoch another order, the same on all ranks for
/// one seed. The global batches are those of `cohort train`.
class COHORT_API SessionSampler {
 public:
  /// `global_batch` samples a step over all ranks. Error(kBadInput) for less than one sample a rank.
  SessionSampler(Session session, int64_t num_samples, int64_t global_batch, bool shuffle = true);
  int64_t steps_per_epoch() const;
  /// The indices of this rank in `step`, counted from 0 over all epochs. Says how many samples the next losses are the mean of, as local().
  std::vector<int64_t> next(int64_t step);

 private:
  Session session_;
  Sampler sampler_;
};

}  // namespace cohort
