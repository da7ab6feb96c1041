#include "cohort/infer/trained_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/checkpoint/model_file.h"
#include "cohort/checkpoint/names.h"
#include "cohort/checkpoint/retention.h"
#include "cohort/data/source/description_json.h"
#include "cohort/version.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "model/";

/// The run folder DIR of DIR/checkpoints/step-N.
std::string run_folder_of(const std::string& step_folder) { return fs::path(step_folder).parent_path().parent_path().string(); }

/// Null where the member is missing or `json` is not an object.
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
    file.take(std::make_shared<const Checkpoint>(open_selected_checkpoint(path, which)));
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
    fail(ErrorCode::kBadInput, path_, ": its state has no text \"config\", so its model is unknown; it was not written by cohort train");
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
           "\", so its model is unknown; write it with `cohort checkpoint export` of this version");
  const std::optional<int64_t> step = parse_integer(metadata.at(exported::kStep));
  if (!step || *step < 0)
    fail(ErrorCode::kBadInput, path_, ": \"step\" of its header is ", quote_text(metadata.at(exported::kStep)), ", not a step number");
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

namespace {

/// The samples of one source followed by those of another.
class JoinedSources : public DataSource {
 public:
  JoinedSources(std::shared_ptr<const DataSource> first, std::shared_ptr<const DataSource> second)
      : first_(std::move(first)), second_(std::move(second)) {}

  const DataShape& shape() const override { return first_->shape(); }
  int64_t num_samples() const override { return first_->num_samples() + second_->num_samples(); }
  void read(std::span<const int64_t> indices, Batch& batch) const override {
    const int64_t border = first_->num_samples();
    std::vector<int64_t> of_first, of_second;
    for (const int64_t index : indices) (index < border ? of_first : of_second).push_back(index < border ? index : index - border);
    if (of_second.empty()) return first_->read(of_first, batch);
    second_->read(of_second, batch);
    if (of_first.empty()) return;
    // Indices ascend, so samples of the first source precede the others.
    Batch head;
    first_->read(of_first, head);
    const auto put_before = [](auto& values, const auto& before) { values.insert(values.begin(), before.begin(), before.end()); };
    put_before(batch.values, head.values);
    put_before(batch.tokens, head.tokens);
    put_before(batch.targets, head.targets);
    put_before(batch.numbers, head.numbers);
    batch.num_samples += head.num_samples;
  }
  DataDescription describe() const override { return first_->describe(); }

 private:
  std::shared_ptr<const DataSource> first_, second_;
};

std::vector<ValueScale> scales_of_targets(const DataDescription& data) {
  std::vector<ValueScale> scales;
  for (const DataTarget& target : data.targets) scales.push_back({target.mean, target.deviation});
  return scales;
}

class Renormalised : public DataSource {
 public:
  Renormalised(const DataDescription& trained, std::shared_ptr<const DataSource> own)
      : trained_(trained), own_(std::move(own)), to_(value_scales(trained)), to_targets_(scales_of_targets(trained)) {
    from_ = value_scales(own_->describe());
    from_targets_ = scales_of_targets(own_->describe());
  }

  const DataShape& shape() const override { return own_->shape(); }
  int64_t num_samples() const override { return own_->num_samples(); }
  void read(std::span<const int64_t> indices, Batch& batch) const override {
    own_->read(indices, batch);
    rescale(batch.values, from_, to_);
    rescale(batch.numbers, from_targets_, to_targets_);
  }
  DataDescription describe() const override { return trained_; }

 private:
  static void rescale(std::vector<float>& values, const std::vector<ValueScale>& from, const std::vector<ValueScale>& to) {
    if (from.empty()) return;  // Labels have no scale.
    for (size_t i = 0; i < values.size(); ++i) {
      const ValueScale &own = from[i % from.size()], &wanted = to[i % to.size()];
      if (own != wanted) values[i] = static_cast<float>((values[i] * own.deviation + own.mean - wanted.mean) / wanted.deviation);
    }
  }

  DataDescription trained_;
  std::shared_ptr<const DataSource> own_;
  std::vector<ValueScale> from_, to_, from_targets_, to_targets_;
};

std::string name_of_class(const DataDescription& data, size_t label) {
  return label < data.class_names.size() ? quote_text(data.class_names[label]) : std::to_string(label);
}

}  // namespace

std::vector<ValueScale> value_scales(const DataDescription& data) {
  std::vector<ValueScale> scales;
  if (data.input == DataDescription::Input::kRow) {
    for (const DataColumn& column : data.columns)
      if (column.is_category) scales.resize(scales.size() + static_cast<size_t>(column.width()));
      else scales.push_back({column.mean, column.deviation});
    return scales;
  }
  size_t elements = 1;
  for (const int64_t size : data.shape) elements *= static_cast<size_t>(size);
  scales.resize(elements);
  const size_t groups = data.mean.size();
  for (size_t i = 0; i < elements && groups > 0; ++i)
    scales[i] = {data.mean[i / (elements / groups)], data.deviation[i / (elements / groups)]};
  return scales;
}

DataShape shape_of(const DataDescription& description) {
  DataShape shape;
  shape.kind = description.input == DataDescription::Input::kText ? DataShape::Kind::kText : DataShape::Kind::kImage;
  shape.input = description.shape;
  shape.num_classes = description.num_outputs;
  shape.class_names = description.class_names;
  shape.regression = description.regression;
  shape.labels = description.labels;
  return shape;
}

DataDescription description_of(const TrainedFile& file) {
  return file.description() ? *file.description() : open_data(file.config()).train->describe();
}

std::shared_ptr<const DataSource> part_of(const DataSet& data, const std::string& split) {
  const std::vector<std::string> names = {"train", "val", "test", "all"};
  if (std::find(names.begin(), names.end(), split) == names.end())
    fail(ErrorCode::kBadInput, "--split ", split, did_you_mean(split, names), ": expected one of ", join(names, " "));
  if (split == "test" && !data.test)
    fail(ErrorCode::kBadInput, "--split test: ", data.name, " has no test set; the parts that it has are train, val and all (both)");
  std::shared_ptr<const DataSource> part = split == "train" ? data.train : split == "val" ? data.validation : data.test;
  if (split == "all") part = std::make_shared<JoinedSources>(data.train, data.validation);
  if (!part || part->num_samples() == 0) fail(ErrorCode::kBadInput, "--split ", split, ": ", data.name, " has no sample in that part");
  return part;
}

void check_same_kind(const DataDescription& trained, const DataSet& data) {
  const DataDescription given = data.train->describe();
  const DataShape wanted = shape_of(trained), found = data.train->shape();
  const auto kind = [](const DataShape& shape) {
    return concat(shape.kind == DataShape::Kind::kText ? "text of " : "", shape_text(shape.input),
                  shape.kind == DataShape::Kind::kText ? shape.vocabulary() == 256 ? " bytes" : concat(" pieces of ", shape.vocabulary())
                  : shape.regression ? concat(", ", shape.num_classes, " numbers to predict")
                  : shape.labels                       ? concat(", ", shape.num_classes, " labels")
                                                       : concat(", ", shape.num_classes, " classes"));
  };
  if (wanted.kind != found.kind || wanted.input != found.input || wanted.num_classes != found.num_classes ||
      wanted.regression != found.regression || wanted.labels != found.labels)
    fail(ErrorCode::kBadInput, data.name, " has samples of ", kind(found), ", and the model was trained on ", kind(wanted),
         "; give data of that kind");
  if (trained.vocabulary && given.vocabulary && trained.vocabulary->merges() != given.vocabulary->merges())
    fail(ErrorCode::kBadInput, data.name, " has another vocabulary than the training, of the same size; give that of the training");
  for (size_t label = 0; label < std::min(trained.class_names.size(), given.class_names.size()); ++label)
    if (trained.class_names[label] != given.class_names[label])
      fail(ErrorCode::kBadInput, data.name, ": its class ", label, " is ", name_of_class(given, label), ", and that of the training was ",
           name_of_class(trained, label), "; the classes must be the same, in the same order");
  for (size_t i = 0; i < trained.columns.size(); ++i) {
    const DataColumn &wanted_column = trained.columns[i], *const found_column = i < given.columns.size() ? &given.columns[i] : nullptr;
    if (!found_column || found_column->name != wanted_column.name || found_column->is_category != wanted_column.is_category)
      fail(ErrorCode::kBadInput, data.name, " has no column ", quote_text(wanted_column.name), " at position ", i + 1,
           " of those that the model reads");
    if (found_column->values != wanted_column.values || found_column->one_hot != wanted_column.one_hot)
      fail(ErrorCode::kBadInput, data.name, ": the values of its column ", quote_text(wanted_column.name),
           " are not those of the training in the same order, so their codes differ");
  }
}

std::shared_ptr<const DataSource> with_training_normalisation(const DataDescription& trained,
                                                              const std::shared_ptr<const DataSource>& part) {
  const DataDescription own = part->describe();
  if (value_scales(own) == value_scales(trained) && scales_of_targets(own) == scales_of_targets(trained)) return part;
  return std::make_shared<Renormalised>(trained, part);
}

std::map<std::string, std::string> exported_metadata(const Checkpoint& checkpoint) {
  if (!checkpoint.state().is_object() || !checkpoint.state().contains("config")) return {};
  return exported_metadata(TrainedFile::of(checkpoint));
}

std::map<std::string, std::string> exported_metadata(const TrainedFile& file) {
  Config config = file.config();
  config.resume = false;  // A resumed run exports the same file.
  std::map<std::string, std::string> metadata = {{exported::kModel, file.config().model},
                                                 {exported::kConfig, to_toml(config)},
                                                 {exported::kPrecision, file.config().precision},
                                                 {exported::kVersion, COHORT_VERSION},
                                                 {exported::kEvaluation, file.evaluation().dump()}};
  try {
    metadata[exported::kData] = to_json(description_of(file)).dump();
  } catch (const Error& error) {
    log_warning(
        concat("the file will lack the description of the training data, so cohort can only use it where these data are: ", error.what()));
  }
  if (!file.fingerprint().empty()) metadata[exported::kFingerprint] = file.fingerprint();
  if (file.val_loss()) metadata[exported::kValLoss] = Json(*file.val_loss()).dump();
  if (file.val_error()) metadata[exported::kValError] = Json(*file.val_error()).dump();
  return metadata;
}

}  // namespace cohort
