#pragma once
// Using a trained model on what a user brings: reading inputs as samples, predicting classes or values, and generating text. Torch-free.

#include <cstdint>
#include <functional>
#include <istream>
#include <memory>
#include <string>
#include <vector>

#include "cohort/data/encode_input.h"
#include "cohort/data/source/description.h"
#include "cohort/infer/trained_file.h"

namespace cohort {

struct NamedInput {
  std::string name = {};  ///< "a.png", "rows.csv:7" (the line), "digits.npy:3" (from 0).
  EncodedInput encoded = {};
  int64_t num_bytes = 0;  ///< For text: how many of the tokens it has.
};

/// Fills `input` with the next one and returns true; false at the end. Error(kBadInput) that names file and row or index for what is
/// missing, damaged, or not of the kind that the model was trained on.
using InputSource = std::function<bool(NamedInput& input)>;

/// All inputs that `words` name, encoded as the training encoded its samples. For one thread; `description` and `standard_input` must
/// outlive the source.
//
//   trained on   an INPUT is                                     "-": standard input has
//   pictures     a PNG or JPEG file, or an IDX file of many      names of such files, one a line
//   rows         a CSV file with a header                        the same
//   text         the text itself: the byte after it is predicted one text a line
//   tensors      an NPY file of one sample or many               one sample a line, numbers with commas or blanks between
InputSource open_inputs(const DataDescription& description, const std::vector<std::string>& words, std::istream& standard_input);

struct LikelyClass {
  int64_t label = -1;  ///< For text the next byte or token.
  double probability = 0;
};

struct Prediction {
  std::vector<LikelyClass> classes;  ///< Likeliest first, of equals the lower label; empty for regressions and labels.
  std::vector<double> values;        ///< Regression: one a target, in the units of the data. Labels: the probability of each.
};

/// For one thread.
class Predictor {
 public:
  /// `threads`: of LibTorch; 0: one a core. Errors as in restore_model().
  Predictor(const TrainedFile& file, DataDescription description, int threads);

  /// Runs all inputs through the model at once; each prediction has at most `num_classes` classes. Error(kBadInput) where the model's
  /// output does not fit the data's targets.
  std::vector<Prediction> predict(const std::vector<NamedInput>& inputs, int64_t num_classes = 1);

 private:
  DataDescription description_;
  std::shared_ptr<LayerGraph> model_;
};

/// Name of a class, else its number; a byte or token as it is where it can be shown, else \xNN.
std::string class_name(const DataDescription& description, int64_t label);

struct SampleRequest {
  std::string prompt;
  int64_t num_bytes = 400;
  double temperature = 0.8;  ///< 0: always the likeliest byte.
  int64_t top_k = 0;         ///< 0: all bytes.
  uint64_t seed = 1;
  int threads = 0;                         ///< 0: one a core.
  std::function<void(char)> written = {};  ///< Called with each byte when it is drawn.
};

/// The text after the prompt; the same bytes for the same request, whatever layout the training had. Error(kBadInput) for a model of
/// anything but text, and as in restore_model().
std::string sample_trained(const TrainedFile& file, const DataDescription& trained, const SampleRequest& request);

}  // namespace cohort
