#include "cohort/train/distil/teacher_answers.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/log.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/text.h"
#include "cohort/data/fingerprint.h"
#include "cohort/models/loss/attention_transfer.h"
#include "cohort/models/loss/distillation.h"
#include "cohort/parallel/agreement.h"
#include "cohort/train/batch_tensors.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

constexpr int64_t kSamplesAtOnce = 256;  // Of a forward that fills the file.

/// {count, scores} of samples [first, first + count), in forwards of kSamplesAtOnce, whose bounds do not depend on who asks.
void ask(Teacher& teacher, const DataSource& source, int64_t first, int64_t count, int64_t scores, float* out) {
  Batch batch;
  for (int64_t done = 0; done < count; done += kSamplesAtOnce) {
    std::vector<int64_t> indices(static_cast<size_t>(std::min(kSamplesAtOnce, count - done)));
    std::iota(indices.begin(), indices.end(), first + done);
    source.read(indices, batch);
    const at::Tensor given = teacher.scores(as_tensors(batch, source.shape()).input).cpu().contiguous();
    const int64_t wanted = static_cast<int64_t>(indices.size()) * scores;
    if (given.numel() != wanted)
      fail(ErrorCode::kBadInput, name_settings("--teacher"), ": its output for ", indices.size(), " samples is ", given.numel(),
           " numbers, and ", wanted, " scores of classes were expected");
    std::memcpy(out + done * scores, given.const_data_ptr<float>(), static_cast<size_t>(wanted) * sizeof(float));
  }
}

/// Rank 0's word.
std::string agreed(const TeacherRequest& request, const std::string& mine, const char* what) {
  return request.group ? request.group->all_gather_text(mine, what).front() : mine;
}

}  // namespace

TeacherAnswers::TeacherAnswers(const TeacherRequest& request)
    : temperature_(request.config.temperature),
      alpha_(request.config.alpha),
      hint_weight_(request.config.hint_weight),
      hints_(request.hints),
      scores_(scores_of_sample(request.data.train->shape())),
      classes_(request.data.train->shape().num_classes) {
  check_teacher(request.config, request.data);
  teacher_ = open_teacher(request.config, request.data);
  fingerprint_ = teacher_->fingerprint();
  if (request.group) check_same_text(*request.group, fingerprint_, "the teacher's fingerprint", "bring the same file to every host");
  if (hints_) {
    teacher_->watch(hints_->teacher_layers());
    teacher_->scores(first_input(*request.data.train));
    hints_->check(teacher_->watched());
  }
  if (!decide(request)) return;
  // Teachers are asked here by as many processes as the host has: what none of them has made yet.
  kept_->fill([&](int64_t first, int64_t count, float* out) { ask(*teacher_, *request.data.train, first, count, scores_, out); },
              request.place, request.size, stop_requested);
  teacher_.reset();
}

/// Whether answers are kept: then kept_ is there.
bool TeacherAnswers::decide(const TeacherRequest& request) {
  const Config& config = request.config;
  AnswersKey key{fingerprint_, "", request.data.train->num_samples(), scores_};
  const std::string base = default_answers_folder();
  std::string why_live;
  if (hints_) why_live = name_settings("--hint looks into its layers");
  else if (config.teacher_answers == "live") why_live = name_settings("--teacher-answers says so");
  else if (config.augment != "none") why_live = name_settings("--augment changes the pictures");
  else if (key.bytes() > kMostKeptBytes)
    why_live =
        concat("answers to all samples would be ", human_bytes(key.bytes()), ", and at most ", human_bytes(kMostKeptBytes), " are kept");
  else if (base.empty() || !is_writable_folder(base))
    why_live = concat(base.empty() ? "the user's cache" : base,
                      base.empty() ? " has no place: neither XDG_CACHE_HOME nor HOME is there" : " takes no files");
  if (config.teacher_answers == "cached" && !why_live.empty())
    fail(ErrorCode::kBadInput, name_settings("--teacher-answers cached: "), why_live, name_settings("; set XDG_CACHE_HOME, or use live"));
  if (why_live.empty()) key.data = data_fingerprint(request.data);
  if (why_live.empty()) kept_ = std::make_unique<KeptAnswers>(base, key);
  if (kept_ && request.place == 0)
    for (const std::string& sentence : kept_->damaged()) log_warning(sentence);
  const std::string kept_in = kept_ ? concat("kept in ", kept_->folder(), " (", human_bytes(key.bytes()), ")") : "";
  if (!why_live.empty()) sentence_ = concat("asked in every step: ", why_live);
  else if (config.teacher_answers == "cached") sentence_ = concat(kept_in, name_settings(": --teacher-answers says so"));
  else if (kept_->num_missing() == 0) sentence_ = concat(kept_in, ": all of them are there");
  else if (!request.group) sentence_ = concat(kept_in, ": they are few enough");
  else if (request.group->rank() == 0) sentence_ = measure(request) ? kept_in + sentence_ : "asked in every step" + sentence_;
  // Another host may have another cache; all do as rank 0 does.
  sentence_ = agreed(request, sentence_, "where the teacher's answers come from");
  if (!sentence_.starts_with("kept in ")) kept_.reset();
  else if (!kept_) fail(ErrorCode::kBadInput, name_settings("--teacher-answers: rank 0 keeps them, and here "), why_live, "; use live");
  sentence_ = concat("teacher: ", teacher_->title(), "; its answers are ", sentence_);
  return kept_ != nullptr;
}

/// Whether keeping them is sooner done; why, in sentence_.
bool TeacherAnswers::measure(const TeacherRequest& request) {
  constexpr int64_t kBatch = 16;  // Other ranks wait meanwhile.
  constexpr int kRounds = 3;
  const DataSource& source = *request.data.train;
  const int64_t count = std::min(kBatch, source.num_samples());
  std::vector<float> scores(static_cast<size_t>(count * scores_));
  std::vector<double> asking, reading;
  ask(*teacher_, source, 0, count, scores_, scores.data());  // Warms up.
  // A folder of its own with one piece, so that what is timed is the way that a training reads.
  const TemporaryFolder scratch;
  KeptAnswers small(scratch.path(), {fingerprint_, "measured", count, scores_});
  small.fill([&](int64_t, int64_t, float* out) { std::memcpy(out, scores.data(), scores.size() * sizeof(float)); }, 0, 1,
             [] { return false; });
  for (int round = 0; round < kRounds; ++round) {
    double start = steady_seconds();
    ask(*teacher_, source, 0, count, scores_, scores.data());
    asking.push_back((steady_seconds() - start) / static_cast<double>(count));
    start = steady_seconds();
    for (int64_t sample = 0; sample < count; ++sample) small.read(sample, scores.data());
    reading.push_back((steady_seconds() - start) / static_cast<double>(count));
  }
  const double answer = median(asking), read = median(reading);
  const auto of_run = static_cast<double>(request.samples_of_run) / request.pipelines;
  const double first = static_cast<double>(kept_->num_missing()) * answer / request.size;
  const double cached = first + of_run * read, live = of_run * answer;
  const bool keeps = cached <= live;
  sentence_ =
      concat(keeps ? ", for that is sooner done: " : ", for that is sooner done than to keep them: ", human_seconds(keeps ? cached : live),
             " against ", human_seconds(keeps ? live : cached), " (", human_seconds(answer), " to ask and ", human_seconds(read),
             " to read, a sample)");
  return keeps;
}

at::Tensor TeacherAnswers::of(std::span<const int64_t> samples, const at::Tensor& input) const {
  const auto count = static_cast<int64_t>(samples.size());
  if (!kept_) {
    const at::Tensor scores = teacher_->scores(input);
    if (scores.numel() != count * scores_)
      fail(ErrorCode::kBadInput, name_settings("--teacher"), ": its output for ", count, " samples is ", scores.numel(), " numbers, and ",
           count * scores_, " scores of classes were expected");
    return scores.reshape({count, scores_});
  }
  at::Tensor scores = at::empty({count, scores_}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) kept_->read(samples[static_cast<size_t>(i)], scores.mutable_data_ptr<float>() + i * scores_);
  return scores.to(input.device());
}

at::Tensor TeacherAnswers::add_to(const at::Tensor& usual, const at::Tensor& output, std::span<const int64_t> samples,
                                  const at::Tensor& input) const {
  if (alpha_ == 0 && !hints_) return usual;
  const at::Tensor scores = of(samples, input).reshape({-1, classes_});
  at::Tensor loss = alpha_ == 0 ? usual : usual * (1 - alpha_) + soft_target_loss(output, scores, temperature_) * alpha_;
  if (!hints_) return loss;
  const std::vector<at::Tensor> mine = hints_->take(), of_teacher = teacher_->watched();
  for (size_t i = 0; i < mine.size(); ++i) {
    if (!mine[i].defined()) fail(ErrorCode::kFailed, name_settings("--hint"), ": the student's layers did not run before its loss");
    loss = loss + attention_distance(mine[i], of_teacher[i]) * hint_weight_;
  }
  return loss;
}

std::unique_ptr<TeacherAnswers> teacher_answers(const TeacherRequest& request) {
  return request.config.teacher.empty() ? nullptr : std::make_unique<TeacherAnswers>(request);
}

}  // namespace cohort
