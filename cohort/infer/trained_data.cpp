#include "cohort/infer/trained_data.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

/// One source after another.
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
    // Indices rise, so those of the first stand before the others.
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

using Scale = ValueScale;

std::vector<Scale> scales_of_targets(const DataDescription& data) {
  std::vector<Scale> scales;
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
  static void rescale(std::vector<float>& values, const std::vector<Scale>& from, const std::vector<Scale>& to) {
    if (from.empty()) return;  // Labels have no scale.
    for (size_t i = 0; i < values.size(); ++i) {
      const Scale &own = from[i % from.size()], &wanted = to[i % to.size()];
      if (own != wanted) values[i] = static_cast<float>((values[i] * own.deviation + own.mean - wanted.mean) / wanted.deviation);
    }
  }

  DataDescription trained_;
  std::shared_ptr<const DataSource> own_;
  std::vector<Scale> from_, to_, from_targets_, to_targets_;
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
    fail(ErrorCode::kBadInput, data.name,
         " has other pieces of words than the training, though as many; give the vocabulary of the training");
  for (size_t label = 0; label < std::min(trained.class_names.size(), given.class_names.size()); ++label)
    if (trained.class_names[label] != given.class_names[label])
      fail(ErrorCode::kBadInput, data.name, ": its class ", label, " is ", name_of_class(given, label), ", and that of the training was ",
           name_of_class(trained, label), "; the classes must be the same, in the same order");
  for (size_t i = 0; i < trained.columns.size(); ++i) {
    const DataColumn &wanted_column = trained.columns[i], *const found_column = i < given.columns.size() ? &given.columns[i] : nullptr;
    if (!found_column || found_column->name != wanted_column.name || found_column->is_category != wanted_column.is_category)
      fail(ErrorCode::kBadInput, data.name, " has no column ", quote_text(wanted_column.name), " at place ", i + 1,
           " of those that the model reads");
    if (found_column->values != wanted_column.values || found_column->one_hot != wanted_column.one_hot)
      fail(ErrorCode::kBadInput, data.name, ": the values of its column ", quote_text(wanted_column.name),
           " are not those of the training, in their order, so they have other numbers");
  }
}

std::shared_ptr<const DataSource> as_trained(const DataDescription& trained, const std::shared_ptr<const DataSource>& part) {
  const DataDescription own = part->describe();
  if (value_scales(own) == value_scales(trained) && scales_of_targets(own) == scales_of_targets(trained)) return part;
  return std::make_shared<Renormalised>(trained, part);
}

}  // namespace cohort
