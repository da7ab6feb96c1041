#pragma once
// Forward and backward of a chain of linear layers and ReLU under cross-entropy, written out: no autograd, no allocation, a dozen matrix
// products. What the fully connected family of a batch-size study trains by. How, and its cost: dense_chain.cpp.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/data/source/source.h"
#include "cohort/trials/byte_product.h"
#include "cohort/trials/trial_weights.h"

namespace cohort {

class LayerGraph;

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
