#pragma once
// Knowledge distillation: a trained model whose scores a student learns from (--teacher), and outputs of layers that are compared (--hint).
// infer/, which is above this room, registers how such a model is opened.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/data/loader.h"
#include "cohort/data/source/source.h"
#include "cohort/job/config.h"
#include "cohort/job/specs/small_specs.h"
#include "cohort/train/distil/teacher_cache.h"

namespace cohort {

class LayerGraph;

/// Keeps the outputs of some layers of the last forward. It wraps their functions; `model` may outlive it. One thread.
class LayerTaps {
 public:
  /// Error(kBadInput) that begins with `option` for a layer that the model does not have.
  LayerTaps(LayerGraph& model, const std::vector<std::string>& layers, const std::string& option);

  /// Moves the outputs out, in the order of the names; undefined where no forward ran since the last call.
  std::vector<at::Tensor> take() const;

 private:
  std::shared_ptr<std::vector<at::Tensor>> outputs_;
};

/// One thread.
class Teacher {
 public:
  virtual ~Teacher() = default;
  Teacher() = default;
  Teacher(const Teacher&) = delete;
  Teacher& operator=(const Teacher&) = delete;

  /// "cnn, step 500 of runs/big".
  virtual const std::string& title() const = 0;
  /// 16 hexadecimal digits (XXH3) of its weights, its model and its input format.
  virtual const std::string& fingerprint() const = 0;
  /// {samples, ..., classes} for inputs in the student's format; in fp32 whatever the student's precision, in eval mode, without gradients.
  virtual at::Tensor scores(const at::Tensor& input) = 0;

  /// From now on scores() keeps the outputs of these layers. Called at most once; Error(kBadInput) for a layer that it does not have.
  virtual void watch(const std::vector<std::string>& layers) = 0;
  /// Their outputs in the last scores(), on the input's device.
  virtual std::vector<at::Tensor> watched() = 0;
};

/// Scores of all targets of a sample.
int64_t scores_of_sample(const DataShape& shape);

/// Opens config.teacher with its weights. Error(kBadInput) that begins with the option, for a file that is missing, damaged or not a
/// trained model, and for one of other data or classes.
std::unique_ptr<Teacher> open_teacher(const Config& config, const DataSet& data);
/// Checks the same without reading weights, and the settings of distillation. Does nothing without a teacher.
void check_teacher(const Config& config, const DataSet& data);

/// Implemented by infer/; both may throw Error(kBadInput).
struct TeacherOpener {
  void (*check)(const Config& student, const DataSet& data) = nullptr;
  std::unique_ptr<Teacher> (*open)(const std::string& path, const DataSet& data) = nullptr;
};
/// Called at namespace scope of one file; returns true.
bool register_teacher_opener(TeacherOpener opener);

/// The student's side of --hint: outputs of its layers, to be compared with the teacher's. One thread.
class StudentHints {
 public:
  /// `model` is whole and on the CPU; one sample of `train` is run through it. Error(kBadInput) for a layer that it does not have.
  StudentHints(LayerGraph& model, const std::vector<HintPair>& pairs, const DataSource& train);

  /// Names of the teacher's layers, in the order of take().
  std::vector<std::string> teacher_layers() const;
  /// Error(kBadInput) if the teacher's outputs for one sample cannot be compared with the student's.
  void check(const std::vector<at::Tensor>& of_teacher) const;
  std::vector<at::Tensor> take() const { return taps_.take(); }

 private:
  std::vector<HintPair> pairs_;
  LayerTaps taps_;
  std::vector<std::vector<int64_t>> sizes_;  ///< For one sample.
};

// Where the teacher's scores of a sample come from (--teacher-answers):
//
//   cached   the cache on disk (teacher_cache.h): one forward of the teacher for each sample, shared by all trainings
//   live     the teacher runs in every step, between the student's forward and its backward
//   beside   the teacher runs on a thread of its own on the batches of the next steps (LoaderOptions::answer): the same scores as live, on
//            cores that the student does not use. Live and beside see augmented pictures
//
// auto: cached if scores can be cached (not with --augment, nor more than kMaxTeacherCacheBytes, nor without a folder), beside if there is
// a core for each thread of the teachers, else live. Between cached and another the faster one in a measurement of one batch is used, with
// seconds for a sample, and a student's step as three of its forwards:
//
//   cached   missing samples x forward / processes of this host + samples of the run x read / pipelines
//   live     samples of the run x forward / pipelines
//   beside   samples of the run x (forward - student's step, at least 0, + kDisturbs x forward) / pipelines
//
// The choice is stored in the run's configuration: cached, or asked, which is beside where cores are left and else live.

struct TeacherRequest {
  const Config& config;
  const DataSet& data;
  int64_t samples_of_run = 0;  ///< Samples that all workers process together.
  int pipelines = 1;           ///< Data-parallel replicas.
  int place = 0, size = 1;     ///< Index of this process among those of its host, and their number.
  bool has_loader = true;      ///< A Loader can run the teacher beside the student.
  double student_seconds = 0;  ///< Seconds of a step for one sample; 0: unknown.
  /// Ranks that decide together and must have the same teacher. Null: this process decides alone, without a measurement.
  Group* group = nullptr;
  const StudentHints* hints = nullptr;  ///< Null without --hint; must outlive the TeacherAnswers.
};

/// One thread.
class TeacherAnswers {
 public:
  /// Collective over the request's group. Opens the teacher, decides, and completes the cache if it is used. References of the request are
  /// not kept. Errors as open_teacher() and TeacherCache::fill().
  explicit TeacherAnswers(const TeacherRequest& request);

  /// The teacher's fingerprint.
  const std::string& fingerprint() const { return fingerprint_; }
  bool is_cached() const { return cache_ != nullptr; }
  bool is_beside() const { return teacher_ && is_beside_; }
  /// "teacher: cnn, step 500 of runs/big; its answers are ...: ...".
  const std::string& sentence() const { return sentence_; }
  /// Frees the teacher in a process that computes no loss.
  void forget() { teacher_.reset(); }

  /// {samples, scores of a sample}, fp32, on the device of `input`, which holds these samples of the training part as the model gets them.
  at::Tensor of(std::span<const int64_t> samples, const at::Tensor& input) const;
  /// As of(), for all samples of a batch, in the student's micro-batches. Called by the loader's thread, and only if is_beside().
  std::vector<float> beside(LoadedBatch& batch, const DataShape& shape) const;
  /// (1 - alpha) usual + alpha soft_target_loss + hint-weight x attention_distance of the hints. `output`: the student's for `input`, with
  /// all classes, of its last forward. `given`: the scores of beside() for these samples; undefined without it.
  at::Tensor add_to(const at::Tensor& usual, const at::Tensor& output, std::span<const int64_t> samples, const at::Tensor& input,
                    const at::Tensor& given = {}) const;

 private:
  bool decide(const TeacherRequest& request);
  std::string why_not_kept(const TeacherRequest& request, const std::string& base, int64_t bytes) const;
  bool measure(const TeacherRequest& request, bool can_be_beside);

  double temperature_, alpha_, hint_weight_;
  const StudentHints* hints_;
  int64_t scores_, classes_;
  std::string fingerprint_, sentence_;
  std::unique_ptr<Teacher> teacher_;     // Null once the cache is complete.
  std::unique_ptr<TeacherCache> cache_;  // Null if the teacher runs in every step.
  bool is_beside_ = false;
};

/// Null if config.teacher is empty.
std::unique_ptr<TeacherAnswers> teacher_answers(const TeacherRequest& request);

}  // namespace cohort
