#pragma once
// The description of a compressed model beside its tensors: which layers compute in int8 with which scales, and which tensors are stored as
// codes. Torch-free; JSON under the key "compressed" of the file's header (docs/formats/compressed.md).

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"

namespace cohort {

/// A number is scale * (code - zero_point).
struct CodeScale {
  double scale = 1;
  int64_t zero_point = 0;
};

/// A layer that computes differently from the trained model.
struct CompressedLayer {
  enum class Form {
    kStatic,    ///< conv2d, linear: int8 input, weight and sums; scales of input and output are in the file.
    kDynamic,   ///< linear, transformerblock: int8 products of inputs that are scaled batch by batch; floats in and out.
    kSum,       ///< add: sum of two int8 tensors.
    kThrough,   ///< relu, maxpool2d, flatten, ...: applies to int8 tensors as to floats.
    kAbsorbed,  ///< A batch norm or ReLU that the layer before it already does: the identity.
  };
  std::string name;
  Form form = Form::kThrough;
  bool relu = false;    ///< kStatic, kSum: the kernel applies a ReLU.
  bool floats = false;  ///< Static linear: its output is floats, and `output` is not used.
  CodeScale input, output;
};

/// A tensor that the file stores as integers, code * scale with one scale a row (the first dimension) or a group of `group` of its columns;
/// or, with 32 bits, without its zeros (coded_tensor.h).
struct CodedTensor {
  std::vector<int64_t> shape;  ///< In the model.
  int bits = 8;                ///< 8: I8 of that shape; 4: U8 {rows, (columns + 1) / 2}, two codes a byte; 32: F32 {kept}.
  int64_t group = 0;           ///< 0: one scale for a whole row.
  int64_t kept = 0;            ///< With 32 bits: numbers that are not zero.

  int64_t rows() const { return shape.front(); }
  int64_t columns() const;
  int64_t groups() const { return group == 0 ? 1 : (columns() + group - 1) / group; }
};

struct CompressedForm {
  std::string method;                          ///< "quantize static".
  std::vector<CompressedLayer> layers;         ///< In the order of the model.
  std::map<std::string, CodedTensor> tensors;  ///< By the model's own names; scales are under NAME + ".scale", bits under NAME + ".mask".

  /// All weights are exact floats, so the model can be compressed further.
  bool is_exact() const;
};

const char* form_name(CompressedLayer::Form form);

Json to_json(const CompressedForm& form);
/// Error(kBadInput) that begins with `where` for other JSON, or numbers out of range.
CompressedForm compressed_form_from_json(const Json& json, const std::string& where);

}  // namespace cohort
