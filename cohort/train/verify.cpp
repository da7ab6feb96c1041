#include "cohort/train/verify.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>

#include "cohort/base/error.h"
#include "cohort/base/layout.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/train/trainer.h"
#include "cohort/world/launch.h"

namespace cohort {
namespace {

constexpr double kMargin = 8;
constexpr double kCeiling = 1e-2, kCeilingOfHalfPrecision = 1e-1;  // bf16 has less than 3 digits.
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

/// How one of the trainings that are compared is run.
struct Variant {
  int num_ranks = 1;
  int accumulate = 1;
  bool nudged = false;  ///< Initial weights moved by a unit in the last place.
};

/// Trains in forked ranks and opens the checkpoint of the last step.
Checkpoint train_and_open(Config config, const DataSet& data, const Variant& variant, const std::string& folder) {
  Layout layout = parse_layout(config.layout, 0);
  layout.dp = variant.num_ranks;
  if (variant.num_ranks == 1) layout.zero = 0;
  config.run = folder;
  config.layout = variant.num_ranks == 1 ? "single" : to_text(layout);
  if (variant.num_ranks == 1) config.shares = "equal";
  config.accumulate = variant.accumulate;
  config.checkpoint_every = 0;
  config.resume = config.json = false;
  config.goal.clear();
  // Kernels divide sums by threads, so all runs use the same number.
  config.threads = std::max(1, config.threads);
  const TrainOptions options{.reports = false, .nudge_weights = variant.nudged};
  const int code = run_ranks({.num_ranks = variant.num_ranks}, [&](const World& world) {
    return train(config, data, world, options).interrupted ? static_cast<int>(ErrorCode::kInterrupted) : 0;
  });
  if (code != 0)
    throw Error(static_cast<ErrorCode>(code),
                concat("verify: training on ", variant.num_ranks, variant.num_ranks == 1 ? " rank" : " ranks", " ended with code ", code));
  std::optional<Checkpoint> checkpoint = Checkpoint::open_latest(folder + "/checkpoints");
  if (!checkpoint) fail(ErrorCode::kFailed, "verify: training on ", variant.num_ranks, " ranks left no checkpoint");
  return std::move(*checkpoint);
}

double largest(const std::vector<TensorDifference>& sorted) { return sorted.empty() ? 0 : sorted.front().relative_difference; }

}  // namespace

std::vector<VerifyResult> verify(const Config& config, const DataSet& data, const std::vector<int>& worlds) {
  if (parse_layout(config.layout, 0).compress != "none")
    fail(ErrorCode::kBadInput,
         "verify: compressed gradients are another training by design, so there is nothing to compare; verify the layout with "
         "compress=none");
  const TemporaryFolder folder;
  int num_runs = 0;
  const auto run = [&](const Variant& variant) { return train_and_open(config, data, variant, concat(folder.path(), "/", num_runs++)); };
  const Checkpoint one = run({1, config.accumulate});
  // Statistics over a batch must not be cut in pieces: there the weights move a little instead.
  std::vector<Variant> same_training = {{1, 2 * config.accumulate}, {1, 3 * config.accumulate}};
  if (config.sync_batch_norm) same_training = {{1, config.accumulate, /*nudged=*/true}};
  double rounding = 0;
  for (const Variant& variant : same_training) rounding = std::max(rounding, largest(compare_checkpoints(one, run(variant))));

  std::vector<VerifyResult> results;
  for (const int num_ranks : worlds) {
    const Checkpoint layout = run({num_ranks, config.accumulate});
    VerifyResult result;
    result.num_ranks = num_ranks;
    result.steps = layout.step();
    result.tensors = compare_checkpoints(one, layout);
    result.bound = std::max(kMargin * rounding, kFloor);
    result.reason = concat(
        "one process differs from itself by ", rounding, " when ",
        config.sync_batch_norm ? "its initial weights move by a unit in the last place" : "it adds the same batch up in 2 or 3 pieces",
        "; a layout may differ by ", kMargin, " times that, or by ", kFloor);
    const double ceiling = config.precision == "fp32" ? kCeiling : kCeilingOfHalfPrecision;
    result.comparable = result.bound <= ceiling;
    if (!result.comparable)
      result.reason +=
          concat("; over ", ceiling, " that proves nothing: this training amplifies rounding, so take fewer --steps or a smaller --lr");
    if (!config.sync_batch_norm) result.accumulated = largest(compare_checkpoints(run({1, config.accumulate * num_ranks}), layout));
    result.repeats = largest(compare_checkpoints(layout, run({num_ranks, config.accumulate}))) == 0;
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace cohort
