#include "cohort/parallel/common/agreement.h"

#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <map>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

/// The text most ranks have; the lowest rank's where there is a draw.
const std::string& majority(const std::vector<std::string>& texts) {
  std::map<std::string, int> votes;
  for (const std::string& text : texts) ++votes[text];
  const std::string* best = &texts.front();
  for (const std::string& text : texts)
    if (votes[text] > votes[*best]) best = &text;
  return *best;
}

}  // namespace

void check_same_text(Group& group, const std::string& text, const std::string& what, const std::string& advice) {
  // A few bytes a rank settle it when all agree, which is nearly always.
  const std::string digest = concat(std::hash<std::string>()(text), "/", text.size());
  const std::vector<std::string> digests = group.all_gather_text(digest, what);
  if (std::all_of(digests.begin(), digests.end(), [&](const std::string& other) { return other == digests.front(); })) return;

  const std::vector<std::string> texts = group.all_gather_text(text, what);
  const std::string& reference = majority(texts);
  const std::vector<std::string> expected = split(reference, '\n');
  std::vector<std::string> complaints;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank] == reference) continue;
    const std::vector<std::string> found = split(texts[rank], '\n');
    const auto line = [](const std::vector<std::string>& lines, size_t i) {
      return i < lines.size() && !lines[i].empty() ? "'" + lines[i] + "'" : std::string("nothing");
    };
    for (size_t i = 0; i < std::max(expected.size(), found.size()); ++i) {
      if (line(expected, i) == line(found, i)) continue;
      complaints.push_back(
          concat("rank ", rank, " has ", line(found, i), " where the others have ", line(expected, i), " (number ", i, ")"));
      break;
    }
  }
  fail(ErrorCode::kFailed, "ranks disagree in ", what, ": ", join(complaints, "; "), "; ", advice);
}

void check_same_model(Group& group, const std::vector<NamedTensor>& parameters) {
  check_same_text(group, signature(parameters), "the model's parameters", "all ranks must build the same model in the same order");
}

void check_forward_writes(const torch::nn::Module& module, int num_ranks) {
  if (num_ranks == 1) return;
  const auto check = [](const torch::nn::Module& layer, const std::string& name) {
    const auto* const embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&layer);
    const auto* const bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&layer);
    if ((embedding && embedding->options.max_norm()) || (bag && bag->options.max_norm()))
      fail(ErrorCode::kBadInput, "layer ", name,
           " is an embedding with max_norm, which changes its weights in forward, the rows that this rank looks up, so that ranks would "
           "have "
           "other weights; leave max_norm out, and where rows must stay small, look up in a renormalised copy: "
           "torch::embedding(torch::renorm(weight, 2, 0, max_norm), ids)");
  };
  check(module, module.name());
  for (const auto& item : module.named_modules("", /*include_self=*/false)) check(*item.value(), item.key());
}

void fail_left_step(int64_t num_left, int64_t rank, int num_ranks) {
  fail(ErrorCode::kFailed, num_left == 1 ? concat("rank ", rank) : concat(num_left, " of ", num_ranks, " ranks"),
       " left this step (an exception ended its forward or backward, and its own message says which), so no rank has the step's gradients; "
       "call zero_grad() and go on with the next step, or end the run");
}

}  // namespace cohort
