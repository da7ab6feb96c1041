#pragma once
// Forward and backward of a chain of linear layers and ReLU without autograd, for the fully connected family of a batch-size study, and
// integer products of its first layer with pictures of bytes.

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

/// Bytes of pictures, and by channel how the model's input is computed: (byte + offset) x factor.
struct ByteRows {
  /// The first samples of `source`; none if it has no bytes in memory.
  static std::optional<ByteRows> of(const DataSource& source, int64_t num_samples);
  at::Tensor values;  ///< {samples, elements} int8: the byte - 128.
  std::vector<double> factor, offset;
};

/// The bytes of all pictures of a source, one after the other; null if they are not in memory.
const uint8_t* bytes_in_memory(const DataSource& source);
/// Writes bytes for ByteRows: each less 128.
void write_signed(const uint8_t* from, int64_t count, int8_t* to);

/// A matrix of floats as integers of four byte digits.
struct ByteDigits {
  /// Reads `matrix` {rows, columns}, contiguous, times `factor`; `fixed` is a row's sum of integers times `offset`. Both are by equal runs
  /// of columns.
  void read(const at::Tensor& matrix, std::span<const double> factor, std::span<const double> offset);
  at::Tensor values;                  ///< {4 x rows, columns} int8: the lowest digits of all rows come first.
  std::vector<double> scales, fixed;  ///< By row; a float is its integer x scale. The scale is NaN if not all floats are finite.
};

/// One thread.
class ByteProduct {
 public:
  /// True if integer products are faster on this processor in evaluations, for a layer with that many inputs.
  static bool pays(int64_t num_inputs);
  /// True if they are also faster for a gradient of that many samples, with weights that change in each step.
  static bool pays_to_train(int64_t num_samples);

  /// Reads `weight` {num_outputs, num_inputs}, floats. Called again after each change of it.
  void read_weight(const at::Tensor& weight, const ByteRows& rows);
  /// The model's inputs for the rows [begin, end) times the transposed weight: `out` {end - begin, num_outputs}, contiguous. The bits of a
  /// row depend only on the row and the weight. An output whose weights are not all finite is NaN.
  void multiply(const ByteRows& rows, int64_t begin, int64_t end, at::Tensor& out);
  /// The transposed `output_gradient` {samples, num_outputs} times the model's inputs for all `rows`, written or with `accumulate` added to
  /// `weight_gradient` {num_outputs, num_inputs}; both contiguous floats. The bits do not depend on the order of samples.
  void multiply_gradient(const ByteRows& rows, const at::Tensor& output_gradient, bool accumulate, at::Tensor& weight_gradient);

 private:
  ByteDigits weight_, gradient_;
  at::Tensor sums_, gradient_sums_;  // {rows, 4 x num_outputs} and {4 x num_outputs, num_inputs}, int32.
  at::Tensor transposed_;            // {num_outputs, samples}.
};

/// Sums over targets.
struct LossSums {
  double loss = 0;       ///< Cross-entropies (nats).
  double num_wrong = 0;  ///< Targets whose most likely class (the first of equal ones) is another.
};

/// Forward and backward under cross-entropy, without allocation. Refers to the weights of its model. One thread.
class DenseChain {
 public:
  /// Null unless `model` is [flatten] (linear [relu])+ over pictures with a class, each layer reading the one before it, with all
  /// parameters trained and none tied, by the layers' kinds and modules. `weights` has adopted the model.
  static std::unique_ptr<DenseChain> make(const LayerGraph& model, const DataShape& shape, const TrialWeights& weights);

  /// Returns the mean loss x `scale` of `input` {samples, ...}, floats, and `target` {samples}. Writes its gradient to the flat array
  /// `gradient`, in the order of `weights`, or adds it with `accumulate`. At least 1 sample.
  double gradient(const at::Tensor& input, const at::Tensor& target, double label_smoothing, double scale, bool accumulate,
                  float* gradient);
  /// The same for rows of bytes, with integer products of the first layer, which differ by rounding.
  double gradient(const ByteRows& rows, const at::Tensor& target, double label_smoothing, double scale, bool accumulate, float* gradient);
  /// Without label smoothing.
  LossSums evaluate(const at::Tensor& input, const at::Tensor& target);
  /// The same for the rows [begin, end). Call read_weight_for() first, and after each change of the weights.
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
  ByteProduct first_product_;  // For rows of bytes.
  at::Tensor exponentials_;    // Exponentials of an evaluation's logits.
  float* gradient_ = nullptr;  // The flat array; the layers' weight_gradient are views of it.
};

}  // namespace cohort
