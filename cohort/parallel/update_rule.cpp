#include "cohort/parallel/update_rule.h"

#include <cmath>

// One copy for each instruction set; the machine picks at load. Compiled without fused multiply-adds (CMakeLists.txt), so that a result
// does not depend on where an array is cut.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define COHORT_VECTORISED \
  __attribute__((target_clones("avx512f", "arch=haswell", "default"), optimize("O3", "no-math-errno", "no-trapping-math")))
#else
#define COHORT_VECTORISED
#endif

namespace cohort {
namespace {

/// The numbers of one update in the type of the weights.
template <typename T>
struct Numbers {
  T learning_rate, factor, decay, momentum, beta1, beta2, eps;
  T step_size, root_correction;  ///< lr / (1 - b1^t) and 1 / sqrt(1 - b2^t).
};

template <typename T>
Numbers<T> numbers_of(const UpdateRule& rule, const UpdateArguments& arguments) {
  const double t = static_cast<double>(arguments.num_updates);
  return {static_cast<T>(arguments.learning_rate),
          static_cast<T>(arguments.gradient_factor),
          static_cast<T>(rule.weight_decay),
          static_cast<T>(rule.momentum),
          static_cast<T>(rule.beta1),
          static_cast<T>(rule.beta2),
          static_cast<T>(rule.eps),
          static_cast<T>(arguments.learning_rate / (1 - std::pow(rule.beta1, t))),
          static_cast<T>(1 / std::sqrt(1 - std::pow(rule.beta2, t)))};
}

template <typename T>
inline __attribute__((always_inline)) void sgd(const Numbers<T>& k, T* __restrict w, const T* __restrict g, size_t count) {
  for (size_t i = 0; i < count; ++i) w[i] -= k.learning_rate * (g[i] * k.factor + k.decay * w[i]);
}

template <bool kNesterov, typename T>
inline __attribute__((always_inline)) void momentum(const Numbers<T>& k, T* __restrict w, const T* __restrict g, T* __restrict v,
                                                    size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const T gradient = g[i] * k.factor + k.decay * w[i], velocity = k.momentum * v[i] + gradient;
    v[i] = velocity;
    w[i] -= k.learning_rate * (kNesterov ? gradient + k.momentum * velocity : velocity);
  }
}

template <bool kDecoupled, typename T>
inline __attribute__((always_inline)) void adam(const Numbers<T>& k, T* __restrict w, const T* __restrict g, T* __restrict a,
                                                T* __restrict s, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const T before = w[i];
    const T weight = kDecoupled ? before - k.learning_rate * k.decay * before : before;
    const T gradient = kDecoupled ? g[i] * k.factor : g[i] * k.factor + k.decay * before;
    const T average = a[i] + (1 - k.beta1) * (gradient - a[i]), square = k.beta2 * s[i] + (1 - k.beta2) * gradient * gradient;
    a[i] = average;
    s[i] = square;
    w[i] = weight - k.step_size * average / (std::sqrt(square) * k.root_correction + k.eps);
  }
}

// target_clones does not work on templates: one function for each type.
COHORT_VECTORISED void sgd_floats(const Numbers<float>& k, float* w, const float* g, size_t n) { sgd(k, w, g, n); }
COHORT_VECTORISED void sgd_doubles(const Numbers<double>& k, double* w, const double* g, size_t n) { sgd(k, w, g, n); }
COHORT_VECTORISED void momentum_floats(const Numbers<float>& k, float* w, const float* g, float* v, size_t n) {
  momentum<false>(k, w, g, v, n);
}
COHORT_VECTORISED void momentum_doubles(const Numbers<double>& k, double* w, const double* g, double* v, size_t n) {
  momentum<false>(k, w, g, v, n);
}
COHORT_VECTORISED void nesterov_floats(const Numbers<float>& k, float* w, const float* g, float* v, size_t n) {
  momentum<true>(k, w, g, v, n);
}
COHORT_VECTORISED void nesterov_doubles(const Numbers<double>& k, double* w, const double* g, double* v, size_t n) {
  momentum<true>(k, w, g, v, n);
}
COHORT_VECTORISED void adam_floats(const Numbers<float>& k, float* w, const float* g, float* a, float* s, size_t n) {
  adam<false>(k, w, g, a, s, n);
}
COHORT_VECTORISED void adam_doubles(const Numbers<double>& k, double* w, const double* g, double* a, double* s, size_t n) {
  adam<false>(k, w, g, a, s, n);
}
COHORT_VECTORISED void adamw_floats(const Numbers<float>& k, float* w, const float* g, float* a, float* s, size_t n) {
  adam<true>(k, w, g, a, s, n);
}
COHORT_VECTORISED void adamw_doubles(const Numbers<double>& k, double* w, const double* g, double* a, double* s, size_t n) {
  adam<true>(k, w, g, a, s, n);
}

}  // namespace

std::vector<std::string> UpdateRule::slots() const {
  switch (kind) {
    case Kind::kSgd:
      return {};
    case Kind::kMomentum:
    case Kind::kNesterov:
      return {"momentum"};
    case Kind::kAdam:
    case Kind::kAdamW:
      break;
  }
  return {"exp_avg", "exp_avg_sq"};
}

void update(const UpdateRule& rule, const UpdateArguments& arguments, float* weights, const float* gradient, float* const* slots,
            size_t count) {
  const auto k = numbers_of<float>(rule, arguments);
  switch (rule.kind) {
    case UpdateRule::Kind::kSgd:
      return sgd_floats(k, weights, gradient, count);
    case UpdateRule::Kind::kMomentum:
      return momentum_floats(k, weights, gradient, slots[0], count);
    case UpdateRule::Kind::kNesterov:
      return nesterov_floats(k, weights, gradient, slots[0], count);
    case UpdateRule::Kind::kAdam:
      return adam_floats(k, weights, gradient, slots[0], slots[1], count);
    case UpdateRule::Kind::kAdamW:
      return adamw_floats(k, weights, gradient, slots[0], slots[1], count);
  }
}

void update(const UpdateRule& rule, const UpdateArguments& arguments, double* weights, const double* gradient, double* const* slots,
            size_t count) {
  const auto k = numbers_of<double>(rule, arguments);
  switch (rule.kind) {
    case UpdateRule::Kind::kSgd:
      return sgd_doubles(k, weights, gradient, count);
    case UpdateRule::Kind::kMomentum:
      return momentum_doubles(k, weights, gradient, slots[0], count);
    case UpdateRule::Kind::kNesterov:
      return nesterov_doubles(k, weights, gradient, slots[0], count);
    case UpdateRule::Kind::kAdam:
      return adam_doubles(k, weights, gradient, slots[0], slots[1], count);
    case UpdateRule::Kind::kAdamW:
      return adamw_doubles(k, weights, gradient, slots[0], slots[1], count);
  }
}

}  // namespace cohort
