#pragma once
// Text that a trained model writes. Torch-free.

#include <cstdint>
#include <functional>
#include <string>

#include "cohort/data/source/description.h"
#include "cohort/infer/trained_file.h"

namespace cohort {

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
