#pragma once
// What a student's loss is told by its teacher: scores that were kept on disk for every sample of the training (kept_answers.h), or those
// that the teacher gives in this process for what the student is given. The former cost the teacher's forward once a sample, whoever
// trains on them; the latter once in every step, and take pictures that change (--augment) as they are.
//
// --teacher-answers auto decides: live where answers cannot be kept (--augment, more than kMostKeptBytes, no folder for them), else what is
// sooner done by a measurement on a batch:
//
//   cached   missing samples x seconds of an answer / processes of this host + samples of the run x seconds to read one / pipelines
//   live     samples of the run x seconds of an answer / pipelines

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "cohort/comm/group.h"
#include "cohort/data/source.h"
#include "cohort/job/config.h"
#include "cohort/train/distil/kept_answers.h"
#include "cohort/train/distil/student_hints.h"
#include "cohort/train/distil/teacher.h"

namespace cohort {

struct TeacherRequest {
  const Config& config;
  const DataSet& data;
  int64_t samples_of_run = 0;  ///< That all workers together train on.
  int pipelines = 1;           ///< That train side by side.
  int place = 0, size = 1;     ///< Of this process among those of its host.
  /// Who decides together, and must have the same teacher; null: this process alone, without a measurement: cached where that can be.
  Group* group = nullptr;
  const StudentHints* hints = nullptr;  ///< Kept; null: scores alone are learnt from.
};

/// One thread.
class TeacherAnswers {
 public:
  /// Collective over the request's group. Opens the teacher, decides, and where answers are kept makes what is missing of them: ends when
  /// all are there. References of the request are not kept. Errors as open_teacher() and KeptAnswers::fill() have them.
  explicit TeacherAnswers(const TeacherRequest& request);

  const std::string& fingerprint() const { return fingerprint_; }  ///< Of the teacher.
  bool is_cached() const { return kept_ != nullptr; }
  /// "cnn, step 500 of runs/big: its answers are ... because ...".
  const std::string& sentence() const { return sentence_; }
  /// This process computes no loss: a teacher that would be asked in every step goes, with its memory.
  void forget() { teacher_.reset(); }

  /// {samples, scores of a sample}, fp32, on `input`'s device. `samples`: indices in the training part; `input`: the same as the model gets
  /// them, of as many rows.
  at::Tensor of(std::span<const int64_t> samples, const at::Tensor& input) const;
  /// (1 - alpha) usual + alpha T^2 KL (distillation.h) + hint-weight x the distances of hints (attention_transfer.h) by the settings.
  /// `output`: the student's for `input`, with all classes, of its newest forward.
  at::Tensor add_to(const at::Tensor& usual, const at::Tensor& output, std::span<const int64_t> samples, const at::Tensor& input) const;

 private:
  bool decide(const TeacherRequest& request);
  bool measure(const TeacherRequest& request);

  double temperature_, alpha_, hint_weight_;
  const StudentHints* hints_;
  int64_t scores_, classes_;
  std::string fingerprint_, sentence_;
  std::unique_ptr<Teacher> teacher_;   // Null once answers are kept.
  std::unique_ptr<KeptAnswers> kept_;  // Null where it is asked in every step.
};

/// Null where config.teacher is empty.
std::unique_ptr<TeacherAnswers> teacher_answers(const TeacherRequest& request);

}  // namespace cohort
