// `cohort compress distill TEACHER --student MODEL`: runs `cohort train --teacher` with the settings of the teacher's run, in a folder that
// follows from the command, so that the same command resumes after a kill; then exports the student and evaluates both models.
#include "cohort/cli/trained/compress.h"

#include <filesystem>
#include <memory>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/checkpoint/retention.h"
#include "cohort/checkpoint/tools.h"
#include "cohort/cli/trained/trained.h"
#include "cohort/compress/compression_result.h"
#include "cohort/compress/fine_tuning.h"
#include "cohort/infer/trained_file.h"
#include "cohort/job/learning_rate.h"
#include "cohort/job/option_rules.h"
#include "cohort/models/registry.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

/// Settings of how and where the teacher was trained: a student begins with their defaults.
const std::set<std::string>& settings_not_from_teacher() {
  static const std::set<std::string> names = {
      "workers",      "layout",          "backend",      "weights",     "shares",      "outer-lr",    "outer-momentum", "remedy",
      "virtual",      "listen",          "device",       "threads",     "timeout",     "grace",       "init-from",      "freeze",
      "bucket-bytes", "sync-batch-norm", "teacher",      "alpha",       "temperature", "study",       "goal",           "inject",
      "run",          "resume",          "memory-limit", "noise-scale", "json",        "quiet",       "serve",          "log-every",
      "plugin",       "teacher-answers", "hint",         "hint-weight", "prune",       "prune-until", "quantize-aware"};
  return names;
}

/// Scales the learning rate: the student's relative to the default of its optimizer and model as the teacher's to its own default.
void fit_to_student(Config& config, const Config& of_teacher, const std::string& student, const std::set<std::string>& given) {
  const double its_rate = default_learning_rate(config.optimizer, student);
  const double of_rate = default_learning_rate(of_teacher.optimizer, of_teacher.model);
  if (!given.contains("lr") && config.lr != Config::kAuto && its_rate != of_rate) config.lr *= its_rate / of_rate;
  if (!given.contains("weight-decay") && config.weight_decay == default_weight_decay(of_teacher.optimizer))
    config.weight_decay = default_weight_decay(config.optimizer);
}

/// The configuration of the student's training: the teacher's settings overridden by the options.
Config config_of_student(const Arguments& arguments, const TrainedFile& teacher, const std::string& student, const std::string& run) {
  Config config = teacher.config();
  for (const std::string& name : settings_not_from_teacher()) find_setting(name)->copy(config, Config());
  if (!teacher.is_exported()) find_setting("plugin")->copy(config, teacher.config());
  const Config of_teacher = config;
  for (const std::string& name : arguments.given) find_setting(name)->copy(config, arguments.config);
  if (arguments.given.contains("steps") != arguments.given.contains("epochs"))
    find_setting(arguments.given.contains("steps") ? "epochs" : "steps")->copy(config, Config());
  fit_to_student(config, of_teacher, student, arguments.given);
  leave_out_overridden(config, of_teacher, arguments.given);
  find_setting("model")->set(config, student);
  find_setting("teacher")->set(config, teacher.is_exported() ? teacher.given() : teacher.path());
  find_setting("run")->set(config, run);
  return config;
}

int train_student(const Arguments& arguments, const Config& student) {
  Arguments training;
  training.config = student;
  training.given = student.given;
  if (find_fine_tuning(student) != FineTuningState::kNew) {
    training.given = arguments.given;
    training.given.insert({"model", "teacher", "run", "resume"});
    find_setting("resume")->set(training.config, "true");
  }
  return train_verb().run(training);
}

}  // namespace

std::vector<std::string> distil_settings() { return settings_without({"model", "init-from", "freeze", "teacher", "resume", "study"}); }

std::set<std::string> settings_from_teacher() {
  std::set<std::string> names;
  for (const std::string& name : distil_settings())
    if (!settings_not_from_teacher().contains(name) && !find_setting(name)->is_flag) names.insert(name);
  return names;
}

VerbOption distil_student_option() { return {"student", "MODEL", "distill: the model that learns, NAME[:k=v,..] as train --model has it"}; }

VerbAction distil_action() {
  VerbAction action{.name = "distill", .most_words = 1, .reads = distil_settings()};
  action.reads.insert(action.reads.end(), {"out", "report", "student", "checkpoint"});
  return action;
}

int run_distil(const Arguments& arguments) {
  const TrainedFile teacher = open_trained(arguments, "compress distill");
  const std::string student = arguments.option("student", "");
  if (student.empty()) fail(ErrorCode::kBadInput, "compress distill: --student MODEL is missing; `cohort doctor` lists the names");
  const std::string out = out_file(arguments, "compress distill");
  find_model(student.substr(0, student.find(':')));
  check_compressed_name(out);
  check_differs_from_input(teacher, out);
  if (const DataDescription taught = description_of(teacher); taught.regression || taught.labels)
    fail(ErrorCode::kBadInput, "compress distill: ", teacher.given(), " predicts ", taught.labels ? "labels" : "numbers",
         ", and a teacher's scores are those of classes; train ", student, " itself");
  check_compression_report(arguments);
  const std::string run = arguments.was_given("run") ? arguments.config.run : fs::path(out).replace_extension(".run").string();
  const Config config = config_of_student(arguments, teacher, student, run);
  if (const int code = train_student(arguments, config); code != 0) return code;

  const Checkpoint newest = open_selected_checkpoint(run, "latest");
  checkpoint_export(newest, out, {.metadata = exported_metadata(newest)});
  const TrainedFile trained = TrainedFile::open(out);
  const DataSet data = open_data(trained.config());
  const std::shared_ptr<const DataSource> validation = part_of(data, "val");
  CompressionResult result = compare_with_teacher(teacher, trained, validation, arguments.config.threads);
  result.trained = true;
  result.method = concat("distill T=", config.temperature, " alpha=", config.alpha,
                         config.hint.empty() ? "" : concat(" hint=", config.hint, " x ", config.hint_weight));
  result.out = out;
  print_compression(arguments, result, *validation, concat(student, ", step ", result.step, " of ", run, ", taught by ", teacher.given()));
  return 0;
}

}  // namespace cohort
