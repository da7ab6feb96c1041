// A report made of the records of trials (archive/archive.h) is that of all measurements, byte by byte.
#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <string>

#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/report/study/study_page.h"
#include "cohort/study/archive/archive.h"
#include "tests/support/archives.h"
#include "tests/support/reported_study.h"

namespace cohort::report {
namespace {

/// Test errors, a little noise that makes records rarer, and some metrics that nobody asks for.
study::StudyData noisy_study(MadeUp what) {
  what.num_batches = 5;
  study::StudyData data = made_up_study(what);
  for (study::BatchStudy& batch : data.batches) {
    for (study::Trial& trial : batch.trials) {
      for (study::Measurement& one : trial.measurements) {
        const double noise = static_cast<double>(mix64(static_cast<uint64_t>(one.step + trial.id)) >> 11) * 0x1p-53;
        one.values[study::kValError] *= 1 + 0.2 * noise;
        one.values[study::kTestError] = one.values[study::kValError] * (1 + 0.1 * noise);
        one.values[study::kTrainLoss] = one.values[study::kValLoss] / 2;
      }
    }
    batch.num_trials = 15;  // Fewer than there are: the last ones do not count.
  }
  return data;
}

std::map<std::string, std::string> report_of(const std::string& archive, bool keeps_all, StudyReportOptions options) {
  const TemporaryFolder folder;
  std::vector<study::GoalSpec> goals = options.goals;
  if (options.goal) goals.push_back(*options.goal);
  std::vector<study::StudyData> studies =
      keeps_all ? study::import_archive(archive) : study::import_for_goals(study::find_workloads(archive), goals, false);
  for (study::StudyData& data : studies) {
    std::string name = data.dataset + "/" + data.model + "/" + data.optimizer;
    options.studies.push_back({std::move(data), std::move(name)});
  }
  options.path = folder / "report.html";
  options.num_resamples = 30;
  (void)write_study_report(options);
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
    if (entry.is_regular_file()) files[entry.path().filename().string()] = read_small_file(entry.path().string(), 1 << 28);
  return files;
}

/// As the authors' archive: without the key "cohort", and so without goals of its own.
void make_foreign(const std::string& archive) {
  for (const study::ArchivedWorkload& workload : study::find_workloads(archive)) {
    for (const std::string& folder : workload.batch_folders) {
      Json json = Json::parse(read_small_file(folder + "/study.json", 1 << 20));
      json.erase("cohort");
      write_file_atomically(folder + "/study.json", json.dump());
    }
  }
}

void check_same_report(const std::string& archive, const StudyReportOptions& options = {}) {
  const auto all = report_of(archive, true, options), kept = report_of(archive, false, options);
  REQUIRE(all.size() > 5);
  REQUIRE(all.size() == kept.size());
  for (const auto& [name, content] : all) {
    CAPTURE(name);
    REQUIRE(kept.contains(name));
    CHECK((kept.at(name) == content));
  }
}

TEST_CASE("kept measurements: the report of an archive is the same, byte by byte") {
  const TemporaryFolder folder;
  const std::string archive = folder / "archive";
  export_archive(noisy_study({.has_smoothing = true}), archive);
  export_archive(noisy_study({.has_momentum = false, .optimizer = "sgd", .seed = 2}), archive);
  export_archive(noisy_study({.is_censored = true, .dataset = "mnist", .model = "simple_cnn_base", .seed = 3}), archive);
  SUBCASE("with goals of its own, of the command line, and budgets") {
    check_same_report(archive);
    check_same_report(archive, {.goal = study::GoalSpec{study::kTrainLoss, 0.5}});
    check_same_report(archive, {.goal = study::GoalSpec{study::kTestError, 0.3},
                                .goals = {{study::kTestError, 0.25}},
                                .reference_batch = 16,
                                .budgets = {.steps = {100, 500}, .epochs = {0.5}}});
    check_same_report(archive, {.goal = study::GoalSpec{study::kValError, 1e-9}});  // Reached by none.
  }
  SUBCASE("as published: with goals that are chosen") {
    make_foreign(archive);
    check_same_report(archive);
  }
}

}  // namespace
}  // namespace cohort::report
