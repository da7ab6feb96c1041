#include <doctest/doctest.h>

#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/study/archive/archive.h"
#include "tests/support/archives.h"
#include "tests/support/errors.h"

namespace cohort::study {
namespace {

std::string texts(const std::vector<GoalSpec>& goals) {
  std::string out;
  for (const GoalSpec& goal : goals) out += goal.text() + " ";
  return out;
}

TEST_CASE("published: goals by data set and model") {
  CHECK(texts(published_goals("mnist", "simple_cnn_wide")) == "val_error<0.01 val_error<0.03 ");
  CHECK(texts(published_goals("mnist", "fc_64_64_64")) == "val_error<0.03 ");
  CHECK(texts(published_goals("mnist_27500", "simple_cnn_base")) == "val_error<0.02 ");
  CHECK(texts(published_goals("open_images_v4", "resnet_50")) == "val_precision>0.31 ");
  CHECK(texts(published_goals("lm1b", "transformer_base")) == "val_loss<3.9 val_loss<4.2 ");
  CHECK(texts(published_goals("lm1b", "transformer_wide")) == "val_loss<4.2 ");
  CHECK(texts(published_goals("lm1b_bytes", "lstm")).empty());
}

TEST_CASE("published: an archive's studies have the goals that a trial which counts gets to") {
  const auto goals_where = [](TrialStatus status, double error, bool is_ours) {
    const TemporaryFolder folder;
    StudyData study{.dataset = "imagenet", .model = "resnet_50", .optimizer = "sgd"};
    BatchStudy& batch = study.batches.emplace_back();
    batch.batch_size = 64;
    batch.space = {{.name = "learning_rate", .values = {0.1}}};
    Trial& trial = batch.trials.emplace_back();
    trial.status = status;
    trial.parameters = {{"learning_rate", 0.1}};
    trial.measurements.emplace_back().values[kValError] = error;
    const std::string path = export_archive(study, folder.path()) + "/64/study.json";
    Json json = Json::parse(read_small_file(path, 1 << 20));
    REQUIRE(json.erase("cohort") == 1);  // What only our own archives have.
    if (!is_ours) write_file_atomically(path, json.dump());
    return texts(import_archive(folder.path()).at(0).goals);
  };
  CHECK(goals_where(TrialStatus::kComplete, 0.29, false) == "val_error<0.3 val_error<0.35 ");
  CHECK(goals_where(TrialStatus::kComplete, 0.4, false).empty());
  CHECK(goals_where(TrialStatus::kInfeasible, 0.29, false).empty());
  CHECK(goals_where(TrialStatus::kComplete, 0.29, true).empty());
}

Json json_in(const std::string& path) { return Json::parse(read_small_file(path, 1 << 20)); }

TEST_CASE("archive: warnings of any batch size are those of the study, each once") {
  const TemporaryFolder folder;
  StudyData study{.dataset = "d", .model = "m", .optimizer = "o"};
  for (const int64_t size : {8, 64}) study.batches.push_back({.batch_size = size, .num_trials = 1, .train_steps = 2});
  // Without any it is written as it was before there were warnings.
  CHECK_FALSE(json_in(export_archive(study, folder / "plain") + "/8/study.json")["cohort"].contains("warnings"));

  study.warnings = {"it is biased", "\xc3\xa4 \"quoted\""};
  const std::string workload = export_archive(study, folder / "warned"), path = workload + "/64/study.json";
  CHECK(import_archive(folder / "warned").at(0).warnings == study.warnings);
  CHECK(import_batch(workload + "/8").warnings == study.warnings);
  Json json = json_in(path);
  json["cohort"]["warnings"] = {"it is biased", "another"};
  write_file_atomically(path, json.dump());
  study.warnings.push_back("another");
  CHECK(import_archive(folder / "warned").at(0).warnings == study.warnings);

  for (const Json& bad : {Json("text"), Json::array({1}), Json()}) {
    json["cohort"]["warnings"] = bad;
    write_file_atomically(path, json.dump());
    CHECK(error_of([&] { import_archive(folder / "warned"); }).rfind(path + ": ", 0) == 0);
  }
}

}  // namespace

}  // namespace cohort::study
