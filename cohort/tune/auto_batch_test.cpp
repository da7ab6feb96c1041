#include "cohort/tune/auto_batch.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/study/analysis/worth.h"
#include "cohort/study/spec/spec.h"

namespace cohort {
namespace {

using study::Hyperparameter;

Hyperparameter fixed(const std::string& name, double value) {
  return {.name = name, .type = Hyperparameter::Type::kDiscrete, .values = {value}};
}

/// A folder as `study run` and `study report` leave it. Steps of 64 and 256 samples: 100 and 40, of 1 and 3 ms on one worker (0.1 and
/// 0.12 s in all), of 1 and 1.2 ms on two (0.1 and 0.048 s).
class Study {
 public:
  explicit Study(const study::SearchSpace& extra = {}, const std::string& optimizer = "nesterov") {
    spec.name = "tiny";
    spec.data = "synthetic:1x8x8,classes=4,samples=512";
    spec.model = "fc:hidden=16";
    spec.dataset_name = "made-up";
    spec.model_name = "fc";
    spec.optimizer = optimizer;
    spec.goals = {{study::kValError, 0.2}};
    for (const int64_t size : {64, 256}) {
      study::SearchSpace space = {fixed("learning_rate", size == 64 ? 0.123456789012345 : 0.25)};
      if (optimizer == "nesterov") space.push_back(fixed("momentum", 0.95));
      space.insert(space.end(), extra.begin(), extra.end());
      spec.batches.push_back({.batch_size = size, .num_trials = 3, .train_steps = 500, .space = space});
    }
    study::Analysis analysis;
    analysis.goal = spec.goals[0];
    analysis.steps = {{.batch_size = 64, .steps = 100, .trial_id = 2}, {.batch_size = 256, .steps = 40, .trial_id = 0}};
    analysis.steps[0].low = 90, analysis.steps[0].high = 120;
    study::write_steps_curve(path() + "/steps_curve.csv", analysis);
    study::write_step_times(
        path() + "/step_times.csv",
        {{64, 1, 1e-3, 1e-3, 1e-3}, {256, 1, 3e-3, 3e-3, 3e-3}, {64, 2, 1e-3, 1e-3, 1e-3}, {256, 2, 1.2e-3, 1e-3, 2e-3}});
    write();
  }
  const std::string& path() const { return folder_.path(); }
  void write() const { write_file_atomically(path() + "/study.toml", study::to_toml(spec)); }

  AutoBatch resolve(int workers, const std::vector<std::pair<std::string, std::string>>& options = {}, Config config = {}) const {
    config.study = path();
    config.global_batch = 0;  // auto, unless an option gives a number.
    std::vector<std::string> given = {"study", "global-batch"};
    for (const auto& [name, value] : options) {
      find_setting(name)->set(config, value);
      given.push_back(name);
    }
    const auto was_given = [&](const std::string& name) { return std::find(given.begin(), given.end(), name) != given.end(); };
    return resolve_auto_batch(config, was_given, parse_layout(config.layout, workers));
  }
  std::string complaint(int workers, const std::vector<std::pair<std::string, std::string>>& options = {}) const {
    try {
      resolve(workers, options);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kBadInput);
      std::string text = error.what();
      for (size_t at; (at = text.find(path())) != std::string::npos;) text.replace(at, path().size(), "DIR");
      return text;
    }
    return "";
  }

  study::StudySpec spec;

 private:
  TemporaryFolder folder_;
};

TEST_CASE("auto batch: the size that is soonest there for these workers, with its trial's hyperparameters") {
  const Study study;
  const AutoBatch one = study.resolve(1), two = study.resolve(2);
  CHECK(one.config.global_batch == 64);
  CHECK(one.config.lr == 0.123456789012345);
  CHECK(one.config.momentum == 0.95);
  CHECK(one.config.optimizer == "nesterov");
  CHECK(one.config.model == "fc:hidden=16");
  CHECK(one.config.data == "synthetic:1x8x8,classes=4,samples=512");
  CHECK(one.config.schedule_lr == "constant");
  CHECK(one.config.goal == "val_error<0.2");
  CHECK(one.config.steps == 500);
  CHECK(one.config.eval_every == 5);
  CHECK(one.config.threads == 1);
  CHECK(one.config.accumulate == 1);
  CHECK(two.config.global_batch == 256);
  CHECK(two.config.lr == 0.25);
  CHECK(two.config.eval_every == 2);
  CHECK(one.sentence ==
        "batch size 64 for 1 worker: 100 steps x 1.0 ms = 100.0 ms to val_error<0.2 (90.0 ms to 120.0 ms); 256 would take "
        "120.0 ms; hyperparameters of trial 2: learning rate 0.123457");
  CHECK(two.sentence.starts_with("batch size 256 for 2 workers: 40 steps x 1.2 ms = 48.0 ms to val_error<0.2 ("));
  const AutoBatch number = study.resolve(2, {{"global-batch", "64"}});
  CHECK(number.config.global_batch == 64);
  CHECK(number.config.lr == 0.123456789012345);
  CHECK(number.config.eval_every == 5);
  CHECK(number.sentence == "batch size 64: 100 steps to val_error<0.2 in the study; hyperparameters of trial 2: learning rate 0.123457");
  // What the run's config.toml will hold reads back as the same run.
  const TemporaryFolder folder;
  write_file_atomically(folder / "config.toml", to_toml(one.config));
  Config back;
  read_config_file(folder / "config.toml", back);
  CHECK(to_toml(back) == to_toml(one.config));
  CHECK_NOTHROW(check_config(back));
}

TEST_CASE("auto batch: schedules, smoothing and micro-batches of the trial become settings; what the user gives wins") {
  Study study({fixed("decay_fraction", 0.5), fixed("end_factor", 0.01), fixed("label_smoothing", 0.1), fixed("warmup_steps", 7)});
  study.spec.max_microbatch = 20;
  study.spec.weight_decay = 1e-4;
  study.write();
  const Config taken = study.resolve(2).config;
  CHECK(taken.schedule_lr == "linear");
  CHECK(taken.lr_end_factor == 0.01);
  CHECK(taken.decay_steps == 250);
  CHECK(taken.warmup_steps == 7);
  CHECK(taken.label_smoothing == 0.1);
  CHECK(taken.weight_decay == 1e-4);
  CHECK(taken.accumulate == 7);  // 128 samples of a worker by 20.
  CHECK_NOTHROW(check_config(taken));
  Config file;
  file.momentum = 0.5;
  const Config given = study
                           .resolve(2,
                                    {{"lr", "0.01"},
                                     {"schedule-lr", "cosine"},
                                     {"epochs", "2"},
                                     {"threads", "2"},
                                     {"goal", "val_loss<1"},
                                     {"model", "fc:hidden=16"},
                                     {"label-smoothing", "0"}},
                                    file)
                           .config;
  CHECK(given.lr == 0.01);
  CHECK(given.momentum == 0.5);
  CHECK(given.schedule_lr == "cosine");
  CHECK(given.decay_steps == 0);
  CHECK(given.epochs == 2);
  CHECK(given.steps == 0);
  CHECK(given.threads == 2);
  CHECK(given.goal == "val_loss<1");
  CHECK(given.label_smoothing == 0);
  CHECK_NOTHROW(check_config(given));
}

TEST_CASE("auto batch: what contradicts the study, and what is missing, with what to run") {
  Study study;
  CHECK(study.complaint(1, {{"model", "cnn"}}) ==
        "--model \"cnn\" contradicts the study DIR, which was made with \"fc:hidden=16\"; leave --model or --study out");
  CHECK(study.complaint(1, {{"data", "fashion-mnist"}}).starts_with("--data \"fashion-mnist\" contradicts"));  // The default, but given.
  CHECK(study.complaint(1, {{"optimizer", "sgd"}}).starts_with("--optimizer \"sgd\" contradicts"));
  CHECK(study.complaint(1, {{"val-samples", "9"}}).starts_with("--val-samples 9 contradicts"));
  CHECK(
      study.complaint(4) ==
      "--global-batch auto for 4 workers: DIR/step_times.csv has step times of 1, 2 workers; measure them on a machine with as many cores "
      "with `cohort study report DIR --workers 4`, or give --global-batch a number");
  CHECK(study.complaint(4, {{"global-batch", "65"}}) ==
        "--study DIR: batch size 65 is not among those that reached val_error<0.2 there (64 256); take one of them, or auto");
  CHECK(study.complaint(1, {{"resume", "true"}, {"run", "R"}}).ends_with("`cohort train R/config.toml --resume`"));
  CHECK(study.complaint(2, {{"layout", "pp=2"}}).starts_with("--global-batch auto with --layout pp=2: a study has step times of data-par"));
  study.spec.train_samples = 100;
  study.write();
  CHECK(study.complaint(1).find("made with the first 100 samples") != std::string::npos);
  study.spec.train_samples = 0;
  study.spec.batches.pop_back();
  study.write();
  CHECK(study.complaint(2).starts_with("DIR: steps_curve.csv has batch size 256, study.toml has not"));

  study::Analysis missed;
  missed.goal = {study::kValError, 0.01};
  missed.steps = {{.batch_size = 64}, {.batch_size = 256}};
  study::write_steps_curve(study.path() + "/steps_curve.csv", missed);
  CHECK(study.complaint(1).find("no batch size of DIR that has step times reached val_error<0.01; give") != std::string::npos);
  for (const char* name : {"step_times.csv", "steps_curve.csv"}) {
    std::remove((study.path() + "/" + name).c_str());
    CHECK(study.complaint(2) == concat("DIR/", name, ": no such file; make it with `cohort study report DIR --workers 2`"));
  }
  std::remove((study.path() + "/study.toml").c_str());
  CHECK(study.complaint(1).starts_with("DIR/study.toml: no such file; --study takes the folder of a study that was run"));
  CHECK_THROWS_AS(resolve_auto_batch(Config(), [](const std::string&) { return false; }, Layout()), Error);
}

}  // namespace
}  // namespace cohort
