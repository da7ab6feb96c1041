#pragma once
// Words of a configuration that say one small thing each: arithmetic, rounding, compression, label smoothing, a goal, layers to compare.
// Torch-free.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/fail.h"

namespace cohort {

// In which arithmetic forward and backward run. train/model/precision.h does it.

enum class Precision { kFp32, kBf16, kFp16 };

/// Of "fp32", "bf16", "fp16". Error(kBadInput) otherwise.
Precision parse_precision(const std::string& name);
const char* name_of(Precision precision);
/// fp16's gradients need a loss scale (loss_scaler.h): numbers below 6e-8 become 0. bf16 has the range of fp32.
inline bool needs_loss_scale(Precision precision) { return precision == Precision::kFp16; }

// To how many bits a training rounds what it computes with.

struct QuantiseAware {
  int bits = 8;       ///< Of a weight: 8, for int8 kernels, which round their inputs too; 4: weights alone.
  int64_t group = 0;  ///< Weights of a row that share a scale; 0: all of them.
};

/// "8", "4" (in groups of 64) or "4:GROUP"; "" and "none": nothing. Error(kBadInput), which names --quantize-aware, for anything else.
std::optional<QuantiseAware> parse_quantise_aware(const std::string& text);

// `compress`: the names of compressions of gradients and what may stand behind their colon. What each does: parallel/compress/.

struct Compression {
  std::string name;     ///< none, fp16, bf16, int8, topk, powersgd.
  double argument = 0;  ///< The number after the colon, of those that take one.
};

/// Error(kBadInput) that says what is allowed.
Compression parse_compression(const std::string& spec);

// How a smoothed target is divided over K classes.
//
//   all      1 - e for its class, and e spread evenly over all K, its own too (Szegedy et al. 2016, section 7; PyTorch): the default
//   others   1 - e for its class, and e / (K - 1) for each other one (Shallue et al. 2019; init2winit's use_shallue_label_smoothing)
//
// The second is the first with e K / (K - 1): both give every other class the same, and add up to 1. So one loss does for both.

/// The e of `all` that means the same as `smoothing` over `over`. Error(kBadInput) where that is above 1: the right class would get less
/// than none of the even part.
inline double label_smoothing_over_all(double smoothing, const std::string& over, int64_t num_classes) {
  if (over != "others" || smoothing == 0) return smoothing;
  const double most = num_classes > 1 ? static_cast<double>(num_classes - 1) / static_cast<double>(num_classes) : 0;
  if (smoothing > most)
    fail(ErrorCode::kBadInput, "label smoothing ", smoothing, " over the other classes gives the right one of ", num_classes,
         " less than each of these; the largest that makes sense is ", most);
  return smoothing / most;
}

// `--goal`: what a run trains until it has reached it.

/// `val_error<0.12`, `val_precision>0.31`: metric is val_error, val_loss, val_precision (of labels) or loss, or one that --metrics names.
struct Goal {
  std::string metric;
  bool below = true;
  double value = 0;
  bool reached(const std::map<std::string, double>& metrics) const;
};
/// `more`: the names of --metrics, joined by ','. Error(kBadInput).
Goal parse_goal(const std::string& text, const std::string& more = "");

// Which layers of a student are compared with which of its teacher.

struct HintPair {
  std::string student, teacher;  ///< Names of layers.
};

/// "conv2:conv2,body:layer3": student and teacher. "" and "none": nothing. Error(kBadInput), which names --hint, for anything else, and for
/// a layer of the student that is named twice.
std::vector<HintPair> parse_hints(const std::string& text);

// What --remedy says: what is done against stale gradients.

/// rate:FACTOR: what the learning rates of all pushes are multiplied by, whether they are late or not; 1 for "". Error(kBadInput) for
/// anything else.
double parse_remedy(const std::string& text);

}  // namespace cohort
