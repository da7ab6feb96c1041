// Flat weights, and the snapshot of a trial.
//
// Tensors of a snapshot: "weights" and "slot0", "slot1" (flat arrays), "updates" (a count per parameter), "buffer/NAME", "steps" and
// "values" (the measurements). Metadata: version, trial, step, seconds, and a checksum over all data in the order of writing.
#include "cohort/trials/trial_weights.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/safetensors.h"
#include "cohort/base/random.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/common/parameters.h"

namespace cohort {
namespace {

/// Elements per cache line. A matrix that is aligned to it multiplies as fast, and with the same bits, as in memory of its own.
constexpr int64_t kAlignment = 16;

int64_t aligned(int64_t count) { return (count + kAlignment - 1) / kAlignment * kAlignment; }

using Pointers = std::array<float*, 2>;

Pointers pointers_at(const std::vector<at::Tensor>& slots, size_t num_slots, int64_t offset) {
  Pointers pointers{};
  for (size_t i = 0; i < num_slots; ++i) pointers[i] = slots[i].mutable_data_ptr<float>() + offset;
  return pointers;
}

}  // namespace

void TrialWeights::adopt(const LayerGraph& model, const UpdateRule& rule, double average_decay) {
  const at::NoGradGuard no_grad;
  rule_ = rule;
  average_decay_ = average_decay;
  segments_.clear();
  int64_t size = 0;
  for (const NamedTensor& parameter : distinct_parameters(model)) {
    const at::Tensor& tensor = parameter.tensor;
    if (!tensor.requires_grad()) continue;
    if (tensor.scalar_type() != at::kFloat || !tensor.is_cpu() || tensor.is_sparse())
      fail(ErrorCode::kBadInput, "parameter ", parameter.name, ": trials train dense fp32 parameters on the CPU, this one is ",
           tensor.toString());
    segments_.push_back({parameter.name, tensor, size, tensor.numel()});
    size += aligned(tensor.numel());
  }
  if (segments_.empty()) fail(ErrorCode::kBadInput, "the model has no parameters to train");
  if (this->size() != size) weights_ = at::zeros({size}, at::kFloat);
  const size_t num_slots = rule.slots().size() + (average_decay > 0 ? 1 : 0);
  if (slots_.size() != num_slots || (num_slots > 0 && slots_[0].numel() != size)) {
    slots_.clear();
    for (size_t i = 0; i < num_slots; ++i) slots_.push_back(at::zeros({size}, at::kFloat));
  } else {
    for (const at::Tensor& slot : slots_) slot.zero_();
  }
  for (Segment& segment : segments_) {
    const at::Tensor view = weights_.narrow(0, segment.offset, segment.count).view(segment.parameter.sizes());
    view.copy_(segment.parameter);
    segment.parameter.set_data(view);
  }
  if (has_average()) slots_.back().copy_(weights_);
}

void TrialWeights::update(Segment& segment, double learning_rate, const float* gradient) {
  const Pointers slots = pointers_at(slots_, num_slots(), segment.offset);
  cohort::update(rule_, {.learning_rate = learning_rate, .num_updates = ++segment.num_updates},
                 weights_.mutable_data_ptr<float>() + segment.offset, gradient, slots.data(), static_cast<size_t>(segment.count));
}

void TrialWeights::update_all(double learning_rate, const float* gradient) {
  for (Segment& segment : segments_) ++segment.num_updates;
  const Pointers slots = pointers_at(slots_, num_slots(), 0);
  cohort::update(rule_, {.learning_rate = learning_rate, .num_updates = segments_.front().num_updates}, weights_.mutable_data_ptr<float>(),
                 gradient, slots.data(), static_cast<size_t>(size()));
}

void TrialWeights::update_average() {
  if (!has_average()) return;
  const float* const weights = weights_.const_data_ptr<float>();
  float* const average = slots_.back().mutable_data_ptr<float>();
  const auto part = static_cast<float>(1 - average_decay_);
  for (int64_t i = 0; i < size(); ++i) average[i] += part * (weights[i] - average[i]);
}

void TrialWeights::swap_average() {
  float* const weights = weights_.mutable_data_ptr<float>();
  std::swap_ranges(weights, weights + size(), slots_.back().mutable_data_ptr<float>());
}

namespace {

const char* const kVersion = "1";
constexpr int64_t kNumValues = study::kNumMetrics;

uint64_t hash_bytes(uint64_t hash, const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (; size > 0;) {
    uint64_t word = 0;
    const size_t part = std::min(size, sizeof word);
    std::memcpy(&word, bytes, part);
    hash = mix64(hash ^ word);
    bytes += part;
    size -= part;
  }
  return hash;
}

/// Measurements and update counts as arrays.
struct Tables {
  std::vector<int64_t> updates, steps;
  std::vector<double> values;
};

Tables tables_of(const TrialProgress& progress, const TrialWeights& weights) {
  Tables tables;
  for (const TrialWeights::Segment& segment : weights.segments()) tables.updates.push_back(segment.num_updates);
  for (const study::Measurement& measurement : progress.measurements) {
    tables.steps.push_back(measurement.step);
    tables.values.insert(tables.values.end(), measurement.values.begin(), measurement.values.end());
  }
  return tables;
}

/// Views of all tensors of a snapshot in memory: the content to write, or the destinations of a read.
std::vector<TensorView> views_of(const TrialWeights& weights, const std::vector<NamedTensor>& buffers, const Tables& tables) {
  std::vector<TensorView> views = {{"weights", DType::kF32, {weights.size()}, weights.weights().const_data_ptr()}};
  for (size_t i = 0; i < weights.slots().size(); ++i)
    views.push_back({concat("slot", i), DType::kF32, {weights.size()}, weights.slots()[i].const_data_ptr()});
  for (const NamedTensor& buffer : buffers)
    views.push_back({"buffer/" + buffer.name, DType::kF32, buffer.tensor.sizes().vec(), buffer.tensor.const_data_ptr()});
  views.push_back({"updates", DType::kI64, {std::ssize(tables.updates)}, tables.updates.data()});
  views.push_back({"steps", DType::kI64, {std::ssize(tables.steps)}, tables.steps.data()});
  views.push_back({"values", DType::kF64, {std::ssize(tables.steps), kNumValues}, tables.values.data()});
  return views;
}

std::string checksum_of(const std::vector<TensorView>& views) {
  uint64_t hash = 0;
  for (const TensorView& view : views) hash = hash_bytes(hash, view.data, static_cast<size_t>(view.num_bytes()));
  return concat(hash);
}

const std::string& metadata(const SafetensorsFile& file, const std::string& name) {
  static const std::string none;
  const auto found = file.metadata().find(name);
  return found == file.metadata().end() ? none : found->second;
}

/// Checks all tensors before it changes anything.
void read(const SafetensorsFile& file, TrialProgress& progress, TrialWeights& weights, const std::vector<NamedTensor>& buffers) {
  const TensorView* const steps = file.find("steps");
  const std::optional<int64_t> step = parse_integer(metadata(file, "step"));
  if (!steps || steps->dtype != DType::kI64 || !step) fail(ErrorCode::kBadInput, "it has no steps");
  Tables tables = tables_of({}, weights);
  tables.steps.resize(static_cast<size_t>(steps->num_elements()));
  tables.values.resize(tables.steps.size() * static_cast<size_t>(kNumValues));
  const std::vector<TensorView> places = views_of(weights, buffers, tables);
  std::vector<TensorView> found;
  for (const TensorView& place : places) {
    const TensorView* const tensor = file.find(place.name);
    if (!tensor || tensor->dtype != place.dtype || tensor->shape != place.shape)
      fail(ErrorCode::kBadInput, "its tensor ", place.name, " is missing or of another shape than ", shape_text(place.shape));
    found.push_back(*tensor);
  }
  if (checksum_of(found) != metadata(file, "checksum")) fail(ErrorCode::kBadInput, "its checksum is wrong");
  for (size_t i = 0; i < places.size(); ++i)
    std::memcpy(const_cast<void*>(places[i].data), found[i].data, static_cast<size_t>(found[i].num_bytes()));
  for (size_t i = 0; i < tables.updates.size(); ++i) weights.segments()[i].num_updates = tables.updates[i];
  const double seconds = parse_number(metadata(file, "seconds")).value_or(0);
  progress = {.step = *step, .seconds = std::isfinite(seconds) ? std::max(0.0, seconds) : 0};
  for (size_t i = 0; i < tables.steps.size(); ++i) {
    study::Measurement measurement;
    measurement.step = tables.steps[i];
    std::copy_n(tables.values.begin() + static_cast<std::ptrdiff_t>(i) * kNumValues, kNumValues, measurement.values.begin());
    progress.measurements.push_back(measurement);
  }
}

}  // namespace

void save_trial_snapshot(const std::string& path, const std::string& trial, const TrialProgress& progress, const TrialWeights& weights,
                         const std::vector<NamedTensor>& buffers) {
  const Tables tables = tables_of(progress, weights);
  const std::vector<TensorView> views = views_of(weights, buffers, tables);
  std::string content;
  write_safetensors([&](const void* data, size_t size) { content.append(static_cast<const char*>(data), size); }, path, views,
                    {{"version", kVersion},
                     {"trial", trial},
                     {"step", concat(progress.step)},
                     {"seconds", std::to_string(progress.seconds)},
                     {"checksum", checksum_of(views)}});
  write_file_atomically(path, content);
}

bool load_trial_snapshot(const std::string& path, const std::string& trial, TrialProgress& progress, TrialWeights& weights,
                         const std::vector<NamedTensor>& buffers) {
  if (!std::filesystem::exists(path)) return false;
  try {
    const SafetensorsFile file(path);
    if (metadata(file, "version") != kVersion) fail(ErrorCode::kBadInput, "it is not a snapshot of this version");
    if (metadata(file, "trial") != trial) fail(ErrorCode::kBadInput, "it belongs to another trial: ", printable(metadata(file, "trial")));
    read(file, progress, weights, buffers);
    return true;
  } catch (const Error& error) {
    log_warning(concat("the snapshot ", path, " cannot be used: ", error.what(), "; the trial starts over"));
    return false;
  }
}

}  // namespace cohort
