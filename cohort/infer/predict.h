#pragma once
// What a trained model says of inputs. Torch-free.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/infer/inputs.h"
#include "cohort/infer/trained_file.h"

namespace cohort {

struct LikelyClass {
  int64_t label = -1;  ///< Of text the next byte or piece.
  double probability = 0;
};

struct Prediction {
  std::vector<LikelyClass> classes;  ///< The likeliest first, of two alike the lower label; none of numbers and labels.
  std::vector<double> values;        ///< Of a regression: one a target, in the units of the data. Of labels: the probability of each.
};

/// One thread.
class Predictor {
 public:
  /// `threads` of LibTorch; 0: one a core. Errors as restore_model().
  Predictor(const TrainedFile& file, DataDescription description, int threads);
  ~Predictor();
  Predictor(const Predictor&) = delete;
  Predictor& operator=(const Predictor&) = delete;

  /// All of them go through the model at once; each answer has so many classes, or all where there are fewer. Error(kBadInput) for a model
  /// whose output is no answer to the data's question.
  std::vector<Prediction> predict(const std::vector<NamedInput>& inputs, int64_t num_classes = 1);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A class by its name, else its number; a byte, or a piece, as it is where it can be shown, else \xNN.
std::string class_name(const DataDescription& description, int64_t label);

}  // namespace cohort
