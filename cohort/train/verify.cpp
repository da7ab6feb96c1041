#include "cohort/train/verify.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>

#include "cohort/base/error.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/train/trainer.h"
#include "cohort/world/launch.h"

namespace cohort {
namespace {

constexpr double kMargin = 8;
constexpr double kCeiling = 1e-2;
constexpr double kFloor = 32 * std::numeric_limits<float>::epsilon();

class TemporaryFolder {
 public:
  TemporaryFolder() : path_((std::filesystem::temp_directory_path() / "cohort-verify-XXXXXX").string()) {
    if (!::mkdtemp(path_.data())) fail(ErrorCode::kFailed, "cannot make a temporary folder ", path_, ": ", std::strerror(errno));
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Trains in forked ranks and opens the checkpoint of the last step.
Checkpoint train_and_open(Config config, const DataSet& data, int num_ranks, int accumulate, const std::string& folder) {
  config.run = folder;
  config.layout = "auto";
  config.accumulate = accumulate;
  config.checkpoint_every = 0;
  config.resume = config.json = false;
  config.goal.clear();
  // Kernels divide sums by threads, so all runs use the same number.
  config.threads = std::max(1, config.threads);
  const int code = run_ranks({.num_ranks = num_ranks}, [&](const World& world) {
    return train(config, data, world, {.reports = false}).interrupted ? static_cast<int>(ErrorCode::kInterrupted) : 0;
  });
  if (code != 0)
    throw Error(static_cast<ErrorCode>(code),
                concat("verify: training on ", num_ranks, num_ranks == 1 ? " rank" : " ranks", " ended with code ", code));
  std::optional<Checkpoint> checkpoint = Checkpoint::open_latest(folder + "/checkpoints");
  if (!checkpoint) fail(ErrorCode::kFailed, "verify: training on ", num_ranks, " ranks left no checkpoint");
  return std::move(*checkpoint);
}

double largest(const std::vector<TensorDifference>& sorted) { return sorted.empty() ? 0 : sorted.front().relative_difference; }

}  // namespace

std::vector<VerifyResult> verify(const Config& config, const DataSet& data, const std::vector<int>& worlds) {
  const TemporaryFolder folder;
  int num_runs = 0;
  const auto run = [&](int num_ranks, int accumulate) {
    return train_and_open(config, data, num_ranks, accumulate, concat(folder.path(), "/", num_runs++));
  };
  const Checkpoint one = run(1, config.accumulate);
  double rounding = 0;
  for (const int pieces : {2, 3}) rounding = std::max(rounding, largest(compare_checkpoints(one, run(1, config.accumulate * pieces))));

  std::vector<VerifyResult> results;
  for (const int num_ranks : worlds) {
    const Checkpoint layout = run(num_ranks, config.accumulate);
    VerifyResult result;
    result.num_ranks = num_ranks;
    result.steps = layout.step();
    result.tensors = compare_checkpoints(one, layout);
    result.bound = std::max(kMargin * rounding, kFloor);
    result.reason =
        concat("one process differs from itself by ", rounding, " when it adds the same batch up in 2 or 3 pieces; a layout may differ by ",
               kMargin, " times that, or by ", kFloor);
    result.comparable = result.bound <= kCeiling;
    if (!result.comparable)
      result.reason +=
          concat("; over ", kCeiling, " that proves nothing: this training amplifies rounding, so take fewer --steps or a smaller --lr");
    result.accumulated = largest(compare_checkpoints(run(1, config.accumulate * num_ranks), layout));
    result.repeats = largest(compare_checkpoints(layout, run(num_ranks, config.accumulate))) == 0;
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace cohort
