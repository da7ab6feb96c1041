#pragma once
// What a compressed model is, beside its tensors: which layers compute in int8 and by which scales, and which tensors are kept as codes. A
// plain value, torch-free; JSON under the key "compressed" of a file's header (docs/formats/compressed.md).

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

/// One layer that computes otherwise than the model as it was trained.
struct CompressedLayer {
  enum class Form {
    kStatic,    ///< conv2d, linear: int8 input, weight and sums; scales of input and output are known beforehand.
    kDynamic,   ///< linear, transformerblock: int8 products, of inputs that are scaled batch by batch; floats come in and go out.
    kSum,       ///< add: of two int8 tensors.
    kThrough,   ///< relu, maxpool2d, flatten, ...: does to int8 tensors what it does to floats.
    kAbsorbed,  ///< A batch norm or ReLU that the layer before it does already: hands on what it gets.
  };
  std::string name;
  Form form = Form::kThrough;
  bool relu = false;    ///< Of kStatic and kSum: followed by a ReLU, at no cost.
  bool floats = false;  ///< Of a static linear: its output is floats; `output` says nothing.
  CodeScale input, output;
};

/// A tensor that the file keeps as whole numbers: code * scale, one scale a row (the first dimension), or a group of `group` columns of it.
/// Or, of 32 bits, without its zeros: coded_tensor.h.
struct CodedTensor {
  std::vector<int64_t> shape;  ///< As the model has it.
  int bits = 8;                ///< 8: I8 of that shape; 4: U8 {rows, (columns + 1) / 2}, two codes a byte; 32: F32 {kept}.
  int64_t group = 0;           ///< 0: a whole row.
  int64_t kept = 0;            ///< Of 32 bits: numbers that are not zero.

  int64_t rows() const { return shape.front(); }
  int64_t columns() const;
  int64_t groups() const { return group == 0 ? 1 : (columns() + group - 1) / group; }
};

struct CompressedForm {
  std::string method;                          ///< How it was made: "quantize static".
  std::vector<CompressedLayer> layers;         ///< In the order of the model.
  std::map<std::string, CodedTensor> tensors;  ///< By the model's own names; scales are under NAME + ".scale", bits under NAME + ".mask".

  /// The model is floats, all of them as they were: it can be compressed further.
  bool is_exact() const;
};

const char* form_name(CompressedLayer::Form form);

Json to_json(const CompressedForm& form);
/// Error(kBadInput) that begins with `where` for JSON that is no such form, or one with numbers out of range.
CompressedForm compressed_form_from_json(const Json& json, const std::string& where);

}  // namespace cohort
