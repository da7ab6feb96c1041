#pragma once
// A trained model whose scores a student learns from (--teacher), and what its layers gave. How such a model is opened is the business of
// infer/, which stands above this room: it registers itself.

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

// What layers of a model gave in its newest forward.

/// Puts itself behind functions of `model`, which may outlive it. One thread.
class LayerTaps {
 public:
  /// Error(kBadInput) that begins with `option` for a layer that the model does not have.
  LayerTaps(LayerGraph& model, const std::vector<std::string>& layers, const std::string& option);

  /// In the order of the names; undefined where no forward has been since the last call. Kept no longer here.
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
  /// 16 hexadecimal digits (XXH3) of its weights, its model and how it takes its inputs.
  virtual const std::string& fingerprint() const = 0;
  /// {samples, ..., classes} in fp32 for inputs as the student's data have them; in eval mode, without gradients, whatever the student's
  /// precision is.
  virtual at::Tensor scores(const at::Tensor& input) = 0;

  /// From now on scores() keeps what these layers give. Once; Error(kBadInput) for a layer that it does not have.
  virtual void watch(const std::vector<std::string>& layers) = 0;
  /// What they gave in the last scores(), on that input's device; in their order.
  virtual std::vector<at::Tensor> watched() = 0;
};

/// Scores of all targets of a sample.
int64_t scores_of_sample(const DataShape& shape);

/// config.teacher for students on `data`, with its weights. Error(kBadInput) in one line that begins with the option: a file that is
/// missing, damaged or no trained model, and one of other data or classes.
std::unique_ptr<Teacher> open_teacher(const Config& config, const DataSet& data);
/// The same without reading weights, and what else cannot be about its settings; nothing where there is no teacher.
void check_teacher(const Config& config, const DataSet& data);

/// How trained/ does it; `open` may throw Error(kBadInput).
struct TeacherOpener {
  void (*check)(const Config& student, const DataSet& data) = nullptr;
  std::unique_ptr<Teacher> (*open)(const std::string& path, const DataSet& data) = nullptr;
};
/// At namespace scope of one file; returns true.
bool register_teacher_opener(TeacherOpener opener);

// The student's side of --hint: what its layers give, to be compared with what its teacher's do (attention_transfer.h).

/// One thread.
class StudentHints {
 public:
  /// `model` is whole, on the CPU; one sample of `train` goes through it. Error(kBadInput) for a layer that it does not have.
  StudentHints(LayerGraph& model, const std::vector<HintPair>& pairs, const DataSource& train);

  /// Names of the teacher's layers, in the order of take().
  std::vector<std::string> teacher_layers() const;
  /// Error(kBadInput) where the teacher's outputs for one sample cannot be compared with the student's.
  void check(const std::vector<at::Tensor>& of_teacher) const;
  /// What the layers gave in the newest forward, once.
  std::vector<at::Tensor> take() const { return taps_.take(); }

 private:
  std::vector<HintPair> pairs_;
  LayerTaps taps_;
  std::vector<std::vector<int64_t>> sizes_;  ///< For one sample.
};

// What a student's loss is told by its teacher, for each sample:
//
//   cached   scores that were kept on disk for every sample of the training (teacher_cache.h): the teacher's forward once a sample, whoever
//            trains on them
//   live     the teacher gives them in every step, between the student's forward and its backward
//   beside   the teacher works on a thread of its own on what the student is given in its next steps (LoaderOptions::answer): the same
//            scores as live, on cores that the student leaves. Live and beside take pictures that change (--augment) as they are
//
// --teacher-answers auto: cached where answers can be kept (not with --augment, nor more than kMaxTeacherCacheBytes, nor without a folder
// for them), beside where the training's processes leave a core for each thread of their teachers, else live. Where cached and another are
// possible, what is sooner done by a measurement on a batch; with seconds for one sample, and a student's step as three of its forwards:
//
//   cached   missing samples x answer / processes of this host + samples of the run x read / pipelines
//   live     samples of the run x answer / pipelines
//   beside   samples of the run x (answer - student's step, at least 0, + kDisturbs x answer) / pipelines
//
// A run keeps in its configuration what auto came to: cached, or asked, which is beside where cores are left and else live.

struct TeacherRequest {
  const Config& config;
  const DataSet& data;
  int64_t samples_of_run = 0;  ///< That all workers together train on.
  int pipelines = 1;           ///< That train side by side.
  int place = 0, size = 1;     ///< Of this process among those of its host.
  bool has_loader = true;      ///< That asks a teacher beside.
  double student_seconds = 0;  ///< Of a step, for one sample; 0: not known.
  /// Who decides together, and must have the same teacher; null: this process alone, without a measurement: cached where that can be.
  Group* group = nullptr;
  const StudentHints* hints = nullptr;  ///< Kept; null: scores alone are learnt from.
};

/// One thread.
class TeacherAnswers {
 public:
  /// Collective over the request's group. Opens the teacher, decides, and where answers are kept makes what is missing of them: ends when
  /// all are there. References of the request are not kept. Errors as open_teacher() and TeacherCache::fill() have them.
  explicit TeacherAnswers(const TeacherRequest& request);

  const std::string& fingerprint() const { return fingerprint_; }  ///< Of the teacher.
  bool is_cached() const { return kept_ != nullptr; }
  /// A teacher is here that works beside the student.
  bool is_beside() const { return teacher_ && is_beside_; }
  /// "cnn, step 500 of runs/big: its answers are ... because ...".
  const std::string& sentence() const { return sentence_; }
  /// This process computes no loss: a teacher that would be asked in every step goes, with its memory.
  void forget() { teacher_.reset(); }

  /// {samples, scores of a sample}, fp32, on `input`'s device. `samples`: indices in the training part; `input`: the same as the model gets
  /// them, of as many rows.
  at::Tensor of(std::span<const int64_t> samples, const at::Tensor& input) const;
  /// The teacher's scores for all samples of a batch, {samples, scores of a sample}, asked piece by piece as the student computes them. For
  /// one thread at a time, any one, that alone asks; only where is_beside().
  std::vector<float> beside(LoadedBatch& batch, const DataShape& shape) const;
  /// (1 - alpha) usual + alpha soft (distillation.h) + hint-weight x the distances of hints (attention_transfer.h) by the settings.
  /// `output`: the student's for `input`, with all classes, of its newest forward. `given`: what beside() gave for these samples; undefined
  /// where it was not asked.
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
  std::unique_ptr<Teacher> teacher_;    // Null once answers are kept.
  std::unique_ptr<TeacherCache> kept_;  // Null where it is asked in every step.
  bool is_beside_ = false;
};

/// Null where config.teacher is empty.
std::unique_ptr<TeacherAnswers> teacher_answers(const TeacherRequest& request);

}  // namespace cohort
