// Batch norm (Ioffe, Szegedy 2015, algorithm 1) over the samples of all ranks. Per channel, with n_r values, mean m_r and sum of squared
// deviations M_r on rank r, and N = sum n_r:
//
//   forward    m = sum n_r m_r / N;  M = sum M_r + sum n_r (m_r - m)^2          (Chan, Golub, LeVeque 1979, equation 2.1, for P parts)
//              xhat = (x - m) / sqrt(M / N + epsilon);  y = weight xhat + bias;  running variance takes M / (N - 1)
//   backward   a = sum dy, b = sum dy xhat over all ranks
//              dx = weight / sqrt(M / N + epsilon) (dy - a / N - xhat b / N)     (the paper's six gradients, simplified)
//
// Steps: local sums by LibTorch's own kernels; one all-gather of {layer, n, m_r, M_r} in double, combined by every rank in rank order, so
// that the statistics are the same bits everywhere; y by LibTorch's kernel for given statistics. Backward the same with {layer, a_r, b_r}.
// Cost of a layer with C channels and P ranks: two all-gathers, of 8 (2C + 2) and 8 (2C + 1) bytes a rank; compared with local batch norm
// one more pass over the activations in backward.
// Never E[x^2] - E[x]^2: where the mean is large beside the deviation, it cancels. Where we differ from Python's SyncBatchNorm: it runs on
// CPUs; counts travel as doubles, exact up to 2^53 (a float is wrong above 2^24 values a channel); ranks without samples take part.

#include "cohort/parallel/batch_norm/sync_batch_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <optional>
#include <tuple>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/models/graph/recompute.h"

namespace cohort {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Statistics {
  at::Tensor mean, variance;     ///< {channels} over all ranks (the variance divided by N), on the input's device.
  at::Tensor unbiased_variance;  ///< Divided by N - 1.
  double count = 0;              ///< N
};

at::ScalarType statistics_type(const at::Tensor& input) { return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

/// Kernels take one floating type for all {channels} tensors; undefined stays undefined.
at::Tensor as_type(const at::Tensor& tensor, at::ScalarType type) { return tensor.defined() ? tensor.to(type) : tensor; }

/// Dense in a layout that the kernels support.
at::Tensor dense(const at::Tensor& tensor) { return tensor.contiguous(tensor.suggest_memory_format()); }

/// Every rank's {layer number, ...values}, {ranks, 1 + n}, on the CPU. `number` identifies layer and direction.
at::Tensor exchange(const SyncBatchNormLayer& layer, double number, at::Tensor mine, const char* what) {
  mine.data_ptr<double>()[0] = number;
  Group group = layer.group;
  at::Tensor all = at::empty({group.size(), mine.numel()}, mine.options());
  group.all_gather(all, mine, concat(what, " of batch norm layer ", layer.name));
  for (int rank = 0; rank < group.size(); ++rank) {
    const double theirs = all.data_ptr<double>()[rank * mine.numel()];
    const double first = all.data_ptr<double>()[0];
    if (theirs == first) continue;
    const auto describe = [](double n) {
      return concat("batch norm layer ", static_cast<int64_t>(n) / 2, static_cast<int64_t>(n) % 2 ? " (backward)" : " (forward)");
    };
    fail(ErrorCode::kBadInput, "sync batch norm: rank 0 is in ", describe(first), " and rank ", rank, " in ", describe(theirs), " (rank ",
         group.rank(), " is in ", layer.name,
         "); all ranks must run the same layers in the same order and equally often, ranks without samples too");
  }
  return all;
}

/// {layer, n, mean, M} of this rank's samples.
at::Tensor local_moments(const at::Tensor& input, int64_t num_channels) {
  at::Tensor record = at::zeros({2 + 2 * num_channels}, at::kDouble);
  if (input.numel() == 0) return record;
  const int64_t count = input.numel() / num_channels;
  // Running statistics of momentum 0 only make the kernel sum half-precision input in float.
  const auto options = input.options().dtype(statistics_type(input)).memory_format(std::nullopt);
  const auto [mean, variance] =
      at::batch_norm_update_stats(input, at::zeros({num_channels}, options), at::ones({num_channels}, options), 0.0);
  record.data_ptr<double>()[1] = static_cast<double>(count);
  record.narrow(0, 2, num_channels).copy_(mean);
  record.narrow(0, 2 + num_channels, num_channels).copy_(variance).mul_(static_cast<double>(count));
  return record;
}

/// Plain loops in rank order: the same bits on hosts with different vector instructions.
Statistics combine(const at::Tensor& all, int64_t num_channels, const at::Tensor& input) {
  const int64_t num_ranks = all.size(0), length = all.size(1);
  const double* const data = all.data_ptr<double>();
  Statistics out;
  for (int64_t rank = 0; rank < num_ranks; ++rank) out.count += data[rank * length + 1];
  at::Tensor moments = at::empty({3, num_channels}, at::kDouble);
  double* const result = moments.data_ptr<double>();
  for (int64_t c = 0; c < num_channels; ++c) {
    double sum = 0, squares = 0;
    for (int64_t rank = 0; rank < num_ranks; ++rank) sum += data[rank * length + 1] * data[rank * length + 2 + c];
    const double mean = sum / out.count;
    for (int64_t rank = 0; rank < num_ranks; ++rank) {
      const double* const record = data + rank * length;
      const double deviation = record[2 + c] - mean;
      squares += record[2 + num_channels + c] + record[1] * deviation * deviation;
    }
    result[c] = mean;
    result[num_channels + c] = squares / out.count;
    result[2 * num_channels + c] = squares / (out.count - 1);
  }
  const variable_list rows = moments.to(input.device(), statistics_type(input)).unbind(0);
  out.mean = rows[0], out.variance = rows[1], out.unbiased_variance = rows[2];
  return out;
}

void update_running(const BatchNormArguments& arguments, const Statistics& statistics) {
  if (!arguments.running_mean.defined() || is_recomputing()) return;  // Updated in the first run.
  const auto move = [&](const at::Tensor& running, const at::Tensor& now) {
    running.copy_(running.to(at::kDouble).mul_(1 - arguments.momentum).add_(now.to(at::kDouble), arguments.momentum));
  };
  move(arguments.running_mean, statistics.mean);
  move(arguments.running_var, statistics.unbiased_variance);
}

/// weight (x - mean) / sqrt(variance + epsilon) + bias by LibTorch's kernel for given statistics.
at::Tensor normalise(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& mean,
                     const at::Tensor& variance, double epsilon) {
  if (input.numel() == 0) return at::empty_like(input);
  return std::get<0>(at::native_batch_norm(input, weight, bias, mean, variance, /*training=*/false, /*momentum=*/0.0, epsilon));
}

/// What backward needs besides tensors.
struct Saved : torch::CustomClassHolder {
  SyncBatchNormLayer layer;
  double epsilon = 0, count = 0;
  bool has_weight = false, has_bias = false;
  at::ScalarType parameter_type = at::kFloat;
};

struct SyncBatchNorm : torch::autograd::Function<SyncBatchNorm> {
  /// `arguments` has weight and bias too; autograd looks for them among the arguments.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& unordered, const std::optional<at::Tensor>& /*weight*/,
                            const std::optional<at::Tensor>& /*bias*/, const BatchNormArguments& arguments,
                            const SyncBatchNormLayer& layer) {
    const at::Tensor input = dense(unordered);
    const int64_t num_channels = input.size(1);
    const at::Tensor all = exchange(layer, 2.0 * static_cast<double>(layer.number), local_moments(input, num_channels), "the moments");
    const Statistics statistics = combine(all, num_channels, input);
    if (statistics.count == 1) {
      fail(ErrorCode::kBadInput, "batch norm layer ", layer.name,
           " has one value a channel over all ranks, which has no variance; use a larger batch");
    }
    // Unless no rank had a sample.
    if (statistics.count > 0) update_running(arguments, statistics);
    auto saved = c10::make_intrusive<Saved>();
    saved->layer = layer;
    saved->epsilon = arguments.epsilon;
    saved->count = statistics.count;
    saved->has_weight = arguments.weight.defined();
    saved->has_bias = arguments.bias.defined();
    if (saved->has_weight || saved->has_bias) saved->parameter_type = (saved->has_weight ? arguments.weight : arguments.bias).scalar_type();
    ctx->saved_data["saved"] = c10::IValue::make_capsule(std::move(saved));
    ctx->save_for_backward({input, arguments.weight, statistics.mean, statistics.variance});
    const at::ScalarType type = statistics_type(input);
    return normalise(input, as_type(arguments.weight, type), as_type(arguments.bias, type), statistics.mean, statistics.variance,
                     arguments.epsilon);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto capsule = ctx->saved_data["saved"].toCapsule();
    const Saved& saved = static_cast<const Saved&>(*capsule);
    if (at::GradMode::is_enabled()) {
      fail(ErrorCode::kBadInput, "batch norm layer ", saved.layer.name,
           " is synchronised over ranks and cannot be differentiated twice; call backward without create_graph");
    }
    const variable_list tensors = ctx->get_saved_variables();
    const at::Tensor &input = tensors[0], &weight = tensors[1], &mean = tensors[2], &variance = tensors[3];
    const at::Tensor gradient = gradients[0].contiguous(input.suggest_memory_format());
    const at::Tensor kernel_weight = as_type(weight, statistics_type(input));
    const bool input_needs = ctx->needs_input_grad(0);
    // With fixed statistics: dx = weight dy / deviation, b_r and a_r.
    at::Tensor dx, dy_xhat = at::zeros_like(mean), dy = at::zeros_like(mean);
    if (input.numel() > 0) {
      std::tie(dx, dy_xhat, dy) = at::native_batch_norm_backward(gradient, input, kernel_weight, mean, variance, {}, {}, /*train=*/false,
                                                                 saved.epsilon, {input_needs, true, true});
    } else {
      dx = at::zeros_like(input);
    }
    if (input_needs) add_change_of_statistics(dx, input, kernel_weight, mean, variance, dy, dy_xhat, saved);
    const auto gradient_if = [](bool wanted, const at::Tensor& value, at::ScalarType type) {
      return wanted ? value.to(type) : at::Tensor();
    };
    return {input_needs ? dx : at::Tensor(), gradient_if(saved.has_weight, dy_xhat, saved.parameter_type),
            gradient_if(saved.has_bias, dy, saved.parameter_type), at::Tensor(), at::Tensor()};
  }

  /// dx -= weight / deviation (a / N + xhat b / N), which is batch norm with other parameters.
  static void add_change_of_statistics(at::Tensor& dx, const at::Tensor& input, const at::Tensor& weight, const at::Tensor& mean,
                                       const at::Tensor& variance, const at::Tensor& dy, const at::Tensor& dy_xhat, const Saved& saved) {
    const int64_t num_channels = mean.numel();
    at::Tensor record = at::empty({1 + 2 * num_channels}, at::kDouble);
    record.narrow(0, 1, num_channels).copy_(dy);
    record.narrow(0, 1 + num_channels, num_channels).copy_(dy_xhat);
    const at::Tensor all = exchange(saved.layer, 2.0 * static_cast<double>(saved.layer.number) + 1, std::move(record), "the gradient sums");
    if (input.numel() == 0) return;
    at::Tensor sums = all[0].narrow(0, 1, 2 * num_channels).clone();
    for (int64_t rank = 1; rank < all.size(0); ++rank) sums.add_(all[rank].narrow(0, 1, 2 * num_channels));
    sums = sums.div_(-saved.count).view({2, num_channels}).to(mean.device());
    at::Tensor factor = variance.to(at::kDouble).add(saved.epsilon).rsqrt_();
    if (weight.defined()) factor.mul_(weight);
    const variable_list rows = sums.mul_(factor).to(mean.scalar_type()).unbind(0);
    dx.add_(normalise(input, /*weight=*/rows[1], /*bias=*/rows[0], mean, variance, saved.epsilon));
  }
};

}  // namespace

at::Tensor sync_batch_norm(const at::Tensor& input, const BatchNormArguments& arguments, const SyncBatchNormLayer& layer) {
  if (input.dim() < 2 || !input.is_floating_point()) {
    fail(ErrorCode::kBadInput, "batch norm layer ", layer.name, " needs floating-point input {samples, channels, ...}, but it has ",
         input.dim(), " dimensions of ", input.scalar_type());
  }
  const auto if_defined = [](const at::Tensor& tensor) { return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt; };
  return SyncBatchNorm::apply(input, if_defined(arguments.weight), if_defined(arguments.bias), arguments, layer);
}

}  // namespace cohort
