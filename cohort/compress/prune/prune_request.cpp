#include "cohort/compress/prune/prune_request.h"

#include <algorithm>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort {

std::string PruneRequest::how() const { return granularity == "2:4" ? granularity : concat(granularity, ":", sparsity); }

void check_prune_request(const PruneRequest& request) {
  const std::vector<std::string> known = {"weight", "2:4", "channel"};
  if (std::find(known.begin(), known.end(), request.granularity) == known.end())
    fail(ErrorCode::kBadInput, "--granularity ", quote_text(request.granularity), did_you_mean(request.granularity, known),
         ": expected one of ", join(known, " "));
  if (!(request.sparsity > 0 && request.sparsity < 1))
    fail(ErrorCode::kBadInput, "--sparsity ", request.sparsity, ": the part of the ", request.is_channel() ? "channels" : "weights",
         " that goes, above 0 and below 1, as 0.9");
  if (request.granularity == "2:4" && request.sparsity != 0.5)
    fail(ErrorCode::kBadInput, "--sparsity ", request.sparsity,
         " with --granularity 2:4: two of every four weights go, so it is 0.5; leave "
         "--sparsity out");
}

void check_can_be_pruned(const TrainedFile& file) {
  const CompressedForm* const form = file.compressed();
  if (form && !(form->layers.empty() && form->tensors.empty()))
    fail(ErrorCode::kBadInput, file.given(), " is compressed already (", quote_text(form->method), "); give the run that it was made from");
}

}  // namespace cohort
