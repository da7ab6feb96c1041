#include "cohort/async/served/served_training.h"

#include <doctest/doctest.h>

#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "cohort/base/files/file.h"

namespace cohort {
namespace {

/// The training of these ranks as threads; rank 0's result.
TrainResult train_in_threads(int num_ranks, const std::string& sync) {
  const TemporaryFolder folder;
  Config config;
  config.run = folder / "run";
  config.data = "synthetic:1x8x8,classes=4,samples=200";
  config.model = "fc:hidden=8";
  config.optimizer = "momentum";
  config.lr = 0.02;
  config.global_batch = 24;
  config.steps = 40;
  config.eval_every = 10;
  config.quiet = true;
  config.threads = 1;
  config.layout = "sync=" + sync;
  const DataSet data = open_data(config);
  const Job job = resolve(config, num_ranks);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<TrainResult> results(static_cast<size_t>(num_ranks));
  std::vector<std::exception_ptr> failures(static_cast<size_t>(num_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank)
    threads.emplace_back([&, rank] {
      const auto place = static_cast<size_t>(rank);
      try {
        const World world{.rank = rank, .size = num_ranks, .local_rank = rank, .local_size = num_ranks, .launcher = "threads"};
        results[place] = train_served(job, data, world, store, {});
      } catch (...) {
        failures[place] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  return results.front();
}

TEST_CASE("served training: ranks that are threads, so that ThreadSanitizer sees a whole one") {
  for (const char* const sync : {"async", "stale:1", "queue", "diloco:5:quorum=2"}) {
    INFO(sync);
    const TrainResult result = train_in_threads(3, sync);
    CHECK(result.steps == 40);
    CHECK(result.val_error < 0.5);
  }
}

}  // namespace
}  // namespace cohort
