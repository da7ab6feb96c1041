#include "cohort/train/distil/student_hints.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/loss/losses.h"
#include "cohort/train/model/batch_tensors.h"

namespace cohort {
namespace {

std::vector<std::string> names_of(const std::vector<HintPair>& pairs, std::string HintPair::* whose) {
  std::vector<std::string> names;
  for (const HintPair& pair : pairs) names.push_back(pair.*whose);
  return names;
}

}  // namespace

StudentHints::StudentHints(LayerGraph& model, const std::vector<HintPair>& pairs, const DataSource& train)
    : pairs_(pairs), taps_(model, names_of(pairs_, &HintPair::student), name_settings("--hint")) {
  const at::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();  // Statistics and dropout stay as they are.
  model.forward(input_batch(train, 0, 1));
  model.train(was_training);
  for (const at::Tensor& output : take()) sizes_.push_back(output.sizes().vec());
}

std::vector<std::string> StudentHints::teacher_layers() const { return names_of(pairs_, &HintPair::teacher); }

void StudentHints::check(const std::vector<at::Tensor>& of_teacher) const {
  for (size_t i = 0; i < pairs_.size(); ++i)
    if (const std::string why = why_no_attention(sizes_[i], of_teacher[i].sizes().vec()); !why.empty())
      fail(ErrorCode::kBadInput, name_settings("--hint "), pairs_[i].student, ":", pairs_[i].teacher, ": outputs for one sample: ", why);
}

}  // namespace cohort
