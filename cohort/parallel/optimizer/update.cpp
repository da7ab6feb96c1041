#include "cohort/parallel/optimizer/update.h"

#include <algorithm>
#include <cmath>

// Compiled for several instruction sets, selected at load, without fused multiply-adds (CMakeLists.txt), so that results do not depend on
// how arrays are divided.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define COHORT_VECTORISED \
  __attribute__((target_clones("avx512f", "arch=haswell", "default"), optimize("O3", "no-math-errno", "no-trapping-math")))
#else
#define COHORT_VECTORISED
#endif

namespace cohort {
namespace {

/// The factors of one update in the weights' type.
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

/// Element i of the gradient, or of the sum of two.
template <bool kTwo, typename T>
inline __attribute__((always_inline)) T element(const T* g, const T* h, size_t i) {
  if constexpr (kTwo) return g[i] + h[i];
  else return g[i];
}

template <bool kTwo, typename T>
inline __attribute__((always_inline)) void sgd(const Numbers<T>& k, T* __restrict w, const T* __restrict g, const T* __restrict h,
                                               size_t count) {
  for (size_t i = 0; i < count; ++i) w[i] -= k.learning_rate * (element<kTwo>(g, h, i) * k.factor + k.decay * w[i]);
}

template <bool kTwo, bool kNesterov, typename T>
inline __attribute__((always_inline)) void momentum(const Numbers<T>& k, T* __restrict w, const T* __restrict g, const T* __restrict h,
                                                    T* __restrict v, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const T gradient = element<kTwo>(g, h, i) * k.factor + k.decay * w[i], velocity = k.momentum * v[i] + gradient;
    v[i] = velocity;
    w[i] -= k.learning_rate * (kNesterov ? gradient + k.momentum * velocity : velocity);
  }
}

template <bool kTwo, bool kDecoupled, typename T>
inline __attribute__((always_inline)) void adam(const Numbers<T>& k, T* __restrict w, const T* __restrict g, const T* __restrict h,
                                                T* __restrict a, T* __restrict s, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const T before = w[i], sum = element<kTwo>(g, h, i) * k.factor;
    const T weight = kDecoupled ? before - k.learning_rate * k.decay * before : before;
    const T gradient = kDecoupled ? sum : sum + k.decay * before;
    const T average = a[i] + (1 - k.beta1) * (gradient - a[i]), square = k.beta2 * s[i] + (1 - k.beta2) * gradient * gradient;
    a[i] = average;
    s[i] = square;
    w[i] = weight - k.step_size * average / (std::sqrt(square) * k.root_correction + k.eps);
  }
}

/// The arrays of one update; `h` is null for a single gradient.
template <typename T>
struct Arrays {
  T* w;
  const T *g, *h;
  T* const* slots;
  size_t count;
};

template <bool kTwo, typename T>
inline __attribute__((always_inline)) void update_with(UpdateRule::Kind kind, const Numbers<T>& k, const Arrays<T>& of) {
  switch (kind) {
    case UpdateRule::Kind::kSgd:
      return sgd<kTwo>(k, of.w, of.g, of.h, of.count);
    case UpdateRule::Kind::kMomentum:
      return momentum<kTwo, false>(k, of.w, of.g, of.h, of.slots[0], of.count);
    case UpdateRule::Kind::kNesterov:
      return momentum<kTwo, true>(k, of.w, of.g, of.h, of.slots[0], of.count);
    case UpdateRule::Kind::kAdam:
      return adam<kTwo, false>(k, of.w, of.g, of.h, of.slots[0], of.slots[1], of.count);
    case UpdateRule::Kind::kAdamW:
      return adam<kTwo, true>(k, of.w, of.g, of.h, of.slots[0], of.slots[1], of.count);
  }
}

template <typename T>
inline __attribute__((always_inline)) void add(T* sum, const T* a, const T* b, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

// target_clones does not work on templates.
COHORT_VECTORISED void update_array(UpdateRule::Kind kind, const Numbers<float>& k, const Arrays<float>& of) {
  update_with<false>(kind, k, of);
}
COHORT_VECTORISED void update_array(UpdateRule::Kind kind, const Numbers<double>& k, const Arrays<double>& of) {
  update_with<false>(kind, k, of);
}
COHORT_VECTORISED void update_pair(UpdateRule::Kind kind, const Numbers<float>& k, const Arrays<float>& of) {
  update_with<true>(kind, k, of);
}
COHORT_VECTORISED void update_pair(UpdateRule::Kind kind, const Numbers<double>& k, const Arrays<double>& of) {
  update_with<true>(kind, k, of);
}
COHORT_VECTORISED void add_arrays(float* sum, const float* a, const float* b, size_t count) { add(sum, a, b, count); }
COHORT_VECTORISED void add_arrays(double* sum, const double* a, const double* b, size_t count) { add(sum, a, b, count); }

/// With more than two gradients all but the last are summed in tiles that stay in the first-level cache.
template <typename T>
void update_sum_of(const UpdateRule& rule, const UpdateArguments& arguments, T* weights, const T* const* gradients, size_t num_gradients,
                   T* const* slots, size_t count) {
  const auto k = numbers_of<T>(rule, arguments);
  if (num_gradients == 1) return update_array(rule.kind, k, {weights, gradients[0], nullptr, slots, count});
  if (num_gradients == 2) return update_pair(rule.kind, k, {weights, gradients[0], gradients[1], slots, count});
  constexpr size_t kTile = 1024;
  const size_t num_slots = rule.slots().size();
  alignas(64) T partial[kTile];
  for (size_t at = 0; at < count; at += kTile) {
    const size_t length = std::min(kTile, count - at);
    add_arrays(partial, gradients[0] + at, gradients[1] + at, length);
    for (size_t i = 2; i + 1 < num_gradients; ++i) add_arrays(partial, partial, gradients[i] + at, length);
    T* slots_at[2] = {};
    for (size_t slot = 0; slot < num_slots; ++slot) slots_at[slot] = slots[slot] + at;
    update_pair(rule.kind, k, {weights + at, partial, gradients[num_gradients - 1] + at, slots_at, length});
  }
}

}  // namespace

void update(const UpdateRule& rule, const UpdateArguments& arguments, float* weights, const float* gradient, float* const* slots,
            size_t count) {
  update_array(rule.kind, numbers_of<float>(rule, arguments), {weights, gradient, nullptr, slots, count});
}
void update(const UpdateRule& rule, const UpdateArguments& arguments, double* weights, const double* gradient, double* const* slots,
            size_t count) {
  update_array(rule.kind, numbers_of<double>(rule, arguments), {weights, gradient, nullptr, slots, count});
}

void update_by_sum(const UpdateRule& rule, const UpdateArguments& arguments, float* weights, const float* const* gradients,
                   size_t num_gradients, float* const* slots, size_t count) {
  update_sum_of(rule, arguments, weights, gradients, num_gradients, slots, count);
}
void update_by_sum(const UpdateRule& rule, const UpdateArguments& arguments, double* weights, const double* const* gradients,
                   size_t num_gradients, double* const* slots, size_t count) {
  update_sum_of(rule, arguments, weights, gradients, num_gradients, slots, count);
}

}  // namespace cohort
