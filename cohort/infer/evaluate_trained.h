#pragma once
// A trained model on samples, with the sums that the training made: of one checkpoint loss and error are those that it printed. Torch-free.

#include <cstdint>
#include <string>

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

}  // namespace cohort
