#include "cohort/models/loss/named_losses.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/one_hot.h>

#include "cohort/base/fail.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/models/graph/model_errors.h"
#include "cohort/models/loss/binary_cross_entropy.h"
#include "cohort/models/loss/mean_squared_error.h"

namespace cohort {
namespace {

/// {rows, classes} of scores, and 1 for the class of each row.
struct Rows {
  at::Tensor scores, one_hot;
};

Rows rows_of(const char* loss, const at::Tensor& output, const at::Tensor& target, int64_t num_classes) {
  if (!output.defined() || output.numel() != target.numel() * num_classes)
    fail(ErrorCode::kBadInput, name_settings("--loss "), loss, " got the output ", describe_form(output), " and the targets ",
         describe_form(target), "; let the last layer give ", num_classes,
         " scores for each target (COHORT_MODEL: options.data().num_classes)");
  return {output.to(at::kFloat).reshape({-1, num_classes}), at::one_hot(target.reshape({-1}), num_classes).to(at::kFloat)};
}

}  // namespace

void set_named_loss(LayerGraph& model, const std::string& name, const DataShape& data) {
  if (name == "auto") return;
  if (model.loss_name() == "own")
    fail(ErrorCode::kBadInput, name_settings("--loss "), name, " would do nothing here: ", model.title(),
         " has a loss of its own; leave it out");
  if (data.regression && name != "mse")
    fail(ErrorCode::kBadInput, name_settings("--loss "), name, " is for classes, and these data have numbers to predict; use mse");
  if (data.labels && name != "binary")
    fail(ErrorCode::kBadInput, name_settings("--loss "), name, " is not for labels, of which a sample has any number; use binary");
  const int64_t num_classes = data.num_classes;
  if (name == "mse" && !data.regression) {
    model.set_loss(
        [num_classes](const at::Tensor& output, const at::Tensor& target) {
          const Rows rows = rows_of("mse", output, target, num_classes);
          return at::mse_loss(rows.scores, rows.one_hot, at::Reduction::Mean);
        },
        name);
  } else if (name == "mse") {
    model.set_loss(mean_squared_error, name);
  } else if (data.labels) {
    model.set_loss(binary_cross_entropy, name);
  } else if (name == "binary") {
    model.set_loss(
        [num_classes](const at::Tensor& output, const at::Tensor& target) {
          const Rows rows = rows_of("binary", output, target, num_classes);
          return at::binary_cross_entropy_with_logits(rows.scores, rows.one_hot, {}, {}, at::Reduction::Mean);
        },
        name);
  } else if (name != "cross-entropy") {
    fail(ErrorCode::kBadInput, name_settings("--loss "), quote_text(name), " is none of: auto, cross-entropy, mse, binary");
  }
}

}  // namespace cohort
