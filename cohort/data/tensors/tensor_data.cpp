// Arrays as samples: the first dimension of x counts them, the others are the input shape. Numbers are normalised by mean and deviation of
// the training part, per channel (the first dimension of a sample) if a sample has one or three dimensions, else over all, or as normalise=
// says. Bytes with one or three channels are pictures (scaled by 1 / 255), so that the trained model accepts picture files.
//
// Arrays stay in memory or mapped as they are; numbers are converted when read. Sums run sample by sample, so mean and deviation are
// bitwise independent of the number of ranks.

#include "cohort/data/tensors/tensor_data.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/safetensors.h"
#include "cohort/base/text/text.h"
#include "cohort/data/source/data_settings.h"
#include "cohort/data/source/split.h"
#include "cohort/data/table/table.h"
#include "cohort/data/tensors/npy.h"

namespace cohort {
namespace {

const std::vector<std::string> kSettings{"task", "classes", "normalise", "seed"};
constexpr int64_t kMaxClasses = 1 << 20, kMaxElements = int64_t{1} << 30;

/// An array that lives as long as `owner`.
struct Array {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const uint8_t* data = nullptr;
  std::shared_ptr<const void> owner;
  int64_t per_sample = 1;  // Numbers per sample.

  int64_t num_samples() const { return shape.front(); }
  double at(int64_t sample, int64_t element) const { return number_of(dtype, data, sample * per_sample + element); }
};

/// Error(kBadInput) for an array without samples.
Array array_of(std::string name, DType dtype, std::vector<int64_t> shape, const void* data, std::shared_ptr<const void> owner) {
  if (shape.empty() || shape.front() < 1)
    fail(ErrorCode::kBadInput, name, " has the shape ", shape_text(shape), ": expected samples in its first dimension");
  const int64_t per_sample = checked_num_elements(shape) / shape.front();
  if (per_sample < 1 || per_sample > kMaxElements)
    fail(ErrorCode::kBadInput, name, " has the shape ", shape_text(shape), ": expected samples of 1 to ", kMaxElements, " numbers");
  return {std::move(name), dtype, std::move(shape), static_cast<const uint8_t*>(data), std::move(owner), per_sample};
}

/// Inputs and targets of one part of the data.
struct Part {
  Array x, y;
};

Array npy_array(const std::string& path) {
  auto array = std::make_shared<NpyArray>(read_npy(path));
  return array_of(path, array->dtype, array->shape, array->data.data(), array);
}

Part npy_part(const std::string& folder) {
  const auto path = [&](const char* name) { return (std::filesystem::path(folder) / name).string(); };
  return {npy_array(path("x.npy")), npy_array(path("y.npy"))};
}

void check_part(const Part& part) {
  if (part.x.num_samples() != part.y.num_samples())
    fail(ErrorCode::kBadInput, part.x.name, " has ", part.x.num_samples(), " samples, and ", part.y.name, " ", part.y.num_samples());
  if (part.y.shape.size() > 2)
    fail(ErrorCode::kBadInput, part.y.name, " has the shape ", shape_text(part.y.shape),
         ": expected one number, or a row of them, a sample");
}

/// The factor from stored numbers to the unit of mean and deviation.
double unit_of(const DataDescription& description) { return description.input == DataDescription::Input::kPicture ? 1 / 255.0 : 1; }

class TensorSource : public DescribedSource {
 public:
  TensorSource(std::shared_ptr<const Part> part, DataDescription description, std::vector<int64_t> samples)
      : DescribedSource(std::move(description), std::move(samples)), part_(std::move(part)) {}

  void read(std::span<const int64_t> indices, Batch& batch) const override {
    resize_batch(batch, shape_, std::ssize(indices));
    const int64_t elements = shape_.input_elements(), outputs = shape_.num_classes;
    const auto groups = std::max<int64_t>(1, std::ssize(description_.mean));
    const double unit = unit_of(description_);
    float* out = batch.values.data();
    for (size_t i = 0; i < indices.size(); ++i) {
      const int64_t sample = sample_at(indices[i]);
      for (int64_t group = 0; group < groups; ++group) {
        const double mean = description_.mean_at(group), deviation = description_.deviation_at(group);
        for (int64_t at = group * (elements / groups); at < (group + 1) * (elements / groups); ++at)
          *out++ = static_cast<float>((part_->x.at(sample, at) * unit - mean) / deviation);
      }
      if (!shape_.has_numbers()) batch.targets[i] = static_cast<int64_t>(part_->y.at(sample, 0));
      for (int64_t k = 0; shape_.labels && k < outputs; ++k)
        batch.numbers[i * static_cast<size_t>(outputs) + static_cast<size_t>(k)] = static_cast<float>(part_->y.at(sample, k));
      for (int64_t k = 0; shape_.regression && k < outputs; ++k) {
        const DataTarget& target = description_.targets[static_cast<size_t>(k)];
        batch.numbers[i * static_cast<size_t>(outputs) + static_cast<size_t>(k)] =
            static_cast<float>((part_->y.at(sample, k) - target.mean) / target.deviation);
      }
    }
  }

 private:
  std::shared_ptr<const Part> part_;
};

/// Mean and deviation over samples and the elements [begin, end) of each.
MeanAndDeviation statistics_of(const Array& array, const std::vector<int64_t>& samples, int64_t begin, int64_t end, double unit) {
  const auto count = static_cast<double>(samples.size()) * static_cast<double>(end - begin);
  const MeanAndDeviation out = mean_and_deviation(count, [&](const auto& visit) {
    for (const int64_t sample : samples)
      for (int64_t at = begin; at < end; ++at) visit(array.at(sample, at) * unit);
  });
  if (!std::isfinite(out.mean) || !std::isfinite(out.deviation))
    fail(ErrorCode::kBadInput, array.name, " has numbers too large to be summed; divide them");
  return out;
}

/// Why the targets of a sample are invalid, or "".
std::string fault_of_targets(const Array& y, int64_t sample, const DataDescription& description) {
  if (description.regression) return "";
  for (int64_t k = 0; k < y.per_sample; ++k) {
    const double target = y.at(sample, k);
    if (description.labels && target != 0 && target != 1)
      return concat(y.name, ": sample ", sample, " has ", target, " for label ", k, ", expected 0 or 1");
    if (!description.labels && !(target >= 0 && target < static_cast<double>(description.num_outputs)))
      return concat(y.name, ": sample ", sample, " has the class ", target, ", expected 0 to ", description.num_outputs - 1);
  }
  return "";
}

/// Samples of a part with finite numbers and valid targets.
std::vector<int64_t> good_samples(const Part& part, const DataDescription& description, const DataOptions& options, SkippedData& skipped) {
  std::vector<int64_t> good;
  for (int64_t sample = 0; sample < part.x.num_samples(); ++sample) {
    std::string fault;
    for (const Array* array : {&part.x, &part.y})
      for (int64_t at = 0; at < array->per_sample && fault.empty() && is_float(array->dtype); ++at)
        if (!std::isfinite(array->at(sample, at))) fault = concat(array->name, ": sample ", sample, " is not finite at element ", at);
    if (fault.empty()) fault = fault_of_targets(part.y, sample, description);
    if (fault.empty()) {
      good.push_back(sample);
    } else if (options.skip_bad) {
      skipped.add(fault);
    } else {
      fail(ErrorCode::kBadInput, fault);
    }
  }
  if (good.empty()) fail(ErrorCode::kBadInput, part.x.name, " has no sample that can be used, of ", part.x.num_samples());
  return good;
}

/// The description without statistics of the training samples.
DataDescription form_of(const DataSettings& settings, const Part& part) {
  DataDescription made;
  made.shape.assign(part.x.shape.begin() + 1, part.x.shape.end());
  if (made.shape.empty()) made.shape = {1};
  const bool is_picture = part.x.dtype == DType::kU8 && made.shape.size() == 3 && (made.shape[0] == 1 || made.shape[0] == 3);
  made.input = is_picture ? DataDescription::Input::kPicture : DataDescription::Input::kTensor;
  const bool whole = !is_float(part.y.dtype);
  const std::string task = settings.one_of("task", {"classification", "regression", "labels"}, "");
  made.labels = task == "labels";
  made.regression = task.empty() ? !whole : task == "regression";
  if (!made.regression && !made.labels && !whole)
    settings.refuse("task=classification needs whole numbers, and ", part.y.name, " holds ", dtype_name(part.y.dtype));
  made.num_outputs = part.y.per_sample;
  if (made.regression || made.labels) {
    if (settings.has("classes"))
      settings.refuse("classes= is of a classification, and ", part.y.name, " holds ", made.labels ? "labels" : "numbers to predict");
    if (made.labels && made.num_outputs > kMaxClasses)
      fail(ErrorCode::kBadInput, part.y.name, " has the shape ", shape_text(part.y.shape), ": expected at most ", kMaxClasses,
           " labels a sample");
    return made;
  }
  if (made.num_outputs != 1)
    fail(ErrorCode::kBadInput, part.y.name, " has the shape ", shape_text(part.y.shape),
         ": expected one class a sample; columns of 0 and 1 are task=labels");
  double largest = 0;
  for (int64_t sample = 0; sample < part.y.num_samples(); ++sample) largest = std::max(largest, part.y.at(sample, 0));
  if (largest >= kMaxClasses)
    fail(ErrorCode::kBadInput, part.y.name, " has the class ", largest, ": expected at most ", kMaxClasses - 1, ", or task=regression");
  made.num_outputs = settings.integer("classes", std::max<int64_t>(2, static_cast<int64_t>(largest) + 1), 2, kMaxClasses);
  return made;
}

void add_statistics(DataDescription& made, const DataSettings& settings, const Part& part, const std::vector<int64_t>& train,
                    const DataDescription* kept) {
  const bool by_channel = made.shape.size() == 1 || made.shape.size() == 3;
  const std::string how = settings.one_of("normalise", {"channel", "all", "none"}, by_channel ? "channel" : "all");
  const int64_t groups = how == "none" ? 0 : how == "all" ? 1 : made.shape[0], elements = part.x.per_sample;
  const bool knows = kept && kept->shape == made.shape && std::ssize(kept->mean) == groups && kept->regression == made.regression &&
                     kept->labels == made.labels && kept->num_outputs == made.num_outputs && kept->input == made.input;
  if (knows) {
    made.mean = kept->mean, made.deviation = kept->deviation, made.targets = kept->targets;
    return;
  }
  for (int64_t group = 0; group < groups; ++group) {
    const MeanAndDeviation found = statistics_of(part.x, train, group * elements / groups, (group + 1) * elements / groups, unit_of(made));
    made.mean.push_back(found.mean), made.deviation.push_back(found.deviation);
  }
  for (int64_t k = 0; made.regression && k < made.num_outputs; ++k) {
    const MeanAndDeviation found = statistics_of(part.y, train, k, k + 1, 1);
    made.targets.push_back({made.num_outputs == 1 ? "y" : concat("y", k), found.mean, found.deviation});
  }
}

struct Parts {
  std::shared_ptr<const Part> train, validation, test;  // `validation` and `test` may be null.
  std::string where;                                    // Location of `validation` in errors.
};

DataSet open_parts(const DataSettings& settings, const Parts& parts, const DataOptions& options) {
  DataSet data;
  for (const auto& part : {parts.train, parts.validation, parts.test}) {
    if (!part) continue;
    check_part(*part);
    const Part& first = *parts.train;
    for (const auto& [mine, its] : {std::pair{&part->x, &first.x}, std::pair{&part->y, &first.y}})
      if (mine->dtype != its->dtype || !std::equal(mine->shape.begin() + 1, mine->shape.end(), its->shape.begin() + 1, its->shape.end()))
        fail(ErrorCode::kBadInput, mine->name, " holds ", shape_text(mine->shape), " of ", dtype_name(mine->dtype), ", and ", its->name,
             " ", shape_text(its->shape), " of ", dtype_name(its->dtype), ": expected samples alike");
  }
  DataDescription description = form_of(settings, *parts.train);
  std::vector<int64_t> train = good_samples(*parts.train, description, options, data.skipped), validation;
  const uint64_t seed = seed_of_split(settings, options, parts.validation != nullptr, parts.where);
  if (parts.validation) {
    validation = good_samples(*parts.validation, description, options, data.skipped);
  } else {
    const SplitSamples split = split_by_seed(settings.path(), std::ssize(train), options, seed);
    for (const int64_t at : split.validation) validation.push_back(train[static_cast<size_t>(at)]);
    std::vector<int64_t> left;
    for (const int64_t at : split.train) left.push_back(train[static_cast<size_t>(at)]);
    train = std::move(left);
  }
  add_statistics(description, settings, *parts.train, train, options.kept.get());
  data.train = std::make_shared<TensorSource>(parts.train, description, std::move(train));
  data.validation = std::make_shared<TensorSource>(parts.validation ? parts.validation : parts.train, description, std::move(validation));
  if (parts.test)
    data.test = std::make_shared<TensorSource>(parts.test, description, good_samples(*parts.test, description, options, data.skipped));
  return data;
}

}  // namespace

DataSet open_npy(const std::string& argument, const DataOptions& options) {
  const DataSettings settings("npy", argument, kSettings);
  const std::filesystem::path folder = settings.path();
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error))
    fail(ErrorCode::kBadInput, "no folder ", folder.string(), ": expected one with x.npy and y.npy");
  const auto has = [&](const char* name) { return std::filesystem::exists(folder / name, error); };
  const auto part = [&](const char* name) { return std::make_shared<const Part>(npy_part((folder / name).string())); };
  Parts parts{.where = (folder / "val").string()};
  if (has("train") && has("x.npy"))
    fail(ErrorCode::kBadInput, folder.string(), " has x.npy and also a folder train: expected one of the two");
  parts.train = has("train") ? part("train") : std::make_shared<const Part>(npy_part(folder.string()));
  if (has("val")) parts.validation = part("val");
  if (has("test")) parts.test = part("test");
  return open_parts(settings, parts, options);
}

DataSet open_safetensors(const std::string& argument, const DataOptions& options) {
  std::vector<std::string> known{"x", "y"};
  known.insert(known.end(), kSettings.begin(), kSettings.end());
  const DataSettings settings("safetensors", argument, known);
  const auto file = std::make_shared<const SafetensorsFile>(settings.path());
  const std::string x = settings.text("x", "x"), y = settings.text("y", "y");
  const auto array = [&](const std::string& name) -> Array {
    const TensorView* tensor = file->find(name);
    std::vector<std::string> names;
    for (const TensorView& each : file->tensors()) names.push_back(each.name);
    if (!tensor)
      fail(ErrorCode::kBadInput, settings.path(), " has no tensor '", printable(name), "'", did_you_mean(name, names), ": expected ", x,
           " and ", y, ", or x=NAME,y=NAME");
    return array_of(settings.path() + ": " + name, tensor->dtype, tensor->shape, tensor->data, file);
  };
  const auto part = [&](const std::string& suffix) -> std::shared_ptr<const Part> {
    if (!suffix.empty() && !file->find(x + suffix) && !file->find(y + suffix)) return nullptr;
    return std::make_shared<const Part>(Part{array(x + suffix), array(y + suffix)});
  };
  return open_parts(settings, {part(""), part("_val"), part("_test"), x + "_val"}, options);
}

DataSet open_arrays(NamedArray x, NamedArray y, const std::string& settings, const DataOptions& options) {
  const auto array = [](NamedArray& named) {
    return array_of(std::move(named.name), named.dtype, std::move(named.shape), named.data, std::move(named.owner));
  };
  const DataSettings read("tensor_data", settings.empty() ? "memory" : "memory," + settings, kSettings);
  return open_parts(read, {.train = std::make_shared<const Part>(Part{array(x), array(y)})}, options);
}

}  // namespace cohort
