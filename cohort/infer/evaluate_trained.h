#pragma once
// A trained model on samples, with the sums that the training made: of one checkpoint loss and error are those that it printed. Torch-free.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/data/source/source.h"
#include "cohort/infer/trained_file.h"
#include "cohort/record/evaluation.h"

namespace cohort {

struct TrainedEvaluation {
  Evaluation found;           ///< With confusion counts where the samples have classes.
  bool has_own_loss = false;  ///< Of the model; else the cross-entropy.
};

/// `metrics`: as --metrics of the training names them. `threads`: of LibTorch; 0: as many as a rank of the training had, so that the same
/// kernels add in the same order. Error(kBadInput) as restore_model() has it.
TrainedEvaluation evaluate_trained(const TrainedFile& file, const DataDescription& trained, const DataSource& source, int threads,
                                   const std::string& metrics = "");

class LayerGraph;
/// The same sums of `model`, which was made of the file, on as many threads as LibTorch has now.
TrainedEvaluation evaluate_restored(const TrainedFile& file, LayerGraph& model, const DataSource& source, const std::string& metrics = "");
/// Threads of LibTorch as evaluate_trained() sets them.
void use_threads_of_training(const TrainedFile& file, int threads);

// What an evaluation found, class by class, as a person reads it.

struct ClassResult {
  std::string name;
  int64_t samples = 0;        ///< That are of the class,
  int64_t right = 0;          ///< that were taken for it and are,
  int64_t taken_for = 0;      ///< and that were taken for it.
  std::string confused_with;  ///< The class that its samples were most often taken for instead; "" for none.
  int64_t num_confused = 0;
};

/// Of an evaluation with confusion counts; classes without a name are called by their number.
std::vector<ClassResult> class_results(const Evaluation& evaluation, const std::vector<std::string>& class_names);

/// A line a class: how many of its samples were right, how many of those taken for it are, and what they are taken for instead.
std::string class_table(const std::vector<ClassResult>& classes);
/// Rows are true classes, columns what they were taken for; "" for more classes than fit on a terminal.
std::string confusion_table(const Evaluation& evaluation, const std::vector<ClassResult>& classes);

}  // namespace cohort
