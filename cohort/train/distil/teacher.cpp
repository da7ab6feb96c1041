#include "cohort/train/distil/teacher.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/statistics.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/data/source/fingerprint.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/loss/losses.h"
#include "cohort/parallel/common/agreement.h"
#include "cohort/train/model/batch_tensors.h"
#include "cohort/world/stop.h"

namespace cohort {

LayerTaps::LayerTaps(LayerGraph& model, const std::vector<std::string>& layers, const std::string& option)
    : outputs_(std::make_shared<std::vector<at::Tensor>>(layers.size())) {
  std::vector<std::string> known;
  for (const LayerGraph::Layer& layer : model.layers()) known.push_back(layer.name);
  for (size_t place = 0; place < layers.size(); ++place) {
    const auto found = std::find(known.begin(), known.end(), layers[place]);
    if (found == known.end())
      fail(ErrorCode::kBadInput, option, ": ", model.title(), " has no layer ", quote_text(layers[place]),
           did_you_mean(layers[place], known), "; it has ", join(known, ", "));
    const auto index = static_cast<size_t>(found - known.begin());
    const LayerGraph::Layer& layer = model.layers()[index];
    model.replace_layer(index, layer.module, [exact = layer.function, outputs = outputs_, place](const LayerGraph::Inputs& inputs) {
      at::Tensor output = exact(inputs);
      (*outputs)[place] = output.clone();  // The next layer may work in place.
      return output;
    });
  }
}

std::vector<at::Tensor> LayerTaps::take() const { return std::exchange(*outputs_, std::vector<at::Tensor>(outputs_->size())); }

namespace {

TeacherOpener& opener() {
  static TeacherOpener registered;
  return registered;
}

/// Puts the option in front of errors.
template <typename Action>
auto of_option(const Config& config, const Action& action) {
  try {
    return action();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadInput) throw;
    fail(ErrorCode::kBadInput, name_settings("--teacher "), config.teacher, ": ", error.what());
  }
}

constexpr double kDisturbs = 0.2;        // Slowdown of the student by a teacher beside it, in parts of the teacher's time.
constexpr int64_t kSamplesAtOnce = 256;  // In a forward that fills the cache.
// The beginning of the sentence that rank 0 decides by.
constexpr const char *kKept = "kept", *kAskedLive = "asked in every step", *kAskedBeside = "asked for beside the student, some steps ahead";

/// {samples, scores}, as one forward gives them.
at::Tensor checked_scores(Teacher& teacher, const at::Tensor& input, int64_t count, int64_t scores) {
  at::Tensor given = teacher.scores(input);
  if (given.numel() != count * scores)
    fail(ErrorCode::kBadInput, name_settings("--teacher"), ": its output for ", count, " samples is ", given.numel(), " numbers, and ",
         count * scores, " scores of classes were expected");
  if (!at::isfinite(given).all().item<bool>())
    fail(ErrorCode::kBadInput, name_settings("--teacher"), " gives a score that is not finite; look at it with cohort evaluate");
  return given.reshape({count, scores});
}

void copy_scores(const at::Tensor& scores, float* out) {
  const at::Tensor here = scores.cpu().contiguous();
  std::memcpy(out, here.const_data_ptr<float>(), here.nbytes());
}

/// {count, scores} of samples [first, first + count), in forwards whose bounds are the same for every process.
void ask(Teacher& teacher, const DataSource& source, int64_t first, int64_t count, int64_t scores, float* out) {
  for (int64_t done = 0; done < count; done += kSamplesAtOnce) {
    const int64_t now = std::min(kSamplesAtOnce, count - done);
    copy_scores(checked_scores(teacher, input_batch(source, first + done, now), now, scores), out + done * scores);
  }
}

std::vector<std::string> names_of(const std::vector<HintPair>& pairs, std::string HintPair::* whose) {
  std::vector<std::string> names;
  for (const HintPair& pair : pairs) names.push_back(pair.*whose);
  return names;
}

}  // namespace

int64_t scores_of_sample(const DataShape& shape) { return shape.targets_per_sample() * shape.num_classes; }

bool register_teacher_opener(TeacherOpener registered) {
  opener() = registered;
  return true;
}

std::unique_ptr<Teacher> open_teacher(const Config& config, const DataSet& data) {
  return of_option(config, [&] { return opener().open(config.teacher, data); });
}

void check_teacher(const Config& config, const DataSet& data) {
  if (config.teacher.empty()) return;
  const DataShape& shape = data.train->shape();
  if (shape.has_numbers())
    fail(ErrorCode::kBadInput, name_settings("--teacher "), config.teacher, " is for classes, and these data have ",
         shape.labels ? "labels" : "numbers to predict", "; leave it out");
  if (config.teacher_answers == "cached" && config.augment != "none")
    fail(ErrorCode::kBadInput, name_settings("--teacher-answers cached with --augment "), config.augment,
         ": a picture is another one in every step, so no answer to it can be kept; use live");
  if ((config.teacher_answers == "cached" || config.teacher_answers == "beside") && !config.hint.empty())
    fail(ErrorCode::kBadInput, name_settings("--teacher-answers "), config.teacher_answers, name_settings(" with --hint "), config.hint,
         ": scores alone come so, and what layers give is asked for in every step; use live");
  const int64_t bytes = data.train->num_samples() * scores_of_sample(shape) * static_cast<int64_t>(sizeof(float));
  if (config.teacher_answers == "cached" && bytes > kMaxTeacherCacheBytes)
    fail(ErrorCode::kBadInput, name_settings("--teacher-answers cached: "), with_commas(data.train->num_samples()), " samples with ",
         scores_of_sample(shape), " scores each are ", human_bytes(bytes), ", and at most ", human_bytes(kMaxTeacherCacheBytes),
         " are kept; use live");
  of_option(config, [&] { opener().check(config, data); });
}

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
    teacher_->scores(input_batch(*request.data.train, 0, 1));
    hints_->check(teacher_->watched());
  }
  if (!decide(request)) return;
  cache_->fill([&](int64_t first, int64_t count, float* out) { ask(*teacher_, *request.data.train, first, count, scores_, out); },
               request.place, request.size, stop_requested);
  teacher_.reset();
}

/// Why scores cannot be cached; empty if they can.
std::string TeacherAnswers::why_not_kept(const TeacherRequest& request, const std::string& base, int64_t bytes) const {
  if (hints_) return name_settings("--hint looks into its layers");
  if (request.config.augment != "none") return name_settings("--augment changes the pictures");
  if (bytes > kMaxTeacherCacheBytes)
    return concat("answers to all samples would be ", human_bytes(bytes), ", and at most ", human_bytes(kMaxTeacherCacheBytes),
                  " are kept");
  if (base.empty()) return "the user's cache has no place: neither XDG_CACHE_HOME nor HOME is there";
  return is_writable_folder(base) ? "" : base + " takes no files";
}

/// Chooses between cache, live and beside; true if the cache is used.
bool TeacherAnswers::decide(const TeacherRequest& request) {
  const std::string& how = request.config.teacher_answers;
  const bool is_auto = how == "auto", may_be_beside = is_auto || how == "asked";
  TeacherCacheKey key{fingerprint_, "", request.data.train->num_samples(), scores_};
  const std::string base = default_teacher_cache_folder();
  const int cores_wanted = 2 * request.size * at::get_num_threads();
  const bool has_cores = num_usable_cores() >= cores_wanted;
  const std::string says_so =
      concat(request.config.resume ? "the run began so" : name_settings("--teacher-answers says so"),
             how == "beside" && !has_cores ? concat("; it shares the student's cores, for there are not ", cores_wanted, " of them") : "");
  const std::string cannot = why_not_kept(request, base, key.bytes());
  if (how == "cached" && !cannot.empty())
    fail(ErrorCode::kBadInput, name_settings("--teacher-answers cached: "), cannot, name_settings("; set XDG_CACHE_HOME, or use live"));
  const bool can_be_beside = may_be_beside && !hints_ && request.has_loader && has_cores;
  if (cannot.empty() && (is_auto || how == "cached")) {
    key.data = data_fingerprint(request.data);
    cache_ = std::make_unique<TeacherCache>(base, key);
  }
  if (cache_ && request.place == 0)
    for (const std::string& sentence : cache_->damaged()) log_warning(sentence);
  const std::string kept_in = cache_ ? concat(kKept, " in ", cache_->folder(), " (", human_bytes(key.bytes()), ")") : "";
  const std::string asked = how == "beside" || can_be_beside ? kAskedBeside : kAskedLive;
  if (!is_auto) sentence_ = concat(cache_ ? kept_in : asked, ": ", says_so, can_be_beside ? ", and cores are left for it" : "");
  else if (!cache_) sentence_ = concat(asked, ": ", cannot, can_be_beside ? ", and cores are left for it" : "");
  else if (cache_->num_missing() == 0) sentence_ = concat(kept_in, ": all of them are there");
  else if (!request.group) sentence_ = concat(kept_in, ": they are few enough");
  else if (request.group->rank() == 0) sentence_ = measure(request, can_be_beside) ? kept_in + sentence_ : asked + sentence_;
  // Hosts may differ in their caches and cores; all follow rank 0.
  if (request.group) sentence_ = request.group->all_gather_text(sentence_, "where the teacher's answers come from").front();
  if (!sentence_.starts_with(kKept)) cache_.reset();
  else if (!cache_) fail(ErrorCode::kBadInput, name_settings("--teacher-answers: rank 0 keeps them, and here "), cannot, "; use live");
  is_beside_ = sentence_.starts_with(kAskedBeside);
  sentence_ = concat("teacher: ", teacher_->title(), "; its answers are ", sentence_);
  return cache_ != nullptr;
}

/// Measures whether the cache is faster; leaves the reason in sentence_.
bool TeacherAnswers::measure(const TeacherRequest& request, bool can_be_beside) {
  constexpr int64_t kBatch = 16;  // Other ranks wait meanwhile.
  constexpr int kRounds = 3;
  const DataSource& source = *request.data.train;
  const int64_t count = std::min(kBatch, source.num_samples());
  std::vector<float> scores(static_cast<size_t>(count * scores_));
  std::vector<double> asking, reading;
  ask(*teacher_, source, 0, count, scores_, scores.data());  // Warms up.
  // Reads are timed through a cache, as in training.
  const TemporaryFolder scratch;
  TeacherCache small(scratch.path(), {fingerprint_, "measured", count, scores_});
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
  const double first = static_cast<double>(cache_->num_missing()) * answer / request.size;
  const double cached = first + of_run * read;
  const double asked = of_run * (can_be_beside ? std::max(answer - request.student_seconds, 0.0) + kDisturbs * answer : answer);
  const bool keeps = cached <= asked;
  const std::string each = concat(" (a sample: ", human_seconds(answer), " to ask",
                                  can_be_beside ? concat(" beside the student's ", human_seconds(request.student_seconds)) : "", ", ",
                                  human_seconds(read), " to read)");
  const std::string of_kept = human_seconds(cached), of_asked = human_seconds(asked);
  if (keeps) sentence_ = concat(", for that is sooner done: ", of_kept, " against ", of_asked, each);
  else if (can_be_beside) sentence_ = concat(", for that adds ", of_asked, " to the training, and to keep them ", of_kept, each);
  else sentence_ = concat(", for that is sooner done than to keep them: ", of_asked, " against ", of_kept, each);
  return keeps;
}

at::Tensor TeacherAnswers::of(std::span<const int64_t> samples, const at::Tensor& input) const {
  const auto count = static_cast<int64_t>(samples.size());
  if (!cache_) return checked_scores(*teacher_, input, count, scores_);
  at::Tensor scores = at::empty({count, scores_}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) cache_->read(samples[static_cast<size_t>(i)], scores.mutable_data_ptr<float>() + i * scores_);
  return scores.to(input.device());
}

std::vector<float> TeacherAnswers::beside(LoadedBatch& batch, const DataShape& shape) const {
  at::init_num_threads();  // Give this thread as many compute threads as the student.
  std::vector<float> scores(static_cast<size_t>(batch.num_local_samples() * scores_));
  if (alpha_ == 0) return scores;  // Nothing reads them.
  const at::Tensor input = as_tensors(batch.batch, shape).input;
  int64_t first = 0;
  for (const Share& piece : batch.pieces) {
    if (piece.size() == 0) continue;
    copy_scores(checked_scores(*teacher_, input.narrow(0, first, piece.size()), piece.size(), scores_), scores.data() + first * scores_);
    first += piece.size();
  }
  return scores;
}

at::Tensor TeacherAnswers::add_to(const at::Tensor& usual, const at::Tensor& output, std::span<const int64_t> samples,
                                  const at::Tensor& input, const at::Tensor& given) const {
  if (alpha_ == 0 && !hints_) return usual;
  const at::Tensor scores = (given.defined() ? given.to(input.device()) : of(samples, input)).reshape({-1, classes_});
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

StudentHints::StudentHints(LayerGraph& model, const std::vector<HintPair>& pairs, const DataSource& train)
    : pairs_(pairs), taps_(model, names_of(pairs_, &HintPair::student), name_settings("--hint")) {
  const at::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();  // Keeps statistics and draws no dropout.
  model.forward(input_batch(train, 0, 1));
  model.train(was_training);
  for (const at::Tensor& output : take()) sizes_.push_back(output.sizes().vec());
}

std::vector<std::string> StudentHints::teacher_layers() const { return names_of(pairs_, &HintPair::teacher); }

void StudentHints::check(const std::vector<at::Tensor>& of_teacher) const {
  for (size_t i = 0; i < pairs_.size(); ++i)
    if (const std::string why = attention_mismatch(sizes_[i], of_teacher[i].sizes().vec()); !why.empty())
      fail(ErrorCode::kBadInput, name_settings("--hint "), pairs_[i].student, ":", pairs_[i].teacher, ": outputs for one sample: ", why);
}

}  // namespace cohort
