// Erdos-Renyi with kernels (Evci et al. 2020, "Rigging the lottery", arXiv 1911.11134, section 3; Mocanu et al. 2018 for matrices): a
// tensor n1 x n2 x ... keeps the part
//
//   density = min(1, e (n1 + n2 + ...) / (n1 n2 ...))
//
// of its elements, with the one e for which all tensors together keep what they should. So large matrices, which have most to spare, bear
// most of it, and what is small, a last layer or an early convolution, keeps most of what it has.
//
// e is found by leaving out, one after the other, the tensors that would be dense: the least size / sum of dimensions first. Cost: a sort.

#include "cohort/train/pruning/layer_sparsity.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace cohort {
namespace {

double elements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), 1.0, [](double product, int64_t n) { return product * static_cast<double>(n); });
}

/// What a tensor keeps for e = 1, in elements.
double weight(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), 0.0, [](double sum, int64_t n) { return sum + static_cast<double>(n); });
}

}  // namespace

std::vector<double> layer_sparsities(const std::vector<std::vector<int64_t>>& shapes, double sparsity) {
  std::vector<size_t> order(shapes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto dense_at = [&](size_t i) { return elements(shapes[i]) / weight(shapes[i]); };  // The e from which it is.
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return dense_at(a) < dense_at(b); });
  double kept = 0, weights = 0;
  for (const std::vector<int64_t>& shape : shapes) {
    kept += (1 - sparsity) * elements(shape);
    weights += weight(shape);
  }
  std::vector<double> found(shapes.size(), 0.0);
  for (const size_t i : order) {
    const double e = kept / weights;
    if (e >= dense_at(i)) {
      kept -= elements(shapes[i]);
      weights -= weight(shapes[i]);
    } else {
      found[i] = 1 - e / dense_at(i);
    }
  }
  return found;
}

}  // namespace cohort
