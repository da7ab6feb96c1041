#pragma once
// What the fully connected family of a batch-size study trains by: a chain of linear layers and ReLU, written out, and the products of its
// first layer with pictures of bytes, in whole numbers.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cohort/data/source/source.h"
#include "cohort/trials/trial_weights.h"

namespace cohort {

class LayerGraph;

// Pictures of bytes times floats, in whole numbers: the products of a chain's first linear layer, where evaluations and steps of large
// batches spend their time. How exact and how quick: dense_chain.cpp.

/// Bytes of pictures and what a model gets for one: (byte + offset) x factor, by channel.
struct ByteRows {
  /// The first samples of `source`; none where it has no bytes in memory.
  static std::optional<ByteRows> of(const DataSource& source, int64_t num_samples);
  at::Tensor values;  ///< {samples, elements} int8: the byte - 128.
  std::vector<double> factor, offset;
};

/// The bytes of a source's first picture, behind them those of the others; null where they are not in memory.
const uint8_t* bytes_in_memory(const DataSource& source);
/// Bytes as ByteRows have them: each less 128.
void write_signed(const uint8_t* from, int64_t count, int8_t* to);

/// A matrix of floats as whole numbers of four digits of a byte.
struct ByteDigits {
  /// Of `matrix` {rows, columns}, contiguous, times `factor`; `fixed` sums a row's whole numbers times `offset` (both: by equal runs of
  /// columns).
  void read(const at::Tensor& matrix, std::span<const double> factor, std::span<const double> offset);
  at::Tensor values;                  ///< {4 x rows, columns} int8: first the lowest digits of all rows.
  std::vector<double> scales, fixed;  ///< By row; its numbers are its whole numbers x scale. NaN where not all of them are finite.
};

/// One thread.
class ByteProduct {
 public:
  /// Whether this processor multiplies bytes so much faster than floats that evaluations gain, for a layer with that many inputs.
  static bool pays(int64_t num_inputs);
  /// Whether the gradient of that many samples gains too: weights change with each step.
  static bool pays_to_train(int64_t num_samples);

  /// Reads `weight` {num_outputs, num_inputs}, floats, for rows like these; again after each change of it.
  void read_weight(const at::Tensor& weight, const ByteRows& rows);
  /// What the model gets for the rows [begin, end) times the transposed weight: `out` {end - begin, num_outputs}, contiguous. A row's bits
  /// depend on the row and on the weight alone. An output whose weights are not all finite is NaN.
  void multiply(const ByteRows& rows, int64_t begin, int64_t end, at::Tensor& out);
  /// The transposed `output_gradient` {samples, num_outputs} times what the model gets for all `rows`, into `weight_gradient` {num_outputs,
  /// num_inputs} or, with `accumulate`, added there; both contiguous floats. The bits depend on no order of the samples.
  void multiply_gradient(const ByteRows& rows, const at::Tensor& output_gradient, bool accumulate, at::Tensor& weight_gradient);

 private:
  ByteDigits weight_, gradient_;
  at::Tensor sums_, gradient_sums_;  // {rows, 4 x num_outputs} and {4 x num_outputs, num_inputs}, int32.
  at::Tensor transposed_;            // {num_outputs, samples}.
};

// Forward and backward of a chain of linear layers and ReLU under cross-entropy, written out: no autograd, no allocation, a dozen matrix
// products. What the fully connected family of a batch-size study trains by. How, and its cost: dense_chain.cpp.

/// Sums over targets.
struct LossSums {
  double loss = 0;       ///< Cross-entropies (nats).
  double num_wrong = 0;  ///< Targets whose likeliest class (the first of equals) is another.
};

/// Refers to the weights of the model that it was made of. One thread.
class DenseChain {
 public:
  /// Null where `model` is anything but [flatten] (linear [relu])+ over pictures with a label, each layer reading the one before it, all
  /// parameters trained and none tied; judged by the layers' kinds and modules. `weights` has adopted the model.
  static std::unique_ptr<DenseChain> make(const LayerGraph& model, const DataShape& shape, const TrialWeights& weights);

  /// `input` {samples, ...} floats and `target` {samples}: returns the mean loss x `scale` and puts its gradient into `gradient`, an array
  /// as flat as `weights` is, or adds it there with `accumulate`. Samples: at least 1.
  double gradient(const at::Tensor& input, const at::Tensor& target, double label_smoothing, double scale, bool accumulate,
                  float* gradient);
  /// The same of rows of bytes with their `target`; the first layer's products are in whole numbers, and differ by rounding.
  double gradient(const ByteRows& rows, const at::Tensor& target, double label_smoothing, double scale, bool accumulate, float* gradient);
  /// Without label smoothing.
  LossSums evaluate(const at::Tensor& input, const at::Tensor& target);
  /// The same of the rows [begin, end) with their `target`. read_weight_for() before it, and after each change of the weights.
  LossSums evaluate(const ByteRows& rows, int64_t begin, int64_t end, const at::Tensor& target);
  void read_weight_for(const ByteRows& rows) { first_product_.read_weight(layers_.front().weight, rows); }

 private:
  struct Layer {
    at::Tensor weight, transposed, bias;  ///< {to, from}, its transpose, {to} or undefined.
    int64_t weight_offset = 0, bias_offset = 0;
    bool relu = false;
    at::Tensor output, output_gradient;  ///< {samples, to} for the number of samples of the last call.
    at::Tensor output_gradient_transposed, weight_gradient;
  };
  struct GradientOptions {
    double label_smoothing = 0, scale = 1;
    bool accumulate = false;
  };
  void resize(int64_t num_samples, bool with_gradients);
  void place_gradient(float* gradient);
  const at::Tensor& forward(const at::Tensor& input);
  const at::Tensor& forward_from_first_product();
  double backward(const at::Tensor& target, const GradientOptions& options);
  static void add_product(Layer& layer, const at::Tensor& input, bool accumulate);
  LossSums sums_of(const at::Tensor& logits, const at::Tensor& target);

  std::vector<Layer> layers_;
  ByteProduct first_product_;  // Of rows of bytes.
  at::Tensor exponentials_;    // Of an evaluation's logits.
  float* gradient_ = nullptr;  // Where the layers' weight_gradient lie.
};

}  // namespace cohort
