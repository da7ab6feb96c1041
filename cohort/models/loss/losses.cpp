// cross-entropy   of a softmax over the classes; the default for classes
// mse             squared error; the default for regressions. For classes: of the scores against 1 for the right class and 0 for the others
//                 (Hui and Belkin 2021, "Evaluation of neural architectures trained with square loss")
// binary          each score is a yes or no by itself, a sigmoid's cross-entropy, mean over the scores; the default for labels
//
// binary: with a score x (log odds) and a target t, 0 or 1,
//   loss = max(x, 0) - t x + log(1 + exp(-|x|)),   the mean over samples and labels,
// which is -log of the probability that sigmoid(x) gives to the target, and never overflows. Where we differ: init2winit, the program of
// the batch-size study's authors, sums over labels and takes the mean over samples only. That is this loss times the number of labels, so
// plain SGD makes the same steps with the learning rate times that number.
//
// Soft targets (Hinton, Vinyals and Dean 2015, "Distilling the knowledge in a neural network", arXiv 1503.02531, section 2): with scores
// divided by a temperature T, a teacher's softmax shows which wrong classes it finds likely:
//   soft = T min(T, 1) KL(softmax(teacher / T) || softmax(student / T)),   loss = (1 - alpha) usual + alpha soft
// The gradient of the divergence is (q - p) / T, with the softmaxes q and p, so that of the soft part is min(T, 1) (q - p): no larger than
// the cross-entropy's, q - (0 .. 1 .. 0), and nor is its curvature. So a learning rate that suits the labels suits the teacher at every T.
// Where we differ: Hinton's factor is T^2, with which a confident teacher gives T times the gradient of a label, and the rate must fall by
// as much. For text the mean is over positions. Cost: two softmaxes of the scores.
//
// Attention transfer (Zagoruyko and Komodakis 2017, "Paying more attention to attention", arXiv 1612.03928, section 3.1): a layer's
// attention is where it is active, whatever its channels mean, so layers of different widths can be compared:
//   Q(position) = sum over channels of F(channel, position)^2,   a = Q / ||Q||_2,   distance = ||a_student - a_teacher||_2^2
// between 0 and 2 for a sample. Where we differ: the paper's equation 2 has the norm, its authors' program the mean square over positions;
// this is the sum of squares, which does not depend on the number of positions. Maps of different sizes are pooled by averages, not
// interpolated. Cost: one pass over both outputs, and one over the student's in backward.
#include "cohort/models/loss/losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/kl_div.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/one_hot.h>

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/files/safetensors.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/graph/model_errors.h"

namespace cohort {

at::Tensor mean_squared_error(const at::Tensor& output, const at::Tensor& target) {
  if (!output.defined() || output.numel() != target.numel() || !target.is_floating_point())
    fail(ErrorCode::kBadInput, "the mean squared error got the output ", describe_tensor(output), " and the targets ",
         describe_tensor(target),
         "; let the last layer give as many numbers for a sample as the data has to predict (COHORT_MODEL: options.data().num_classes)");
  return at::mse_loss(output.to(at::kFloat).reshape_as(target), target, at::Reduction::Mean);
}

at::Tensor binary_cross_entropy(const at::Tensor& output, const at::Tensor& target) {
  if (!output.defined() || output.numel() != target.numel() || !target.is_floating_point())
    fail(ErrorCode::kBadInput, "the binary cross-entropy got the output ", describe_tensor(output), " and the targets ",
         describe_tensor(target),
         "; let the last layer give one score for each label of a sample (COHORT_MODEL: options.data().num_classes)");
  // Stays in double for a model in double: `verify` compares gradients of divided batches with it.
  const at::ScalarType type = output.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::binary_cross_entropy_with_logits(output.to(type).reshape_as(target), target.to(type), {}, {}, at::Reduction::Mean);
}

namespace {

/// Scores {rows, classes} and the one-hot classes of the rows.
struct Rows {
  at::Tensor scores, one_hot;
};

Rows rows_of(const char* loss, const at::Tensor& output, const at::Tensor& target, int64_t num_classes) {
  if (!output.defined() || output.numel() != target.numel() * num_classes)
    fail(ErrorCode::kBadInput, name_settings("--loss "), loss, " got the output ", describe_tensor(output), " and the targets ",
         describe_tensor(target), "; let the last layer give ", num_classes,
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
  const auto mse_of_classes = [num_classes](const at::Tensor& output, const at::Tensor& target) {
    const Rows rows = rows_of("mse", output, target, num_classes);
    return at::mse_loss(rows.scores, rows.one_hot, at::Reduction::Mean);
  };
  const auto binary_of_classes = [num_classes](const at::Tensor& output, const at::Tensor& target) {
    const Rows rows = rows_of("binary", output, target, num_classes);
    return at::binary_cross_entropy_with_logits(rows.scores, rows.one_hot, {}, {}, at::Reduction::Mean);
  };
  if (data.regression) {
    model.set_loss(mean_squared_error, name);
  } else if (data.labels) {
    model.set_loss(binary_cross_entropy, name);
  } else if (name == "mse") {
    model.set_loss(mse_of_classes, name);
  } else if (name == "binary") {
    model.set_loss(binary_of_classes, name);
  } else if (name != "cross-entropy") {
    fail(ErrorCode::kBadInput, name_settings("--loss "), quote_text(name), " is not one of auto, cross-entropy, mse, binary");
  }
}

at::Tensor soft_target_loss(const at::Tensor& student, const at::Tensor& teacher, double temperature) {
  const int64_t classes = teacher.size(-1);
  if (!student.defined() || student.dim() == 0 || student.size(-1) != classes || student.numel() != teacher.numel())
    fail(ErrorCode::kBadInput, name_settings("--teacher"), " gives the scores ", describe_tensor(teacher), ", and the model the output ",
         describe_tensor(student), "; its last layer must give a score for each class of the data");
  const auto log_probabilities = [&](const at::Tensor& scores) {
    return at::log_softmax(scores.to(at::kFloat).reshape({-1, classes}) / temperature, -1);
  };
  const at::Tensor of_teacher = log_probabilities(teacher.detach());
  const at::Tensor sum = at::kl_div(log_probabilities(student), of_teacher, at::Reduction::Sum, /*log_target=*/true);
  return sum * (temperature * std::min(temperature, 1.0) / static_cast<double>(of_teacher.size(0)));
}

namespace {

constexpr double kTiny = 1e-12;  // Avoids 0 / 0 for a layer whose output is zero.

/// {samples, height, width} or {samples, positions}, fp32.
at::Tensor attention_of(const at::Tensor& output) {
  const at::Tensor exact = output.is_quantized() ? output.dequantize() : output.to(at::kFloat);
  return exact.square().sum(output.dim() == 4 ? 1 : 2);
}

at::Tensor pooled(const at::Tensor& attention, int64_t height, int64_t width) {
  if (attention.dim() != 3 || (attention.size(1) == height && attention.size(2) == width)) return attention;
  return at::adaptive_avg_pool2d(attention.unsqueeze(1), {height, width}).squeeze(1);
}

at::Tensor normalised(const at::Tensor& attention) {
  const at::Tensor flat = attention.flatten(1);
  return flat / (flat.square().sum(1, /*keepdim=*/true) + kTiny).sqrt();
}

}  // namespace

std::string attention_mismatch(const std::vector<int64_t>& student, const std::vector<int64_t>& teacher) {
  const auto text = [&] { return concat("the student's is ", shape_text(student), " and the teacher's ", shape_text(teacher)); };
  if (student.size() != teacher.size() || (student.size() != 3 && student.size() != 4))
    return text() + "; both must have positions: {samples, channels, height, width}, or of text {samples, positions, width}";
  if (student.size() == 3 && student[1] != teacher[1]) return text() + ": not as many positions";
  return "";
}

at::Tensor attention_distance(const at::Tensor& student, const at::Tensor& teacher) {
  at::Tensor mine = attention_of(student), wanted = attention_of(teacher.detach());
  if (mine.dim() == 3) {
    const int64_t height = std::min(mine.size(1), wanted.size(1)), width = std::min(mine.size(2), wanted.size(2));
    mine = pooled(mine, height, width);
    wanted = pooled(wanted, height, width);
  }
  return (normalised(mine) - normalised(wanted)).square().sum() / static_cast<double>(std::max<int64_t>(1, student.size(0)));
}

}  // namespace cohort
