#include "cohort/train/verify.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>

#include "cohort/base/error.h"
#include "cohort/base/layout.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/train/check_run.h"
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
  int accumulate = 1;
  double nudge = 0;  ///< Initial weights moved by this part of themselves, up and down.
  auto operator<=>(const Variant&) const = default;
};

/// Runs trainings in forked ranks; those of one process once each.
class Trainings {
 public:
  Trainings(const Config& config, const DataSet& data) : config_(config), data_(data) {
    config_.checkpoint_every = 0;
    config_.resume = config_.json = false;
    config_.goal.clear();
    // Kernels divide sums by threads, so all runs use the same number.
    config_.threads = std::max(1, config_.threads);
  }

  /// The checkpoint of the last step of a run with this layout.
  Checkpoint run(const Layout& layout) {
    Config config = config_;
    config.layout = to_text(layout);
    return run(config, layout.num_ranks(), 0);
  }

  const Checkpoint& one_process(const Variant& variant) {
    const auto known = alone_.find(variant);
    if (known != alone_.end()) return known->second;
    Config config = config_;
    config.layout = "single";
    config.shares = "equal";
    config.memory_limit = 0;
    config.accumulate = variant.accumulate;
    return alone_.emplace(variant, run(config, 1, variant.nudge)).first->second;
  }

 private:
  Checkpoint run(Config& config, int num_ranks, double nudge) {
    config.run = concat(folder_.path(), "/", num_runs_++);
    const TrainOptions options{.reports = false, .nudge_weights = nudge};
    const int code = run_ranks({.num_ranks = num_ranks}, [&](const World& world) {
      return train(config, data_, world, options).interrupted ? static_cast<int>(ErrorCode::kInterrupted) : 0;
    });
    if (code != 0)
      throw Error(static_cast<ErrorCode>(code), concat("verify: training with layout ", config.layout, " ended with code ", code));
    std::optional<Checkpoint> checkpoint = Checkpoint::open_latest(config.run + "/checkpoints");
    if (!checkpoint) fail(ErrorCode::kFailed, "verify: training with layout ", config.layout, " left no checkpoint");
    return std::move(*checkpoint);
  }

  const TemporaryFolder folder_;
  Config config_;
  const DataSet& data_;
  std::map<Variant, Checkpoint> alone_;
  int num_runs_ = 0;
};

double largest(const std::vector<TensorDifference>& sorted) { return sorted.empty() ? 0 : sorted.front().relative_difference; }

/// Numbers nearer than this (relatively) may be one number in that arithmetic.
double half_unit_of(const std::string& precision) { return precision == "bf16" ? 1.0 / 512 : 1.0 / 4096; }

VerifyResult verify_one(const Config& config, const Layout& layout, Trainings& trainings) {
  // One process takes the micro-batches of a pipeline as micro-steps.
  const int pieces = config.accumulate * layout.microbatches;
  const Checkpoint& one = trainings.one_process({pieces});
  std::vector<Variant> same_training = {{2 * pieces}, {3 * pieces}};
  std::string how = "it adds the same batch up in 2 or 3 pieces";
  // Statistics over a batch must not be cut in pieces: there the weights move a little instead.
  if (config.sync_batch_norm) {
    same_training = {{pieces, std::numeric_limits<float>::epsilon()}};
    how = "its initial weights move by a unit in the last place";
  } else if (layout.tp > 1 && config.precision != "fp32") {
    // Divided products round their parts before they are added up, in forward too, as no cut of the batch does.
    same_training.push_back({pieces, half_unit_of(config.precision)});
    how += ", or by 4 times that when its initial weights move by less than its arithmetic can tell";
  }
  double rounding = 0;
  for (const Variant& variant : same_training)
    rounding = std::max(rounding, largest(compare_checkpoints(one, trainings.one_process(variant))) / (variant.nudge > kFloor ? 4 : 1));

  const Checkpoint run = trainings.run(layout);
  VerifyResult result;
  result.layout = layout;
  result.steps = run.step();
  result.tensors = compare_checkpoints(one, run);
  result.bound = std::max(kMargin * rounding, kFloor);
  result.reason = concat("one process differs from itself by ", rounding, " when ", how, "; a layout may differ by ", kMargin,
                         " times that, or by ", kFloor);
  const double ceiling = config.precision == "fp32" ? kCeiling : kCeilingOfHalfPrecision;
  result.comparable = result.bound <= ceiling;
  if (!result.comparable)
    result.reason +=
        concat("; over ", ceiling, " that proves nothing: this training amplifies rounding, so take fewer --steps or a smaller --lr");
  if (!config.sync_batch_norm)
    result.accumulated = largest(compare_checkpoints(trainings.one_process({pieces * num_pipelines(layout)}), run));
  result.repeats = largest(compare_checkpoints(run, trainings.run(layout))) == 0;
  return result;
}

}  // namespace

void verify(const Config& config, const DataSet& data, const std::vector<Layout>& layouts,
            const std::function<void(const VerifyResult&)>& done) {
  check_data(config, data);
  Trainings trainings(config, data);
  for (const Layout& layout : layouts) {
    if (layout.compress != "none")
      fail(ErrorCode::kBadInput,
           "verify: compressed gradients are another training by design, so there is nothing to compare; verify the layout with "
           "compress=none");
    check_run({.config = config,
               .layout = layout,
               .num_ranks = layout.num_ranks(),
               .is_text = data.train->shape().kind == DataShape::Kind::kText});
    done(verify_one(config, layout, trainings));
  }
}

}  // namespace cohort
