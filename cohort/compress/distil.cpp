#include "cohort/compress/distil.h"

#include <filesystem>
#include <memory>

#include "cohort/compress/compressed_file.h"
#include "cohort/compress/measured_model.h"
#include "cohort/infer/evaluate_trained.h"
#include "cohort/infer/restore.h"
#include "cohort/infer/trained_file.h"

namespace cohort {
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
