#pragma once
// What a trained model says of what a user brings: inputs as the training would have made samples of them, the likeliest classes or values,
// and text that it writes. Torch-free.

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

// What a user brings to be predicted, as the training would have made samples of it. Torch-free.
//
//   trained on   an INPUT is                                                    "-": standard input has
//   pictures     a PNG or JPEG file, or an IDX file of many                     names of such files, one a line
//   rows         a CSV file with a header                                       the same
//   text         the text itself: the byte after it is predicted                one text a line
//   tensors      an NPY file of one sample or many                              one sample a line, numbers with commas or blanks between

struct NamedInput {
  std::string name;  ///< "a.png", "rows.csv:7" (the line), "digits.npy:3" (from 0).
  EncodedInput encoded;
  int64_t num_bytes = 0;  ///< Of text: how many of the tokens it is.
};

/// One input after another. One thread; `description` and `standard_input` must outlive it.
class InputStream {
 public:
  InputStream(const DataDescription& description, std::vector<std::string> words, std::istream& standard_input);

  /// False at the end. Error(kBadInput) that names file and row or place for what is missing, damaged, or of another kind than the training
  /// had.
  bool next(NamedInput& input);

 private:
  using Source = std::function<bool(NamedInput&)>;
  Source open(const std::string& word);
  Source picture(const std::string& path) const;
  Source pictures_of_idx(const std::string& path) const;
  Source rows(const std::string& path);
  Source text(const std::string& word) const;
  Source tensors(const std::string& path) const;
  Source lines(const std::function<Source(const std::string& line, const std::string& name)>& source_of_line);
  Source numbers_of_line(const std::string& line, const std::string& name) const;

  const DataDescription& description_;
  std::vector<std::string> words_;
  std::istream& standard_input_;
  size_t next_word_ = 0;
  Source source_;
};

// What a trained model says of inputs. Torch-free.

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

// Text that a trained model writes. Torch-free.

struct SampleRequest {
  std::string prompt;
  int64_t num_bytes = 400;
  double temperature = 0.8;  ///< 0: always the likeliest byte.
  int64_t top_k = 0;         ///< 0: all bytes.
  uint64_t seed = 1;
  int threads = 0;                         ///< 0: one a core.
  std::function<void(char)> written = {};  ///< Is given each byte once it is drawn.
};

/// What follows the prompt. The same bytes for the same request, whatever the layout of the training. Error(kBadInput) for a model of
/// anything else than text, and as restore_model() has it.
std::string sample_trained(const TrainedFile& file, const DataDescription& trained, const SampleRequest& request);

}  // namespace cohort
