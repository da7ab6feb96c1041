#include "cohort/infer/trained_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/checkpoint/model_file.h"
#include "cohort/checkpoint/names.h"
#include "cohort/checkpoint/retention.h"
#include "cohort/data/source/description_json.h"
#include "cohort/infer/exported.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "model/";

/// Of the run that a step folder belongs to: DIR/checkpoints/step-N.
std::string run_folder_of(const std::string& step_folder) { return fs::path(step_folder).parent_path().parent_path().string(); }

/// Null where there is none, or `json` is no object.
Json member(const Json& json, const char* key) { return json.is_object() && json.contains(key) ? json[key] : Json(); }

std::optional<double> number_of(const Json& json) { return json.is_number() ? std::optional(json.get<double>()) : std::nullopt; }

void check_form(const std::string& path, const std::string& name, DType found, const std::vector<int64_t>& found_shape, DType wanted,
                const std::vector<int64_t>& wanted_shape) {
  if (found == wanted && found_shape == wanted_shape) return;
  fail(ErrorCode::kBadInput, path, ": tensor ", quote_text(name), " is ", dtype_name(found), " ", shape_text(found_shape),
       ", and the model's is ", dtype_name(wanted), " ", shape_text(wanted_shape), "; it was trained by another model, or on other data");
}

}  // namespace

TrainedFile TrainedFile::open(const std::string& path, const std::string& which) {
  TrainedFile file;
  file.given_ = path;
  if (is_exported_file(path)) {
    if (which != "latest")
      fail(ErrorCode::kBadInput, name_settings("--checkpoint "), which, ": ", path,
           name_settings(" is one exported model; give its run folder, or leave --checkpoint out"));
    file.path_ = path;
    file.open_exported();
  } else {
    file.take(std::make_shared<const Checkpoint>(open_chosen(path, which)));
  }
  file.config_.run.clear();
  return file;
}

TrainedFile TrainedFile::of(const Checkpoint& checkpoint) {
  TrainedFile file;
  file.given_ = checkpoint.path();
  file.take(std::shared_ptr<const Checkpoint>(&checkpoint, [](const Checkpoint*) {}));
  file.config_.run.clear();
  return file;
}

void TrainedFile::take(std::shared_ptr<const Checkpoint> checkpoint) {
  checkpoint_ = std::move(checkpoint);
  path_ = checkpoint_->path();
  step_ = checkpoint_->step();
  const Json& state = checkpoint_->state();
  const Json config = member(state, "config"), extra = member(state, "extra");
  set_evaluation(member(extra, "evaluation"));
  if (const Json fingerprint = member(member(state, "identity"), "data"); fingerprint.is_string())
    fingerprint_ = fingerprint.get<std::string>();
  if (const Json last = member(member(extra, "evaluations"), "last"); member(last, "step") == Json(step_)) {
    val_loss_ = number_of(member(last, "val_loss"));
    val_error_ = number_of(member(last, "val_error"));
  }
  if (!config.is_string())
    fail(ErrorCode::kBadInput, path_,
         ": its state has no text \"config\", so nobody can say which model this is; it was not written by cohort train");
  read_config_text(config.get<std::string>(), path_ + "/manifest.json, \"config\"", config_);
  const std::string data = run_folder_of(path_) + "/" + kDataFile;
  if (std::error_code ignored; fs::exists(data, ignored)) description_ = read_description(data);
}

void TrainedFile::open_exported() {
  exported_ = std::make_shared<const SafetensorsFile>(path_);
  check_tensors(*exported_, path_);
  const std::map<std::string, std::string>& metadata = exported_->metadata();
  const auto parsed = [&](const char* key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? Json() : parse_strict_ordered_json(found->second, {.path = concat(path_, ", \"", key, "\"")});
  };
  for (const char* key : {exported::kStep, exported::kModel, exported::kConfig, exported::kData})
    if (!metadata.contains(key))
      fail(ErrorCode::kBadInput, path_, ": its header has no \"", key,
           "\", so nobody can say which model this is; write it with `cohort checkpoint export` of this version");
  const std::optional<int64_t> step = parse_integer(metadata.at(exported::kStep));
  if (!step || *step < 0)
    fail(ErrorCode::kBadInput, path_, ": \"step\" of its header is ", quote_text(metadata.at(exported::kStep)), ", no number of a step");
  step_ = *step;
  read_config_text(metadata.at(exported::kConfig), path_ + ", \"config\"", config_);
  config_.model = metadata.at(exported::kModel);
  set_evaluation(parsed(exported::kEvaluation));
  if (const auto found = metadata.find(exported::kFingerprint); found != metadata.end()) fingerprint_ = found->second;
  val_loss_ = number_of(parsed(exported::kValLoss));
  val_error_ = number_of(parsed(exported::kValError));
  if (const auto found = metadata.find(exported::kCompressed); found != metadata.end()) {
    const std::string place = concat(path_, ", \"", exported::kCompressed, "\"");
    compressed_ =
        std::make_shared<const CompressedForm>(compressed_form_from_json(parse_strict_ordered_json(found->second, {.path = place}), place));
  }
  const std::string where = path_ + ", \"data\"";
  description_ = description_from_json(parse_strict_ordered_json(metadata.at(exported::kData), {.path = where}), where);
}

void TrainedFile::set_evaluation(const Json& evaluation) {
  evaluation_ = std::make_shared<const Json>(evaluation.is_object() ? evaluation : Json::object());
}

std::vector<std::string> TrainedFile::tensor_names() const {
  std::vector<std::string> names;
  if (exported_)
    for (const TensorView& tensor : exported_->tensors()) names.push_back(tensor.name);
  else
    for (const std::string& name : checkpoint_->tensor_names())
      if (name.starts_with(kPrefix)) names.push_back(name.substr(kPrefix.size()));
  std::sort(names.begin(), names.end());
  return names;
}

void TrainedFile::read(const std::string& name, DType dtype, const std::vector<int64_t>& shape, void* destination) const {
  const std::string stored = concat(kPrefix, name);
  const TensorView* const view = exported_ ? exported_->find(name) : nullptr;
  if (exported_ ? !view : !checkpoint_->has(stored))
    fail(ErrorCode::kBadInput, path_, " has no tensor ", quote_text(name), ", which model ", config_.model,
         " has; it was trained by another model");
  if (view) {
    check_form(path_, name, view->dtype, view->shape, dtype, shape);
    if (view->num_bytes() > 0) std::memcpy(destination, view->data, static_cast<size_t>(view->num_bytes()));
    return;
  }
  check_form(path_, name, checkpoint_->dtype(stored), checkpoint_->shape(stored), dtype, shape);
  checkpoint_->read_whole(stored, destination);
}

}  // namespace cohort
