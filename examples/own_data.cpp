// Your own data under Cohort's program: --data NAME[:ARGUMENT] opens what COHORT_DATA registers, and all that works with built-in data
// works with it: any layout, verify, resume, report. Here: points in the plane, whose class is the spiral that they lie on. With `alone` as
// its first argument the program trains by itself, through cohort::train().
//
// Test: own_data train --data spirals:3 --model fc:hidden=64 --workers 2 --steps 20 --quiet
// Test: own_data verify --data spirals:2 --model fc:hidden=16 --layout pp=2,microbatches=2 --steps 3 --global-batch 32
// Test: own_data alone
#include <cohort/cohort.h>

#include <cmath>
#include <memory>
#include <string>

namespace {

/// Sample i lies on spiral i mod `spirals`, further out the larger i is. It is computed when it is read, so threads share no mutable state.
class Spirals : public cohort::DataSource {
 public:
  Spirals(int64_t spirals, int64_t begin, int64_t end) : spirals_(spirals), begin_(begin), end_(end) {
    shape_ = {cohort::DataShape::Kind::kImage, {2}, spirals, {}};
  }

  const cohort::DataShape& shape() const override { return shape_; }
  int64_t num_samples() const override { return end_ - begin_; }
  void read(std::span<const int64_t> indices, cohort::Batch& batch) const override {
    batch.num_samples = static_cast<int64_t>(indices.size());
    batch.values.clear(), batch.targets.clear();
    for (const int64_t index : indices) {
      const int64_t sample = begin_ + index, spiral = sample % spirals_;
      const double radius = 0.1 + 1.9 * static_cast<double>(sample * 37 % 1000) / 1000;
      const double angle = 3 * radius + 6.283185307179586 * static_cast<double>(spiral) / static_cast<double>(spirals_);
      batch.values.push_back(static_cast<float>(radius * std::cos(angle)));
      batch.values.push_back(static_cast<float>(radius * std::sin(angle)));
      batch.targets.push_back(spiral);
    }
  }

 private:
  cohort::DataShape shape_;
  int64_t spirals_, begin_, end_;
};

cohort::DataSet spirals(const std::string& argument, const cohort::DataOptions& options) {
  const int64_t count = argument.empty() ? 2 : std::stoll(argument);
  const int64_t validation = options.validation_samples > 0 ? options.validation_samples : 100;
  cohort::DataSet data;
  data.train = std::make_shared<Spirals>(count, 0, 900);
  data.validation = std::make_shared<Spirals>(count, 900, 900 + validation);
  return data;
}

COHORT_DATA("spirals", spirals);

/// Trains from a program, with a Config instead of options.
int train_alone() {
  cohort::Config config;
  config.model = "fc:hidden=32";
  config.data = "spirals:2";
  config.global_batch = 50;
  config.steps = 40;
  config.run = "spirals-run";
  config.quiet = true;
  const cohort::TrainResult result = cohort::train(config, cohort::open_data(config.data), cohort::World{});
  return result.steps == 40 && std::isfinite(result.val_loss) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return argc == 2 && std::string(argv[1]) == "alone" ? train_alone() : cohort::run_cli(argc, argv); }
