#pragma once
// Small specifications of a configuration: precision, quantization, compression, label smoothing, goal, hint layers, remedy. Torch-free.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/fail.h"

namespace cohort {

/// Arithmetic of forward and backward (train/model/precision.h).
enum class Precision { kFp32, kBf16, kFp16 };

/// "fp32", "bf16" or "fp16". Error(kBadInput) otherwise.
Precision parse_precision(const std::string& name);
const char* name_of(Precision precision);
/// Gradients in fp16 need a loss scale (loss_scaler.h) because values below 6e-8 underflow; bf16 has the range of fp32.
inline bool needs_loss_scale(Precision precision) { return precision == Precision::kFp16; }

/// Quantization-aware training.
struct QuantiseAware {
  int bits = 8;       ///< 8: weights and inputs, as int8 kernels round them; 4: weights only.
  int64_t group = 0;  ///< Weights of a row that share a scale; 0: all.
};

/// "8", "4" (in groups of 64) or "4:GROUP"; "" and "none": nullopt. Error(kBadInput) otherwise.
std::optional<QuantiseAware> parse_quantise_aware(const std::string& text);

/// Gradient compression, the value of `compress` (parallel/compress/).
struct Compression {
  std::string name;     ///< none, fp16, bf16, int8, topk, powersgd.
  double argument = 0;  ///< The number after the colon, if any.
};

/// Error(kBadInput) with the allowed values.
Compression parse_compression(const std::string& spec);

// Label smoothing over K classes.
//
//   all      1 - e for the target class, and e spread evenly over all K (Szegedy et al. 2016, section 7; PyTorch): the default
//   others   1 - e for the target class, and e / (K - 1) for each other one (Shallue et al. 2019; init2winit's use_shallue_label_smoothing)
//
// The second equals the first with e K / (K - 1), so one loss implements both.

/// The e of `all` that is equivalent to `smoothing` over `over`. Error(kBadInput) where it would exceed 1.
inline double label_smoothing_over_all(double smoothing, const std::string& over, int64_t num_classes) {
  if (over != "others" || smoothing == 0) return smoothing;
  const double most = num_classes > 1 ? static_cast<double>(num_classes - 1) / static_cast<double>(num_classes) : 0;
  if (smoothing > most)
    fail(ErrorCode::kBadInput, "label smoothing ", smoothing, " over the other classes gives the right one of ", num_classes,
         " less than each of these; the largest that makes sense is ", most);
  return smoothing / most;
}

/// `--goal`, at which training stops: `val_error<0.12`, `val_precision>0.31`. The metric is val_error, val_loss, val_precision (of labels)
/// or loss, or one that --metrics names.
struct Goal {
  std::string metric;
  bool below = true;
  double value = 0;
  bool reached(const std::map<std::string, double>& metrics) const;
};
/// `more`: the names of --metrics, joined by ','. Error(kBadInput).
Goal parse_goal(const std::string& text, const std::string& more = "");

/// A student layer and the teacher layer that it is compared with.
struct HintPair {
  std::string student, teacher;
};

/// "conv2:conv2,body:layer3", student before teacher; "" and "none": empty. Error(kBadInput) otherwise, and for a duplicate student layer.
std::vector<HintPair> parse_hints(const std::string& text);

/// `--remedy` against stale gradients: the FACTOR of rate:FACTOR, which multiplies the learning rates of all pushes; 1 for "".
/// Error(kBadInput) otherwise.
double parse_remedy(const std::string& text);

}  // namespace cohort
