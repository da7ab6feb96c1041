#include "cohort/study/archive/published.h"

#include <doctest/doctest.h>

#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/study/archive/archive.h"
#include "tests/support/archives.h"

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

}  // namespace
}  // namespace cohort::study
