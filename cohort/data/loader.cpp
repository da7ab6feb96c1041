#include "cohort/data/loader.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/job/specs/batch_schedule.h"

namespace cohort {
namespace {

void check(const std::shared_ptr<const DataSource>& source, const LoaderOptions& options) {
  if (!source) fail(ErrorCode::kFailed, "a loader needs a source");
  if (options.read_ahead < 1) fail(ErrorCode::kBadInput, "read-ahead: expected at least 1 batch, found ", options.read_ahead);
  if (options.first_step < 0 || options.end_step < 0) {
    fail(ErrorCode::kBadInput, "steps of the loader: expected at least 0, found ", options.first_step, " to ", options.end_step);
  }
  if (options.pieces < 1) fail(ErrorCode::kBadInput, "micro-steps of a step: expected at least 1, found ", options.pieces);
  share_of_rank(0, options.rank, options.num_ranks, options.granularity);  // Throws where rank, ranks or granularity are wrong.
}

/// Error(kBadInput) unless there is one positive number per rank.
void check_weights(const std::vector<double>& weights, int num_ranks) {
  if (std::ssize(weights) != num_ranks)
    fail(ErrorCode::kBadInput, weights.size(), " weights for ", num_ranks, " ranks; expected one a rank");
  shares_of_batch(0, weights);
}

}  // namespace

struct Loader::State {
  State(std::shared_ptr<const DataSource> data, const LoaderOptions& chosen)
      : source(std::move(data)),
        options(chosen),
        sampler(source->num_samples(), options.global_batch, options.seed, /*shuffle=*/true, Sampler::Batches::kWithinEpochs,
                options.stages) {
    weights[options.first_step] = chosen.weights.empty() ? std::vector<double>(static_cast<size_t>(chosen.num_ranks), 1.0) : chosen.weights;
    check_weights(weights.begin()->second, chosen.num_ranks);
  }

  int64_t end_step() const { return options.end_step == 0 ? std::numeric_limits<int64_t>::max() : options.end_step; }

  /// The weights of `step`, dropping older ones: steps are read in order. Requires the lock.
  std::vector<double> weights_at(int64_t step) {
    weights.erase(weights.begin(), std::prev(weights.upper_bound(step)));
    return weights.begin()->second;
  }

  LoadedBatch read(int64_t step, const std::vector<double>& rank_weights, Batch memory) {
    LoadedBatch out;
    out.step = step;
    out.global_samples = sampler.batch_at(step);
    const int first = options.reads_all_ranks ? 0 : options.rank, end = options.reads_all_ranks ? options.num_ranks : options.rank + 1;
    const int num_pieces = options.pieces * static_cast<int>(batch_factor_at(options.stages, step));
    for (int rank = first; rank < end; ++rank) {
      const std::vector<Share> pieces = pieces_of_rank(out.global_samples, rank, rank_weights, num_pieces, options.granularity);
      out.pieces.insert(out.pieces.end(), pieces.begin(), pieces.end());
    }
    std::vector<int64_t> indices;
    for (const Share& piece : out.pieces) {
      const std::vector<int64_t> samples = sampler.samples(step, piece);
      indices.insert(indices.end(), samples.begin(), samples.end());
    }
    out.batch = std::move(memory);
    source->read(indices, out.batch);
    options.augmentation.apply(out.batch, indices, step);
    out.samples = std::move(indices);
    if (options.answer) out.answers = options.answer(out);
    return out;
  }

  /// The reader thread, until `stop` or the last step. The queue is full at read_ahead batches.
  void run(const std::stop_token& stop) {
    try {
      for (int64_t step = options.first_step; step < end_step(); ++step) {
        Batch memory;
        std::vector<double> rank_weights;
        {
          std::unique_lock lock(mutex);
          if (!room.wait(lock, stop, [&] { return std::ssize(ready) < options.read_ahead; }) || stop.stop_requested()) return;
          if (!spare.empty()) {
            memory = std::move(spare.back());
            spare.pop_back();
          }
          rank_weights = weights_at(step);
        }
        LoadedBatch batch = read(step, rank_weights, std::move(memory));
        std::lock_guard lock(mutex);
        ready.push_back(std::move(batch));
        filled.notify_one();
      }
    } catch (...) {
      std::lock_guard lock(mutex);
      failure = std::current_exception();
      filled.notify_one();
    }
  }

  const std::shared_ptr<const DataSource> source;
  const LoaderOptions options;
  Sampler sampler;  // Used by the reader thread only.

  std::mutex mutex;
  std::condition_variable_any room, filled;
  std::deque<LoadedBatch> ready;
  std::vector<Batch> spare;                        // Recycled memory.
  std::map<int64_t, std::vector<double>> weights;  // By first step.
  std::exception_ptr failure;
  int64_t next_step = 0;
  std::jthread reader;  // Last, to stop before other members are destroyed.
};

Loader::Loader(std::shared_ptr<const DataSource> source, const LoaderOptions& options) {
  check(source, options);
  state_ = std::make_unique<State>(std::move(source), options);
  state_->next_step = options.first_step;
  steps_per_epoch_ = state_->sampler.steps_per_epoch();
  state_->reader = std::jthread([state = state_.get()](const std::stop_token& stop) { state->run(stop); });
}

Loader::~Loader() = default;

LoadedBatch Loader::next() {
  using Clock = std::chrono::steady_clock;
  State& state = *state_;
  if (state.next_step >= state.end_step()) {
    fail(ErrorCode::kFailed, "the loader was asked for step ", state.next_step, ", but ends before step ", state.end_step());
  }
  const Clock::time_point begin = Clock::now();
  std::unique_lock lock(state.mutex);
  state.filled.wait(lock, [&] { return !state.ready.empty() || state.failure; });
  if (state.ready.empty()) std::rethrow_exception(state.failure);
  LoadedBatch out = std::move(state.ready.front());
  state.ready.pop_front();
  state.room.notify_one();
  out.waited_seconds = seconds_since(begin);
  ++state.next_step;
  return out;
}

// The reader works on step next_step + ready.size() while the queue has room, so never on one from next_step + read_ahead on.
int64_t Loader::first_free_step() const { return state_->next_step + state_->options.read_ahead; }

void Loader::set_weights(int64_t from_step, std::vector<double> weights) {
  if (from_step < first_free_step()) {
    fail(ErrorCode::kBadInput, "weights from step ", from_step, " on: steps below ", first_free_step(), " may have been read already");
  }
  check_weights(weights, state_->options.num_ranks);
  std::lock_guard lock(state_->mutex);
  state_->weights.erase(state_->weights.lower_bound(from_step), state_->weights.end());  // The latest call wins.
  state_->weights[from_step] = std::move(weights);
}

void Loader::recycle(Batch batch) {
  std::lock_guard lock(state_->mutex);
  if (std::ssize(state_->spare) <= state_->options.read_ahead) state_->spare.push_back(std::move(batch));
}

int64_t Loader::steps_per_epoch() const { return steps_per_epoch_; }

}  // namespace cohort
