// Reduction tile by tile, each a chain of loops d = x op y, one per array after the first. Two arrays are combined straight into the
// result; with more, partial results stay in an accumulator in the first-level cache, in float for 16-bit floats. Each loop is compiled for
// several instruction sets, selected at load.

#include "cohort/comm/transport/reduce.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cohort/base/fail.h"
#include "cohort/comm/transport/half_bits.h"

#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define COHORT_VECTORISED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#else
#define COHORT_VECTORISED
#endif

namespace cohort {
namespace {

constexpr size_t kTile = 2048;  // Elements.

// Types: storage and arithmetic.

template <typename T>
struct Complex {
  T real, imaginary;
};

/// A 16-bit float as it is stored; computed with as float.
template <typename Bits>
struct NarrowFloat {
  uint16_t bits;
  COHORT_INLINE float load() const { return Bits::to_float(bits); }
  static COHORT_INLINE NarrowFloat store(float value) { return {static_cast<uint16_t>(Bits::from_float(value))}; }
};
using Half = NarrowFloat<Fp16Bits>;
using BFloat16 = NarrowFloat<Bf16Bits>;

template <typename T>
constexpr bool is_narrow = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;
template <typename T>
using WideOf = std::conditional_t<is_narrow<T>, float, T>;

template <typename T>
COHORT_INLINE auto load(const T& value) {
  if constexpr (is_narrow<T>) {
    return value.load();
  } else {
    return value;
  }
}
template <typename T, typename Wide>
COHORT_INLINE T store(const Wide& value) {
  if constexpr (is_narrow<T>) {
    return T::store(value);
  } else {
    return static_cast<T>(value);
  }
}

// Operations. Integers are unsigned where wrapping matters.

struct Add {
  template <typename T>
  COHORT_INLINE T operator()(const T& a, const T& b) const {
    return static_cast<T>(a + b);
  }
  template <typename T>
  COHORT_INLINE Complex<T> operator()(const Complex<T>& a, const Complex<T>& b) const {
    return {a.real + b.real, a.imaginary + b.imaginary};
  }
};
/// The last operation of an average.
struct AddAndDivide {
  int divisor;
  template <typename T>
  COHORT_INLINE T operator()(const T& a, const T& b) const {
    return (a + b) / static_cast<T>(divisor);
  }
  template <typename T>
  COHORT_INLINE Complex<T> operator()(const Complex<T>& a, const Complex<T>& b) const {
    const T by = static_cast<T>(divisor);
    return {(a.real + b.real) / by, (a.imaginary + b.imaginary) / by};
  }
};
struct Multiply {
  template <typename T>
  COHORT_INLINE T operator()(const T& a, const T& b) const {
    // 16-bit factors would be promoted to int, whose product can overflow.
    if constexpr (std::is_integral_v<T> && sizeof(T) < 4) return static_cast<T>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
    return static_cast<T>(a * b);
  }
};
struct Smaller {
  template <typename T>
  COHORT_INLINE T operator()(const T& a, const T& b) const {
    // a != a: NaN stays; a NaN in b is taken because no comparison with it holds. NOLINTNEXTLINE(misc-redundant-expression)
    return (a < b || a != a) ? a : b;
  }
};
struct Larger {
  template <typename T>
  COHORT_INLINE T operator()(const T& a, const T& b) const {
    return (a > b || a != a) ? a : b;  // NOLINT(misc-redundant-expression)
  }
};
struct BitAnd {
  template <typename T>
  COHORT_INLINE T operator()(const T& a, const T& b) const {
    return static_cast<T>(a & b);
  }
};
struct BitOr {
  template <typename T>
  COHORT_INLINE T operator()(const T& a, const T& b) const {
    return static_cast<T>(a | b);
  }
};
struct BitXor {
  template <typename T>
  COHORT_INLINE T operator()(const T& a, const T& b) const {
    return static_cast<T>(a ^ b);
  }
};

// Loops.

/// d = x op y. `d` may be `x` or `y`: elements are independent, which ivdep asserts.
template <typename D, typename X, typename Y, typename Operation>
COHORT_VECTORISED void combine(D* d, const X* x, const Y* y, size_t count, Operation operation) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) d[i] = store<D>(operation(load(x[i]), load(y[i])));
}

/// Products of complex numbers: a fused multiply-add would make them depend on the machine, and GCC's vectoriser emits some (vfmaddsub)
/// even without contraction.
template <typename T>
__attribute__((optimize("fp-contract=off"))) void combine(Complex<T>* d, const Complex<T>* x, const Complex<T>* y, size_t count, Multiply) {
  for (size_t i = 0; i < count; ++i)
    d[i] = {x[i].real * y[i].real - x[i].imaginary * y[i].imaginary, x[i].real * y[i].imaginary + x[i].imaginary * y[i].real};
}

struct Arrays {
  std::byte* const* results;
  size_t num_results;
  const std::byte* const* arrays;
  size_t num_arrays;
  size_t count;
};

/// Reduces one tile from element `at` on into the first result. `last` combines the last array.
template <typename T, typename Operation, typename Last>
void reduce_tile(const Arrays& of, size_t at, size_t count, Operation operation, Last last) {
  using Wide = WideOf<T>;
  const auto array = [&](size_t index) { return reinterpret_cast<const T*>(of.arrays[index]) + at; };
  T* const result = reinterpret_cast<T*>(of.results[0]) + at;
  if (of.num_arrays == 2) return combine(result, array(0), array(1), count, last);
  Wide sum[kTile];
  combine(sum, array(0), array(1), count, operation);
  for (size_t index = 2; index + 1 < of.num_arrays; ++index) combine(sum, sum, array(index), count, operation);
  combine(result, sum, array(of.num_arrays - 1), count, last);
}

template <typename T, typename Operation, typename Last>
void reduce_with(const Arrays& of, Operation operation, Last last) {
  for (size_t at = 0; at < of.count; at += kTile) {
    const size_t count = std::min(kTile, of.count - at);
    if (of.num_arrays == 1) {
      std::memmove(of.results[0] + at * sizeof(T), of.arrays[0] + at * sizeof(T), count * sizeof(T));
    } else {
      reduce_tile<T>(of, at, count, operation, last);
    }
    for (size_t other = 1; other < of.num_results; ++other)
      std::memcpy(of.results[other] + at * sizeof(T), of.results[0] + at * sizeof(T), count * sizeof(T));
  }
}
template <typename T, typename Operation>
void reduce_with(const Arrays& of, Operation operation) {
  reduce_with<T>(of, operation, operation);
}

// Dispatch by type.

template <typename T>
constexpr bool is_complex = std::is_same_v<T, Complex<float>> || std::is_same_v<T, Complex<double>>;
/// Integers are added and multiplied as unsigned ones, which wrap around to the same bits.
template <typename T, bool = std::is_integral_v<T>>
struct WrappingOf {
  using Type = T;
};
template <typename T>
struct WrappingOf<T, true> {
  using Type = std::make_unsigned_t<T>;
};

/// check_reduction() has refused what `T` does not have.
template <typename T>
void reduce_as(const Arrays& of, Reduction reduction) {
  using Wrapping = typename WrappingOf<T>::Type;
  if (reduction == Reduction::kProduct) return reduce_with<Wrapping>(of, Multiply{});
  if constexpr (std::is_integral_v<T>) {
    if (reduction == Reduction::kBitAnd) return reduce_with<Wrapping>(of, BitAnd{});
    if (reduction == Reduction::kBitOr) return reduce_with<Wrapping>(of, BitOr{});
    if (reduction == Reduction::kBitXor) return reduce_with<Wrapping>(of, BitXor{});
  } else {
    if (reduction == Reduction::kAverage) return reduce_with<T>(of, Add{}, AddAndDivide{static_cast<int>(of.num_arrays)});
  }
  if constexpr (!is_complex<T>) {
    if (reduction == Reduction::kMin) return reduce_with<T>(of, Smaller{});
    if (reduction == Reduction::kMax) return reduce_with<T>(of, Larger{});
  }
  reduce_with<Wrapping>(of, Add{});
}

void reduce_bool(const Arrays& of, Reduction reduction) {
  if (reduction == Reduction::kBitXor) return reduce_with<uint8_t>(of, BitXor{});
  const bool all = reduction == Reduction::kProduct || reduction == Reduction::kMin || reduction == Reduction::kBitAnd;
  return all ? reduce_with<uint8_t>(of, BitAnd{}) : reduce_with<uint8_t>(of, BitOr{});
}

void reduce_any(const Arrays& of, at::ScalarType type, Reduction reduction) {
  switch (type) {
    case at::kFloat:
      return reduce_as<float>(of, reduction);
    case at::kDouble:
      return reduce_as<double>(of, reduction);
    case at::kHalf:
      return reduce_as<Half>(of, reduction);
    case at::kBFloat16:
      return reduce_as<BFloat16>(of, reduction);
    case at::kComplexFloat:
      return reduce_as<Complex<float>>(of, reduction);
    case at::kComplexDouble:
      return reduce_as<Complex<double>>(of, reduction);
    case at::kChar:
      return reduce_as<int8_t>(of, reduction);
    case at::kByte:
      return reduce_as<uint8_t>(of, reduction);
    case at::kShort:
      return reduce_as<int16_t>(of, reduction);
    case at::kUInt16:
      return reduce_as<uint16_t>(of, reduction);
    case at::kInt:
      return reduce_as<int32_t>(of, reduction);
    case at::kUInt32:
      return reduce_as<uint32_t>(of, reduction);
    case at::kLong:
      return reduce_as<int64_t>(of, reduction);
    case at::kUInt64:
      return reduce_as<uint64_t>(of, reduction);
    default:
      return reduce_bool(of, reduction);
  }
}

bool is_bitwise(Reduction reduction) {
  return reduction == Reduction::kBitAnd || reduction == Reduction::kBitOr || reduction == Reduction::kBitXor;
}

}  // namespace

void check_reduction(Reduction reduction, at::ScalarType type) {
  const char* why = nullptr;
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
      if (is_bitwise(reduction)) why = "floating-point numbers are not combined bit by bit; view the tensor as whole numbers";
      break;
    case at::kComplexFloat:
    case at::kComplexDouble:
      if (is_bitwise(reduction)) why = "complex numbers are not combined bit by bit";
      if (reduction == Reduction::kMin || reduction == Reduction::kMax) why = "complex numbers have no order; compare their magnitudes";
      break;
    case at::kChar:
    case at::kByte:
    case at::kShort:
    case at::kUInt16:
    case at::kInt:
    case at::kUInt32:
    case at::kLong:
    case at::kUInt64:
    case at::kBool:
      if (reduction == Reduction::kAverage) why = "integers have no average; sum them, or convert the tensor to float first";
      break;
    default:
      why = "this type can be sent but not computed with; convert the tensor first";
  }
  if (why) fail(ErrorCode::kBadInput, "the ", name_of(reduction), " of ", type, " over ranks is not supported: ", why);
}

void reduce_arrays(std::byte* const* results, size_t num_results, const std::byte* const* arrays, size_t num_arrays, size_t count,
                   at::ScalarType type, Reduction reduction) {
  check_reduction(reduction, type);
  reduce_any({results, num_results, arrays, num_arrays, count}, type, reduction);
}

}  // namespace cohort
