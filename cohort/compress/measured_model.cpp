#include "cohort/compress/measured_model.h"

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/util/Logging.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <malloc.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "cohort/base/clock.h"
#include "cohort/base/statistics.h"
#include "cohort/base/system/instruction_count.h"
#include "cohort/compress/compressed_parts.h"
#include "cohort/infer/evaluate_trained.h"
#include "cohort/infer/restore.h"
#include "cohort/infer/trained_file.h"
#include "cohort/train/model/batch_tensors.h"

namespace cohort {
namespace {

class OneThread {
 public:
  OneThread() : before_(at::get_num_threads()) { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

double seconds_of(LayerGraph& model, const at::Tensor& input) {
  const double start = steady_seconds();
  model.forward(input);
  return steady_seconds() - start;
}

struct Medians {
  double original_seconds = 0, compressed_seconds = 0;
};

/// A few forwards of each in turn: whatever else runs on the machine meets both, and one does not find the caches full of the other.
Medians measure_in_turn(LayerGraph& original, LayerGraph& compressed, const at::Tensor& input) {
  constexpr int kWarmUp = 3, kFewest = 2, kMost = 38, kInTurn = 8;
  constexpr double kSeconds = 1;
  double once = 0;
  for (int i = 0; i < kWarmUp; ++i) once = seconds_of(original, input) + seconds_of(compressed, input);
  const int rounds = std::clamp(static_cast<int>(kSeconds / std::max(once * kInTurn, 1e-9)), kFewest, kMost);
  std::vector<double> of_original, of_compressed;
  for (int round = 0; round < rounds; ++round) {
    for (int i = 0; i < kInTurn; ++i) of_original.push_back(seconds_of(original, input));
    for (int i = 0; i < kInTurn; ++i) of_compressed.push_back(seconds_of(compressed, input));
  }
  return {median(of_original), median(of_compressed)};
}

/// Of a forward that is not the first.
std::optional<int64_t> instructions_of(LayerGraph& model, const at::Tensor& input) {
  const InstructionCount count;
  const std::optional<int64_t> before = count.read();
  model.forward(input);
  const std::optional<int64_t> after = count.read();
  return before && after ? std::optional(*after - *before) : std::nullopt;
}

/// Bytes that LibTorch's CPU allocator has given to this thread and not got back, and the most so far.
class TensorMemory : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t alloc_size, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    held_ += alloc_size;
    most_ = std::max(most_, held_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t most() const { return most_; }

 private:
  int64_t held_ = 0, most_ = 0;
};

/// LibTorch warns of what was allocated before it counts, which is all of the model here.
class QuietLibrary {
 public:
  QuietLibrary() { FLAGS_caffe2_log_level = 2; }
  ~QuietLibrary() { FLAGS_caffe2_log_level = before_; }
  QuietLibrary(const QuietLibrary&) = delete;
  QuietLibrary& operator=(const QuietLibrary&) = delete;

 private:
  const int before_ = FLAGS_caffe2_log_level;
};

/// The C library's, all arenas: packed weights of int8 kernels are not LibTorch's allocator's.
int64_t heap_bytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

int64_t memory_of(const TrainedFile& file, const at::Tensor& sample) {
  const DataShape shape = shape_of(description_of(file));
  const int64_t before = heap_bytes();
  const std::shared_ptr<LayerGraph> model = restore_model(file, shape);
  const int64_t held = std::max<int64_t>(0, heap_bytes() - before);
  const auto tensors = std::make_shared<TensorMemory>();
  const QuietLibrary quiet;
  const c10::DebugInfoGuard counts(c10::DebugInfoKind::PROFILER_STATE, tensors);
  model->forward(sample);
  return held + tensors->most();
}

}  // namespace

void measure_forwards(LayerGraph& original, LayerGraph& compressed, const DataSource& samples, CompressionResult& result) {
  at::NoGradGuard no_grad;
  const OneThread one_thread;
  const at::Tensor one = input_batch(samples, 0, 1);
  const Medians of_one = measure_in_turn(original, compressed, one);
  const Medians of_many = measure_in_turn(original, compressed, input_batch(samples, 0, 64));
  result.original.seconds_batch_1 = of_one.original_seconds, result.compressed.seconds_batch_1 = of_one.compressed_seconds;
  result.original.seconds_batch_64 = of_many.original_seconds, result.compressed.seconds_batch_64 = of_many.compressed_seconds;
  result.original.instructions = instructions_of(original, one), result.compressed.instructions = instructions_of(compressed, one);
}

void measure_memory(const TrainedFile& original, const TrainedFile& compressed, const DataSource& samples, CompressionResult& result) {
  at::NoGradGuard no_grad;
  const OneThread one_thread;
  const at::Tensor sample = input_batch(samples, 0, 1);
  result.original.memory_bytes = memory_of(original, sample);
  result.compressed.memory_bytes = memory_of(compressed, sample);
}

namespace {

struct Restored {
  std::shared_ptr<LayerGraph> model;
  std::shared_ptr<const DataSource> validation;
};

Restored measure(const TrainedFile& file, const std::shared_ptr<const DataSource>& validation, int threads, MeasuredModel& out) {
  const DataDescription trained = description_of(file);
  Restored restored{restore_model(file, shape_of(trained)), as_trained(trained, validation)};
  use_threads_of_training(file, threads);
  const TrainedEvaluation found = evaluate_restored(file, *restored.model, *restored.validation);
  out.loss = found.found.loss;
  out.error = found.found.error;
  // Of a run what `checkpoint export` would write.
  out.bytes = file.is_exported() ? static_cast<int64_t>(std::filesystem::file_size(file.path()))
                                 : bytes_of_export(*restored.model, metadata_of_export(file));
  return restored;
}

}  // namespace

CompressionResult compare_with_teacher(const TrainedFile& teacher, const TrainedFile& student,
                                       const std::shared_ptr<const DataSource>& validation, int threads) {
  CompressionResult result;
  result.original_name = "teacher";
  result.compressed_name = "student";
  result.step = student.step();
  result.validation_samples = validation->num_samples();
  const Restored of_teacher = measure(teacher, validation, threads, result.original);
  const Restored of_student = measure(student, validation, threads, result.compressed);
  measure_forwards(*of_teacher.model, *of_student.model, *of_student.validation, result);
  measure_memory(teacher, student, *of_student.validation, result);
  return result;
}

}  // namespace cohort
