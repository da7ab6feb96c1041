#include "cohort/study/archive/archive.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <random>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/study/archive/measurements_csv.h"
#include "cohort/study/store/store.h"
#include "tests/support/archives.h"
#include "tests/support/errors.h"
#include "tests/support/mutation.h"
#include "tests/support/stored_study.h"

using namespace cohort;
using namespace cohort::study;

namespace {

void put(const std::string& path, const std::string& content) {
  std::filesystem::create_directories(parent_folder(path));
  const UniqueDescriptor file = open_file(path, O_WRONLY | O_CREAT | O_TRUNC);
  write_all(file.get(), content.data(), content.size(), path);
}

void check_same(const Hyperparameter& a, const Hyperparameter& b) {
  CHECK(a.name == b.name);
  CHECK(a.type == b.type);
  CHECK(a.scale == b.scale);
  CHECK(a.minimum == b.minimum);
  CHECK(a.maximum == b.maximum);
  CHECK(a.values == b.values);
}

void check_same(const Trial& a, const Trial& b) {
  CHECK(a.id == b.id);
  CHECK(a.status == b.status);
  CHECK(a.steps == b.steps);
  CHECK(a.seconds == b.seconds);
  CHECK(a.parameters == b.parameters);
  REQUIRE(a.measurements.size() == b.measurements.size());
  bool all_same = true;
  for (size_t i = 0; i < a.measurements.size(); ++i) {
    all_same &= a.measurements[i].step == b.measurements[i].step;
    for (int metric = 0; metric < kNumMetrics; ++metric)
      all_same &= same_bits(a.measurements[i].values[metric], b.measurements[i].values[metric]);
  }
  CHECK(all_same);
}

void check_same(const StudyData& a, const StudyData& b) {
  CHECK(a.dataset == b.dataset);
  CHECK(a.model == b.model);
  CHECK(a.optimizer == b.optimizer);
  CHECK(a.num_train_samples == b.num_train_samples);
  CHECK(a.seed == b.seed);
  CHECK(a.warnings == b.warnings);
  REQUIRE(a.goals.size() == b.goals.size());
  for (size_t i = 0; i < a.goals.size(); ++i) CHECK(a.goals[i].text() == b.goals[i].text());
  REQUIRE(a.batches.size() == b.batches.size());
  for (size_t i = 0; i < a.batches.size(); ++i) {
    const BatchStudy &left = a.batches[i], &right = b.batches[i];
    CHECK(left.batch_size == right.batch_size);
    CHECK(left.num_trials == right.num_trials);
    CHECK(left.train_steps == right.train_steps);
    CHECK(left.early_stopping == right.early_stopping);
    REQUIRE(left.space.size() == right.space.size());
    for (size_t j = 0; j < left.space.size(); ++j) check_same(left.space[j], right.space[j]);
    REQUIRE(left.trials.size() == right.trials.size());
    for (size_t j = 0; j < left.trials.size(); ++j) check_same(left.trials[j], right.trials[j]);
  }
}

/// Every status, type and scale; numbers of random bits; some metrics measured here and there, some never.
StudyData any_study() {
  using Type = Hyperparameter::Type;
  using Scale = Hyperparameter::Scale;
  std::mt19937_64 random(5);
  const auto any_number = [&] {
    const double value = std::bit_cast<double>(random());
    return std::isfinite(value) ? value : -0.0;
  };
  StudyData study{.dataset = "fashion_mnist", .model = "fc_64x3", .optimizer = "nesterov", .num_train_samples = 1234};
  study.goals = {{kValError, 0.1 + 0.2}, {kTestPrecision, 1.0 / 3}};
  study.seed = 18446744073709551615ULL;
  study.warnings = {"it is biased", "\xc3\xa4 \"quoted\""};
  for (const int64_t size : {8, 64, 55000}) {
    BatchStudy& batch = study.batches.emplace_back();
    batch.batch_size = size;
    batch.num_trials = 7;
    batch.train_steps = size == 64 ? 0 : 1000;
    batch.early_stopping = size == 64;
    batch.space = {{.name = "learning_rate", .scale = Scale::kLog, .minimum = 1e-4, .maximum = 10},
                   {.name = "momentum", .scale = Scale::kReverseLog, .minimum = 0.9, .maximum = 0.9999},
                   {.name = "decay_steps", .type = Type::kInteger, .scale = Scale::kLog, .minimum = 10, .maximum = 3e15},
                   {.name = "end_factor", .minimum = 0.1 + 0.2, .maximum = 1},
                   {.name = "label_smoothing", .type = Type::kDiscrete, .values = {0.1, 0, 0.01}}};
    const TrialStatus statuses[] = {TrialStatus::kComplete, TrialStatus::kCensored, TrialStatus::kInfeasible, TrialStatus::kIncomplete};
    for (int64_t id = 0; id < 8; ++id) {
      Trial& trial = batch.trials.emplace_back();
      trial.id = id;
      trial.status = statuses[id % 4];
      trial.steps = 10 * id;
      trial.seconds = id % 2 == 0 ? 0.1 * static_cast<double>(id) : 0;
      trial.parameters = {{"learning_rate", any_number()}, {"momentum", any_number()}, {"decay_steps", 17}, {"label_smoothing", 0.01}};
      for (int64_t i = 0; i < 20 * (id % 3); ++i) {
        Measurement& measurement = trial.measurements.emplace_back();
        measurement.step = i * i * 1000;
        for (const Metric metric : {kTrainLoss, kValLoss, kValError, kTestPrecision})
          if (random() % 4 != 0) measurement.values[metric] = any_number();
        if (random() % 8 == 0) measurement.values[kTrainLoss] = random() % 2 == 0 ? INFINITY : -INFINITY;
      }
    }
  }
  return study;
}

constexpr const char* kStudyJson = R"({
  "batch_size": %, "dataset": "imagenet", "early_stopping": false, "model": "resnet_50", "optimizer": "nesterov_momentum",
  "parameter_configs": {
    "end_learning_rate_factor": {"max_value": 0.1, "min_value": 0.0001, "scale": "LOG_SCALE", "type": "DOUBLE"},
    "label_smoothing": {"feasible_points": [0.0, 0.01, 0.1], "type": "DISCRETE"},
    "learning_rate": {"max_value": 10.0, "min_value": 0.0001, "scale": "UNIT_LOG_SCALE", "type": "double"},
    "learning_rate_decay_steps": {"max_value": 600000, "min_value": 300000, "scale": "", "type": "INTEGER"},
    "momentum": {"max_value": 0.9999, "min_value": 0.9, "scale": "REVERSE_LOG_SCALE", "type": "DOUBLE"},
    "mode": {"feasible_points": ["slow", "fast"], "type": "CATEGORICAL"},
    "width": {"feasible_points": ["64", "128"], "type": "CATEGORICAL"}
  },
  "train_steps": 0
})";
std::string study_json(const std::string& batch_size) {
  std::string text = kStudyJson;
  return text.replace(text.find('%'), 1, batch_size);
}
std::string trial_json(int id, const std::string& status) {
  return "{\"_internal_study_name\": \"resnet-20180601\", \"_internal_trial_id\": 2, \"parameters\": {\"end_learning_rate_factor\": "
         "0.0002861573844378761, \"label_smoothing\": 0.01, \"learning_rate\": 0.0124894465250831, \"learning_rate_decay_steps\": 522526, "
         "\"mode\": \"fast\", \"width\": \"128\", \"momentum\": 0.9788223543494348}, \"status\": \"" +
         status + "\", \"steps\": 600000, \"trial_id\": " + std::to_string(id) + "}";
}
constexpr const char* kHeader =
    "step,train/cross_entropy_error,train/classification_error,val/cross_entropy_error,val/classification_error,"
    "test/cross_entropy_error,test/classification_error\n";

/// As the authors' files are: batch sizes 256 and 64, ids from 1, a time budget, an unfinished trial.
std::string make_foreign_archive(const TemporaryFolder& folder) {
  std::string root = folder / "batch_science";
  const std::string workload = root + "/subsets/imagenet/resnet_50/nesterov_momentum";
  for (const char* size : {"256", "64"}) put(workload + "/" + size + "/study.json", study_json(size));
  put(workload + "/256/1/metadata.json", trial_json(1, "COMPLETE"));
  put(workload + "/256/1/measurements.csv",
      std::string(kHeader) + "0,6.90948,0.999223,6.90956,0.99904,6.90984,0.999301\n1000,,,6.84734,0.99416,,\n2000,6.1,0.9,6.2,,nan,inf\n");
  put(workload + "/256/2/metadata.json", trial_json(2, "INCOMPLETE"));
  put(workload + "/256/2/measurements.csv", "step\n");
  put(workload + "/256/10/metadata.json", trial_json(10, "INFEASIBLE"));
  put(workload + "/256/10/measurements.csv", "val/classification_error,other,step\r\n0.5,what,3.0\r\n0.25,,1\r\n");
  return root;
}

}  // namespace

TEST_CASE("archive: a study that is exported is imported again, to the bit") {
  const MemoryFolder folder;
  const StudyData study = any_study();
  const std::string root = folder / "archive";
  CHECK(export_archive(study, root) == root + "/fashion_mnist/fc_64x3/nesterov_momentum");
  CHECK(is_archive(root));
  const auto read = import_archive(root);
  REQUIRE(read.size() == 1);
  check_same(read[0], study);
  // From any folder on the way too, and through read_study.
  check_same(import_archive(root + "/fashion_mnist").at(0), study);
  check_same(read_study(root + "/fashion_mnist/fc_64x3/nesterov_momentum"), study);
  CHECK(import_archive(root + "/fashion_mnist/fc_64x3/nesterov_momentum/64").at(0).batches.size() == 1);
  // Twice through files changes nothing.
  const MemoryFolder again;
  export_archive(read[0], again.path());
  check_same(import_archive(again.path()).at(0), study);
}

TEST_CASE("archive: what is written is what the authors' loader reads") {
  const MemoryFolder folder;
  const std::string batch = export_archive(any_study(), folder.path()) + "/64";
  // Folders of a workload are batch sizes and folders of a batch size are trials: it takes each name for a whole number.
  for (const std::string& parent : {parent_folder(batch), batch})
    for (const auto& entry : std::filesystem::directory_iterator(parent))
      if (entry.is_directory()) CHECK(entry.path().filename().string().find_first_not_of("0123456789") == std::string::npos);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) CHECK(entry.path().filename() == "fashion_mnist");
  const Json study = Json::parse(read_small_file(batch + "/study.json", 1 << 20));
  for (const char* key : {"batch_size", "dataset", "early_stopping", "model", "optimizer", "parameter_configs", "train_steps"})
    CHECK(study.contains(key));
  CHECK(study["parameter_configs"]["learning_rate_decay_steps"]["max_value"].is_number_integer());
  CHECK(study["parameter_configs"]["momentum"]["scale"] == "REVERSE_LOG_SCALE");
  CHECK(study["parameter_configs"]["label_smoothing"].dump() == R"({"feasible_points":[0.1,0.0,0.01],"type":"DISCRETE"})");
  // It knows three statuses.
  const char* statuses[] = {"COMPLETE", "COMPLETE", "INFEASIBLE", "INCOMPLETE"};
  for (int id = 0; id < 4; ++id) {
    const Json trial = Json::parse(read_small_file(concat(batch, '/', id, "/metadata.json"), 1 << 20));
    CHECK(trial["status"] == statuses[id]);
    CHECK(trial["trial_id"] == id);
    CHECK(trial.contains("cohort_status") == (id == 1));
    CHECK(trial["parameters"]["learning_rate_decay_steps"].dump() == "17");
  }
  const std::string csv = read_small_file(batch + "/1/measurements.csv", 1 << 20);
  CHECK(csv.starts_with("step,train/cross_entropy_error,val/cross_entropy_error,val/classification_error,test/average_precision\n0,"));
}

TEST_CASE("archive: one that others wrote is read") {
  const MemoryFolder folder;
  const std::string root = make_foreign_archive(folder);
  CHECK(is_archive(root));
  const auto studies = import_archive(root);
  REQUIRE(studies.size() == 1);
  const StudyData& study = studies[0];
  CHECK(study.dataset == "imagenet");
  CHECK(study.optimizer == "nesterov");  // Their nesterov_momentum.
  CHECK(study.goals.empty());
  REQUIRE(study.batches.size() == 2);
  CHECK(study.batches[0].batch_size == 64);
  CHECK(study.batches[0].trials.empty());
  const BatchStudy& batch = study.batches[1];
  CHECK(batch.train_steps == 0);
  CHECK(batch.num_trials == 100);
  CHECK_FALSE(batch.early_stopping);
  REQUIRE(batch.space.size() == 7);
  CHECK(batch.space[0].name == "end_factor");
  CHECK(batch.space[1].values == std::vector<double>{0, 0.01, 0.1});
  CHECK(batch.space[2].scale == Hyperparameter::Scale::kLog);
  CHECK(batch.space[3].name == "decay_steps");
  CHECK(batch.space[3].type == Hyperparameter::Type::kInteger);
  CHECK(batch.space[3].scale == Hyperparameter::Scale::kLinear);
  CHECK(batch.space[4].scale == Hyperparameter::Scale::kReverseLog);
  CHECK(batch.space[5].values == std::vector<double>{0, 1});
  CHECK(batch.space[6].values == std::vector<double>{64, 128});
  REQUIRE(batch.trials.size() == 3);
  CHECK(batch.trials[0].id == 1);
  CHECK(batch.trials[0].parameters.at("learning_rate") == 0.0124894465250831);
  CHECK(batch.trials[0].parameters.at("decay_steps") == 522526);
  CHECK(batch.trials[0].parameters.at("mode") == 1);
  CHECK(batch.trials[0].parameters.at("width") == 128);
  const auto& curve = batch.trials[0].measurements;
  REQUIRE(curve.size() == 3);
  CHECK(curve[0].values[kTestError] == 0.999301);
  CHECK(std::isnan(curve[1].values[kTrainLoss]));
  CHECK(curve[1].values[kValError] == 0.99416);
  CHECK(std::isnan(curve[1].values[kValPrecision]));
  CHECK(std::isnan(curve[2].values[kTestLoss]));
  CHECK(curve[2].values[kTestError] == INFINITY);
  CHECK(batch.trials[1].status == TrialStatus::kIncomplete);
  CHECK(batch.trials[2].id == 10);
  REQUIRE(batch.trials[2].measurements.size() == 2);
  CHECK(batch.trials[2].measurements[0].step == 1);
  CHECK(batch.trials[2].measurements[1].values[kValError] == 0.5);
}

TEST_CASE("archive: what other writers of JSON and CSV make of nothing and of infinity") {
  const MemoryFolder folder;
  const std::string root = make_foreign_archive(folder);
  const std::string batch = root + "/subsets/imagenet/resnet_50/nesterov_momentum/256";
  std::string text = study_json("256");
  text.replace(text.find(R"("scale": "")"), 11, R"("scale": null)");
  put(batch + "/study.json", text);
  put(batch + "/1/measurements.csv",
      "step,val/cross_entropy_error\n0,Infinity\n1,-Infinity\n2,+inf\n3,INF\n4,-inf\n5,NaN\n6,infinity\n7,1e400\n");
  CHECK(error_of([&] { (void)import_archive(root); }).find(":9: \"1e400\" is not a number") != std::string::npos);
  put(batch + "/1/measurements.csv", "step,val/cross_entropy_error\n0,Infinity\n1,-Infinity\n2,+inf\n3,INF\n4,-inf\n5,NaN\n6,infinity\n");
  std::string unfinished = trial_json(2, "INCOMPLETE");
  put(batch + "/2/metadata.json", unfinished.replace(unfinished.find("600000"), 6, "null"));
  const BatchStudy read = import_batch(batch).batches.at(0);
  CHECK(read.space.at(3).scale == Hyperparameter::Scale::kLinear);
  std::vector<double> losses;
  for (const Measurement& measurement : read.trials.at(0).measurements) losses.push_back(measurement.values[kValLoss]);
  REQUIRE(losses.size() == 7);
  CHECK(std::isnan(losses[5]));
  losses[5] = 0;
  CHECK(losses == std::vector<double>{INFINITY, -INFINITY, INFINITY, INFINITY, -INFINITY, 0, INFINITY});
  CHECK(read.trials.at(1).status == TrialStatus::kIncomplete);
  CHECK(read.trials.at(1).steps == 0);
  // Of a trial that counts, or that diverged, steps are needed.
  for (const char* status : {"COMPLETE", "INFEASIBLE"}) {
    std::string ended = trial_json(2, status);
    put(batch + "/2/metadata.json", ended.replace(ended.find("600000"), 6, "null"));
    CHECK(error_of([&] { (void)import_batch(batch); }).find("in \"steps\", found null") != std::string::npos);
  }
}

TEST_CASE("archive: what is wrong is one line with its file") {
  const MemoryFolder folder;
  const std::string root = make_foreign_archive(folder);
  const std::string batch = root + "/subsets/imagenet/resnet_50/nesterov_momentum/256";
  const auto error_with = [&](const std::string& name, const std::string& content) {
    const std::string path = batch + "/" + name, before = read_small_file(path, 1 << 20);
    put(path, content);
    const std::string text = error_of([&] { (void)import_archive(root); });
    put(path, before);
    CHECK(text.find(path) != std::string::npos);
    return text.substr(text.find(path) == std::string::npos ? 0 : text.find(path) + path.size());
  };
  const std::string csv = "1/measurements.csv", meta = "1/metadata.json";
  CHECK(error_with(csv, "") == ":1: no column \"step\" in \"\"");
  CHECK(error_with(csv, "step,val/classification_error\n0\n") == ":2: 1 fields, but the header has 2");
  CHECK(error_with(csv, "step,val/classification_error\n0,1\n5,x\n") == ":3: \"x\" is not a number");
  CHECK(error_with(csv, "step\n3\n4\n3\n") == ":4: step 3 comes twice");
  CHECK(error_with(csv, "step\n-1\n") == ":2: step \"-1\" is not a whole number from 0 up");
  CHECK(error_with(csv, "step\n1.5\n") == ":2: step \"1.5\" is not a whole number from 0 up");
  CHECK(error_with(csv, "step\n\n1\n").find(":2: step \"\" is not a whole number") == 0);
  CHECK(error_with(csv, "step,step\n1,1\n") == ":1: column \"step\" comes twice");
  CHECK(error_with(csv, "step,val/average_precision\n1,1e999\n") == ":2: \"1e999\" is not a number");
  CHECK(error_with(meta, "{").find("not valid JSON") != std::string::npos);
  CHECK(error_with(meta, "[]") == ": expected an object, found a list");
  CHECK(error_with(meta, trial_json(3, "COMPLETE")) == ": \"trial_id\" is 3, but the folder's name says 1");
  CHECK(error_of([&] {
          put(batch + "/7/metadata.json", trial_json(7, "DONE"));
          (void)import_archive(root);
        }).find("256/7/metadata.json: 'DONE' is not a trial status") != std::string::npos);
  put(batch + "/7/metadata.json", trial_json(7, "COMPLETE"));
  CHECK(error_of([&] { (void)import_archive(root); }).find("cannot open " + batch + "/7/measurements.csv") == 0);
  std::filesystem::remove_all(batch + "/7");
  CHECK(error_with("study.json", study_json("0")) == ": expected a batch size from 1 up in \"batch_size\", found 0");
  CHECK(error_with("study.json", study_json("1e30")) ==
        ": expected a whole number from 0 to 9007199254740992 in \"batch_size\", found 1e+30");
  CHECK(error_with("study.json", "{\"batch_size\": 2}") == ": \"dataset\" is missing");
  std::string text = study_json("256");
  CHECK(error_with("study.json", text.replace(text.find("\"LOG_SCALE"), 1, "\"X")) ==
        ": \"end_learning_rate_factor\": \"scale\" is \"XLOG_SCALE\", not LINEAR_SCALE, LOG_SCALE or REVERSE_LOG_SCALE");
  put(batch + "/study.json", study_json("64"));
  CHECK(error_of([&] { (void)import_archive(root); }) == parent_folder(batch) + ": batch size 64 is there twice");
  put(batch + "/study.json", text.replace(text.find("resnet_50"), 9, "resnet_51"));
  CHECK(error_of([&] { (void)import_archive(root); }).find("256/study.json: ") != std::string::npos);
  put(batch + "/study.json", study_json("256"));
  put(batch + "/notes/x", "");
  CHECK(error_of([&] { (void)import_archive(root); }) == batch + "/notes: a trial's folder has a whole number as its name");
  CHECK(error_of([&] { (void)import_archive(folder / "none"); }).find("cannot read the folder") == 0);
  CHECK_FALSE(is_archive(folder / "none"));
  CHECK_FALSE(is_archive(batch + "/1"));
  CHECK(error_of([&] { (void)import_archive(batch + "/1"); }).find("is not an archive of studies") != std::string::npos);
}

TEST_CASE("archive: an export is whole or not at all, and overwrites nothing") {
  const MemoryFolder folder;
  StudyData study = any_study();
  study.batches.resize(1);
  export_archive(study, folder.path());
  const StudyData both = any_study();
  CHECK(error_of([&] { export_archive(both, folder.path()); }).find("nesterov_momentum/8 is there already") != std::string::npos);
  CHECK(import_archive(folder.path()).at(0).batches.size() == 1);  // Nothing of the other batch sizes, and no temporary folder.
  study.batches = {both.batches[2]};
  export_archive(study, folder.path());  // Beside it is fine.
  CHECK(import_archive(folder.path()).at(0).batches.size() == 2);
  study.model = "../up";
  CHECK(error_of([&] { export_archive(study, folder.path()); }).find("the model's name \"../up\" is not valid for a folder") !=
        std::string::npos);
  study.model = "other";
  export_archive(study, folder.path());
  CHECK(find_workloads(folder.path()).size() == 2);
  CHECK(error_of([&] { (void)read_study(folder.path()); }).find("holds 2 workloads; give one, such as ") != std::string::npos);
}

TEST_CASE("archive: damaged files never do more than be refused") {
  const MemoryFolder folder;
  const std::string batch = export_archive(any_study(), folder.path()) + "/64";
  for (const char* name : {"/study.json", "/1/metadata.json", "/1/measurements.csv"}) {
    const std::string whole = read_small_file(batch + name, 1 << 20);
    for (uint64_t round = 0; round < 200; ++round) {
      std::string bytes = mutated(whole, round);
      if (round % 8 == 0) bytes.resize(round * 31 % bytes.size());
      ::unlink((batch + name).c_str());
      put(batch + name, bytes);
      try {
        (void)import_batch(batch);
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kBadInput);
        CHECK(std::string(error.what()).find('\n') == std::string::npos);
      }
    }
    put(batch + name, whole);
  }
  CHECK(import_batch(batch).batches[0].trials.size() == 8);
}
