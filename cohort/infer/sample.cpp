#include "cohort/infer/sample.h"

#include <optional>

#include "cohort/base/fail.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/infer/restore.h"
#include "cohort/infer/trained_data.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/train/model/evaluate.h"

namespace cohort {

std::string sample_trained(const TrainedFile& file, const DataDescription& trained, const SampleRequest& request) {
  if (trained.input != DataDescription::Input::kText)
    fail(ErrorCode::kBadInput, "sample: ", file.given(), " (", file.config().model, " on ", file.config().data,
         ") is no model of text; `cohort predict` asks it for classes or numbers");
  use_compute_threads(request.threads);
  const std::shared_ptr<LayerGraph> model = restore_model(file, shape_of(trained));
  const std::optional<std::string> text = sample_text(*model, shape_of(trained), request.prompt,
                                                      {.num_bytes = request.num_bytes,
                                                       .temperature = request.temperature,
                                                       .top_k = request.top_k,
                                                       .seed = request.seed,
                                                       .written = request.written,
                                                       .vocabulary = trained.vocabulary});
  if (!text)
    fail(ErrorCode::kBadInput, "sample: the output of ", model->title(), " is no scores of the next byte ({samples, context, ",
         trained.num_outputs, "}), so it writes no text");
  return *text;
}

}  // namespace cohort
