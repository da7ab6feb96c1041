#pragma once
// Evaluating a trained model with the same sums as its training, so that loss and error of a checkpoint are those that the training
// printed; and tables of the result by class. Torch-free.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/data/source/source.h"
#include "cohort/infer/trained_file.h"
#include "cohort/record/evaluation.h"

namespace cohort {

struct TrainedEvaluation {
  Evaluation found;           ///< With a confusion matrix where the samples have classes.
  bool has_own_loss = false;  ///< The model's own loss, not the cross-entropy.
};

/// `metrics`: as --metrics of the training. `threads`: of LibTorch; 0: as many as a rank of the training had, so that the same kernels add
/// in the same order. Error(kBadInput) as in restore_model().
TrainedEvaluation evaluate_trained(const TrainedFile& file, const DataDescription& trained, const DataSource& source, int threads,
                                   const std::string& metrics = "");

/// evaluate_trained() for a model that was already restored from the file, with LibTorch's current number of threads.
TrainedEvaluation evaluate_restored(const TrainedFile& file, LayerGraph& model, const DataSource& source, const std::string& metrics = "");
/// Sets LibTorch's threads as evaluate_trained() does.
void use_threads_of_training(const TrainedFile& file, int threads);

struct ClassResult {
  std::string name;
  int64_t samples = 0;        ///< Samples of the class,
  int64_t right = 0;          ///< those of them that were recognised,
  int64_t taken_for = 0;      ///< and all samples that were taken for the class.
  std::string confused_with;  ///< The class that its samples were most often mistaken for; "" for none.
  int64_t num_confused = 0;
};

/// Of an evaluation with a confusion matrix; classes without a name get their number.
std::vector<ClassResult> class_results(const Evaluation& evaluation, const std::vector<std::string>& class_names);

/// One line a class: recall, precision, and the most frequent confusion.
std::string class_table(const std::vector<ClassResult>& classes);
/// Confusion matrix: rows are true classes, columns predictions; "" for more classes than fit on a terminal.
std::string confusion_table(const Evaluation& evaluation, const std::vector<ClassResult>& classes);

}  // namespace cohort
