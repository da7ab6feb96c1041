#include "cohort/study/archive/archive.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/random.h"
#include "cohort/study/analysis/self_checks.h"
#include "cohort/study/analysis/steps_to_result.h"
#include "tests/support/archives.h"
#include "tests/support/errors.h"
#include "tests/support/stored_study.h"

namespace cohort::study {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Noisy curves of few distinct values, so that records are met again; here and there nothing is measured, or what is infinite.
Trial noisy_trial(int64_t id, uint64_t seed, TrialStatus status = TrialStatus::kComplete) {
  const auto unit = [&](uint64_t at) { return unit_interval(random_bits(seed, id, at)); };
  Trial trial = {.id = id, .parameters = {{"learning_rate", 0.01 + unit(0)}}, .status = status};
  const auto num = static_cast<int64_t>(60 * unit(1));
  for (int64_t i = 0; i < num; ++i) {
    Measurement& measurement = trial.measurements.emplace_back();
    measurement.step = (seed % 2 == 0 ? 0 : 3) + 7 * i;
    for (const Metric metric : {kTrainLoss, kValLoss, kValError, kValPrecision, kTestError}) {
      const double chance = unit(static_cast<uint64_t>(100 * i + metric + 2));
      if (chance < 0.15) continue;
      const double value = std::round(20 * (chance + 2.0 / (1 + static_cast<double>(i)))) / 60;
      measurement.values[metric] = chance > 0.98 ? kInfinity : higher_is_better(metric) ? 1 - value : value;
    }
  }
  trial.steps = num == 0 ? 0 : trial.measurements.back().step;
  return trial;
}

Trial records_of(const Trial& trial, MetricSet metrics) {
  RecordKeeper records(metrics);
  for (const Measurement& measurement : trial.measurements) records.add(measurement);
  Trial kept = trial;
  records.put_into(kept);
  return kept;
}

MetricSet validation() {
  MetricSet metrics;
  for (const Metric metric : {kValError, kValPrecision, kValLoss}) metrics.set(metric);
  return metrics;
}

void check_same(const BestAtBudget& a, const BestAtBudget& b) {
  CHECK(a.value == b.value);
  CHECK(a.step == b.step);
  CHECK(a.trial_id == b.trial_id);
  CHECK(a.num_stopped == b.num_stopped);
}

void check_same(const StepsToResult& a, const StepsToResult& b) {
  CHECK(a.steps == b.steps);
  CHECK(a.trial_id == b.trial_id);
  CHECK(a.step_before == b.step_before);
  CHECK(a.num_reached == b.num_reached);
  CHECK(a.num_stopped == b.num_stopped);
  CHECK(a.num_unknown == b.num_unknown);
  CHECK(a.low == b.low);
  CHECK(a.high == b.high);
}

StudyData study_of(uint64_t seed) {
  StudyData study = {.dataset = "any", .model = "any", .optimizer = "sgd", .num_train_samples = 500};
  const TrialStatus statuses[] = {TrialStatus::kComplete, TrialStatus::kComplete, TrialStatus::kInfeasible, TrialStatus::kCensored,
                                  TrialStatus::kIncomplete};
  for (const int64_t size : {4, 16, 64}) {
    BatchStudy& batch = study.batches.emplace_back();
    batch.batch_size = size;
    batch.num_trials = 9;
    batch.train_steps = size == 16 ? 0 : 300;
    batch.early_stopping = size == 64;
    batch.space = {{.name = "learning_rate", .minimum = 0.01, .maximum = 1.01}};
    for (int64_t id = 0; id < 25; ++id) batch.trials.push_back(noisy_trial(id, seed + static_cast<uint64_t>(size), statuses[id % 5]));
  }
  return study;
}

StudyData records_of(const StudyData& study, MetricSet metrics) {
  StudyData kept = study;
  for (BatchStudy& batch : kept.batches)
    for (Trial& trial : batch.trials) trial = records_of(trial, metrics);
  return kept;
}

TEST_CASE("kept measurements: each trial answers every question as all of its measurements do") {
  for (int64_t id = 0; id < 200; ++id) {
    const Trial all = noisy_trial(id, static_cast<uint64_t>(id) + 11), kept = records_of(all, validation());
    CHECK(num_measurements(kept) == static_cast<int64_t>(all.measurements.size()));
    CHECK(measured_in(kept) == measured_in(all));
    if (!all.measurements.empty()) CHECK(kept.measurements.back().step == all.measurements.back().step);
    if (!all.measurements.empty()) CHECK(kept.measurements.front().step == all.measurements.front().step);
    for (const Metric metric : {kValError, kValPrecision, kValLoss}) {
      for (int i = -1; i <= 70; ++i) {
        const GoalSpec goal = {metric, i / 60.0};
        const auto steps = steps_of_trial(all, goal);
        REQUIRE(steps_of_trial(kept, goal) == steps);
        if (!steps) continue;
        CHECK(step_before(kept, *steps) == step_before(all, *steps));
        CHECK(num_evaluations(kept, *steps) == num_evaluations(all, *steps));
      }
    }
  }
}

TEST_CASE("kept measurements: results, bests and checks of a study are those of all measurements") {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const StudyData all = study_of(seed), kept = records_of(all, validation());
    CHECK(measured_metrics(kept) == measured_metrics(all));
    for (const Metric metric : {kValError, kValPrecision, kValLoss}) {
      for (const double value : {-0.5, 0.05, 0.1, 0.2, 0.5, 0.9}) {
        const GoalSpec goal = {metric, value};
        const auto left = steps_to_result(kept, goal), right = steps_to_result(all, goal);
        for (size_t i = 0; i < right.size(); ++i) check_same(left[i], right[i]);
        const auto flags = self_checks(kept, goal, left), expected = self_checks(all, goal, right);
        REQUIRE(flags.size() == expected.size());
        for (size_t i = 0; i < flags.size(); ++i) CHECK(flags[i].text() == expected[i].text());
        CHECK(widened_search_text(kept, goal, left) == widened_search_text(all, goal, right));
      }
      for (const int64_t budget : {0, 5, 100, 163, 1000}) {
        const auto left = best_at_steps(kept, metric, budget), right = best_at_steps(all, metric, budget);
        for (size_t i = 0; i < right.size(); ++i) check_same(left[i], right[i]);
      }
      const auto left = best_at_epochs(kept, metric, 1.5), right = best_at_epochs(all, metric, 1.5);
      for (size_t i = 0; i < right.size(); ++i) check_same(left[i], right[i]);
    }
  }
}

TEST_CASE("kept measurements: less is kept, and a question that this cannot answer is refused") {
  Trial trial = {.id = 7, .status = TrialStatus::kComplete};
  for (int64_t i = 0; i < 1000; ++i) {
    Measurement& measurement = trial.measurements.emplace_back();
    measurement.step = i;
    measurement.values[kValError] = 0.5 + 0.4 * std::cos(0.3 * static_cast<double>(i));
    measurement.values[kTrainLoss] = 1.0 / (1 + static_cast<double>(i));
  }
  const Trial kept = records_of(trial, validation());
  CHECK(kept.measurements.size() < 30);
  CHECK(kept.measurements.capacity() == kept.measurements.size());
  const std::string error = error_of([&] { (void)steps_of_trial(kept, {kTrainLoss, 0.1}); }, ErrorCode::kFailed);
  CHECK(error.find("trial 7: the measurements of train_loss were not kept") == 0);
  const Trial none = records_of(trial, {});
  CHECK(none.measurements.empty());
  CHECK(num_measurements(none) == 1000);
  CHECK(measured_in(none) == measured_in(trial));
  CHECK_FALSE(error_of([&] { (void)steps_of_trial(none, {kValError, 0.1}); }, ErrorCode::kFailed).empty());
}

TEST_CASE("kept measurements: an archive is read so, lines in any order, and errors are the same") {
  const MemoryFolder folder;
  StudyData study = study_of(3);
  study.goals = {{kTrainLoss, 0.1}};
  const std::string root = folder / "archive";
  export_archive(study, root);
  const std::string csv = root + "/any/any/sgd/16/1/measurements.csv";
  const std::string text = read_small_file(csv, 1 << 20), header = text.substr(0, text.find('\n') + 1);
  int num_shuffled = 0;
  for (int id = 0; id < 25; ++id) {
    const std::string path = concat(root, "/any/any/sgd/16/", id, "/measurements.csv");
    const std::string rest = read_small_file(path, 1 << 20).substr(header.size());
    const size_t half = rest.find('\n', rest.size() / 2) + 1;
    if (half == 0 || half == rest.size()) continue;
    write_file_atomically(path, header + rest.substr(half) + rest.substr(0, half));
    ++num_shuffled;
  }
  REQUIRE(num_shuffled > 10);
  const Keep keep = keep_for_goals(find_workloads(root), {{kTestError, 0.1}});
  CHECK(keep.metrics.count() == 5);  // Validation, the study's own goal, and what is asked.
  const StudyData all = import_archive(root).at(0), kept = import_archive(root, keep).at(0);
  size_t num_all = 0, num_kept = 0;
  for (size_t b = 0; b < all.batches.size(); ++b) {
    const std::vector<size_t> counted = counted_trials(all.batches[b]);
    CHECK(counted_trials(kept.batches[b]) == counted);
    for (size_t i = 0; i < all.batches[b].trials.size(); ++i) {
      const Trial &whole = all.batches[b].trials[i], &less = kept.batches[b].trials[i];
      const bool is_asked = std::find(counted.begin(), counted.end(), i) != counted.end() || whole.status == TrialStatus::kInfeasible;
      CHECK(less.whole->kept.any() == is_asked);
      CHECK(num_measurements(less) == num_measurements(whole));
      num_all += whole.measurements.size();
      num_kept += less.measurements.size();
      for (const double value : {0.05, 0.2, 0.4})
        for (const Metric metric : {kValError, kTrainLoss, kTestError})
          if (is_asked) CHECK(steps_of_trial(less, {metric, value}) == steps_of_trial(whole, {metric, value}));
    }
  }
  CHECK(num_kept < num_all / 2);
  const auto errors_are_same = [&](const std::string& lines) {
    write_file_atomically(csv, header + lines);
    const std::string expected = error_of([&] { (void)import_archive(root); });
    CHECK_FALSE(expected.empty());
    CHECK(error_of([&] { (void)import_archive(root, keep); }) == expected);
    CHECK(error_of([&] { (void)import_archive(root, {.all = false}); }) == expected);
  };
  const std::string commas(static_cast<size_t>(std::count(header.begin(), header.end(), ',')), ',');
  for (const std::string& lines : {"1" + commas + "\n1" + commas + "\n", "2" + commas + "\n1" + commas + "\n2" + commas + "\n",
                                   "2" + commas + "\n1" + commas + "x\n", "1" + commas + ",\n", "1.5" + commas + "\n", commas + "\n"})
    errors_are_same(lines);
}

}  // namespace
}  // namespace cohort::study
