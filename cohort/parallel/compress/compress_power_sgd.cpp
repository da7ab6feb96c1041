// powersgd:R: each gradient matrix as the product of two thin ones, found by one step of the power method.
//
// Steps, for each parameter of 2 or more dimensions, as matrix M of n rows and m columns (n = the first dimension), r = min(R, n, m):
//   1. M = gradient + residual; 2. P = M Q, summed over the ranks; 3. the columns of P are made orthonormal; 4. Q' = M^T P, of which
//   S = sum over the ranks; 5. result P S^T, residual M - P Q'^T; 6. the next step's Q is S with columns of length 1 (warm start).
//   Parameters of 1 dimension, and those where (n + m) r >= n m, travel in step 2 as they are.
// Cost for a rank: two all-reduces for the whole buffer, of 4 (sum of n r + uncompressed elements) and 4 (sum of m r) bytes;
//   4 n m r multiplications for the products and 2 n m r for the results.
// Source: Vogels, Karimireddy, Jaggi 2019 ("PowerSGD", algorithms 1 and 2).
// Differences: the residual is of this rank's own part (algorithm 2; their program keeps the difference from the mean, which grows while
//   ranks' gradients differ). Sums, not means. Gram-Schmidt runs twice, with sums in double. A column of P that is a combination of the
//   others becomes zero (not noise), and its column of Q starts anew from random numbers, as all do where P or S is not finite. Steps 3, 5
//   and 6, which every rank does for itself, are in loops whose results do not depend on the processor.

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/parallel/common/vector_loops.h"
#include "cohort/parallel/compress/compressors.h"

namespace cohort {
namespace {

/// A compressed parameter. Thin matrices are stored transposed, as `rank` rows.
struct Matrix {
  int64_t begin, rows, columns, rank;
  int64_t p_begin, q_begin;  ///< In the buffers of all P and all Q.
};

COHORT_VECTOR_LOOP double dot(const float* __restrict a, const float* __restrict b, int64_t count) {
  constexpr int64_t kLanes = 16;  // Fixes the order of additions, whatever the vector width.
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
  for (; i < count; ++i) lanes[i % kLanes] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

COHORT_VECTOR_LOOP void subtract_scaled(float* __restrict a, const float* __restrict b, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) a[i] -= factor * b[i];
}

COHORT_VECTOR_LOOP void scale(float* a, double factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) a[i] = static_cast<float>(a[i] * factor);
}

/// result = sum over r of p[r] s[r][.], residual -= sum over r of p[r] q[r][.], four terms of the sums at a time.
COHORT_VECTOR_LOOP void outer_row(const float* p, const float* __restrict s, const float* __restrict q, int64_t rank, int64_t columns,
                                  float* __restrict result, float* __restrict residual) {
  for (int64_t j = 0; j < columns; ++j) result[j] = 0;
  int64_t r = 0;
  for (; r + 4 <= rank; r += 4) {
    const float a = p[r], b = p[r + 1], c = p[r + 2], d = p[r + 3];
    const float *s0 = s + r * columns, *s1 = s0 + columns, *s2 = s1 + columns, *s3 = s2 + columns;
    const float *q0 = q + r * columns, *q1 = q0 + columns, *q2 = q1 + columns, *q3 = q2 + columns;
    for (int64_t j = 0; j < columns; ++j) {
      result[j] += (a * s0[j] + b * s1[j]) + (c * s2[j] + d * s3[j]);
      residual[j] -= (a * q0[j] + b * q1[j]) + (c * q2[j] + d * q3[j]);
    }
  }
  for (; r < rank; ++r) {
    const float a = p[r], *s0 = s + r * columns, *q0 = q + r * columns;
    for (int64_t j = 0; j < columns; ++j) result[j] += a * s0[j], residual[j] -= a * q0[j];
  }
}

/// Makes the `rank` rows of p orthonormal; rows that depend on the ones before become zero. False where p is not finite.
bool orthonormalise(float* p, int64_t rank, int64_t length) {
  constexpr double kDependent = 1e-5;  // Rounding left of a dependent row, at most.
  for (int64_t r = 0; r < rank; ++r) {
    float* const row = p + r * length;
    double norm = std::sqrt(dot(row, row, length));
    if (!std::isfinite(norm)) return false;
    // Normalize first, so that neither very small nor very large gradients leave the range of floats.
    if (norm > 0) scale(row, 1 / norm, length);
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t before = 0; before < r; ++before) {
        const float* const other = p + before * length;
        subtract_scaled(row, other, static_cast<float>(dot(row, other, length)), length);
      }
    norm = std::sqrt(dot(row, row, length));
    scale(row, norm > kDependent ? 1 / norm : 0.0, length);
  }
  return true;
}

int64_t product(const std::vector<int64_t>& shape) { return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()); }

class PowerSgd : public Compressor {
 public:
  PowerSgd(const CompressedBuffer& buffer, int64_t num_elements, int64_t rank, uint64_t seed) : feedback_(num_elements), seed_(seed) {
    std::vector<CompressedBuffer::Part> parts = buffer.parts;
    std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    int64_t end = 0;
    for (const CompressedBuffer::Part& part : parts) {
      const int64_t count = product(part.shape);
      if (part.begin < end || count < 0 || count > num_elements - part.begin)
        fail(ErrorCode::kBadInput, "powersgd: buffer ", buffer.name, " of ", num_elements, " elements: a part of ", count, " begins at ",
             part.begin, ", but the parts must not overlap and must lie in the buffer");
      if (add_matrix(part, count, rank)) {
        if (part.begin > rest_end_) rest_.push_back({rest_end_, part.begin});
        rest_end_ = part.begin + count;
      }
      end = part.begin + count;
    }
    if (num_elements > rest_end_) rest_.push_back({rest_end_, num_elements});
    num_p_ = num_matrix_p_;
    for (const auto& [first, last] : rest_) num_p_ += last - first;
    p_ = at::empty({num_p_}, at::kFloat);
    q_ = at::empty({num_q_}, at::kFloat);
    own_q_ = at::empty({num_q_}, at::kFloat);
    for (const Matrix& matrix : matrices_) restart(matrix);
  }

  void all_reduce_sum(Group& group, at::Tensor flat, const std::string& what) override {
    float* const gradients = feedback_.gradients(flat, what);
    multiply_by_q(gradients);
    copy_rest(gradients, true);
    group.all_reduce_sum(p_, what);
    copy_rest(gradients, false);
    std::vector<bool> finite;
    for (const Matrix& m : matrices_) finite.push_back(orthonormalise(p_.data_ptr<float>() + m.p_begin, m.rank, m.rows));
    multiply_by_p();
    q_.copy_(own_q_);
    group.all_reduce_sum(q_, what);
    for (size_t i = 0; i < matrices_.size(); ++i) {
      if (finite[i] && is_finite(matrices_[i])) finish(matrices_[i], gradients);
      else give_up(matrices_[i], gradients);
    }
    sent_bytes_ = cost(group.size()).sent_bytes;
  }

  int64_t sent_bytes() const override { return sent_bytes_; }
  ExchangeCost cost(int num_ranks) const override {
    const ExchangeCost p = uncompressed_cost(num_p_, num_ranks), q = uncompressed_cost(num_q_, num_ranks);
    return {p.sent_bytes + q.sent_bytes, p.num_exchanges + q.num_exchanges};
  }
  std::vector<std::pair<std::string, at::Tensor>> state() override { return {feedback_.state(), {"q", q_}}; }

 private:
  bool add_matrix(const CompressedBuffer::Part& part, int64_t count, int64_t largest_rank) {
    if (part.shape.size() < 2 || count == 0) return false;
    const int64_t rows = part.shape[0], columns = count / rows, rank = std::min({largest_rank, rows, columns});
    if ((rows + columns) * rank >= count) return false;
    matrices_.push_back({part.begin, rows, columns, rank, num_matrix_p_, num_q_});
    num_matrix_p_ += rows * rank;
    num_q_ += columns * rank;
    return true;
  }

  at::Tensor matrix_of(const Matrix& m) { return feedback_.residual().narrow(0, m.begin, m.rows * m.columns).view({m.rows, m.columns}); }
  static at::Tensor thin(const at::Tensor& all, int64_t begin, int64_t rank, int64_t length) {
    return all.narrow(0, begin, rank * length).view({rank, length});
  }

  /// residual = M, P = M Q.
  void multiply_by_q(const float* gradients) {
    for (const Matrix& m : matrices_) {
      add_to(feedback_.data() + m.begin, gradients + m.begin, m.rows * m.columns);
      at::Tensor p = thin(p_, m.p_begin, m.rank, m.rows);
      at::mm_out(p, thin(q_, m.q_begin, m.rank, m.columns), matrix_of(m).t());
    }
  }

  /// own Q = M^T P.
  void multiply_by_p() {
    for (const Matrix& m : matrices_) {
      at::Tensor q = thin(own_q_, m.q_begin, m.rank, m.columns);
      at::mm_out(q, thin(p_, m.p_begin, m.rank, m.rows), matrix_of(m));
    }
  }

  /// Copies what is not compressed between the gradients and the end of p_.
  void copy_rest(float* gradients, bool out) {
    float* at = p_.data_ptr<float>() + num_matrix_p_;
    for (const auto& [first, last] : rest_) {
      if (out) std::copy(gradients + first, gradients + last, at);
      else std::copy_n(at, last - first, gradients + first);
      at += last - first;
    }
  }

  bool is_finite(const Matrix& m) {
    const float* const s = q_.data_ptr<float>() + m.q_begin;
    return std::isfinite(dot(s, s, m.rank * m.columns));
  }

  void finish(const Matrix& m, float* gradients) {
    const float *p = p_.data_ptr<float>() + m.p_begin, *own = own_q_.data_ptr<float>() + m.q_begin;
    float* const s = q_.data_ptr<float>() + m.q_begin;
    std::vector<float> row(static_cast<size_t>(m.rank));
    for (int64_t i = 0; i < m.rows; ++i) {
      for (int64_t r = 0; r < m.rank; ++r) row[static_cast<size_t>(r)] = p[r * m.rows + i];
      const int64_t at = m.begin + i * m.columns;
      outer_row(row.data(), s, own, m.rank, m.columns, gradients + at, feedback_.data() + at);
    }
    for (int64_t r = 0; r < m.rank; ++r) {
      float* const column = s + r * m.columns;
      const double norm = std::sqrt(dot(column, column, m.columns));
      if (norm > 0) scale(column, 1 / norm, m.columns);
      else restart_column(m, r);
    }
  }

  void give_up(const Matrix& m, float* gradients) {
    std::fill_n(gradients + m.begin, m.rows * m.columns, std::numeric_limits<float>::quiet_NaN());
    std::fill_n(feedback_.data() + m.begin, m.rows * m.columns, 0.0f);
    restart(m);
  }

  void restart(const Matrix& m) {
    for (int64_t r = 0; r < m.rank; ++r) restart_column(m, r);
  }
  void restart_column(const Matrix& m, int64_t r) {
    float* const column = q_.data_ptr<float>() + m.q_begin + r * m.columns;
    for (int64_t j = 0; j < m.columns; ++j) column[j] = static_cast<float>(2 * unit_interval(random_bits(seed_, m.begin, r, j)) - 1);
    scale(column, 1 / std::sqrt(dot(column, column, m.columns)), m.columns);
  }

  ErrorFeedback feedback_;
  uint64_t seed_;
  std::vector<Matrix> matrices_;
  std::vector<std::pair<int64_t, int64_t>> rest_;  // Ranges of the buffer that are not compressed.
  int64_t rest_end_ = 0, num_p_ = 0, num_matrix_p_ = 0, num_q_ = 0, sent_bytes_ = 0;
  at::Tensor p_;          // All P, then what is not compressed.
  at::Tensor q_, own_q_;  // Between steps q_ is the warm start; within one, the sum.
};

}  // namespace

std::unique_ptr<Compressor> make_power_sgd(const CompressedBuffer& buffer, int64_t num_elements, int64_t rank, uint64_t seed) {
  return std::make_unique<PowerSgd>(buffer, num_elements, rank, seed);
}

}  // namespace cohort
