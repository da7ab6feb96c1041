// Codes: symmetric uniform quantisation of rows (Krishnamoorthi 2018, "Quantizing deep convolutional networks for efficient inference",
// section 2.2). For a row w of output channel r, or a group of its columns:
//
//   scale = max |w| / L,  code = round(w / scale)   L = 127 with 8 bits, 7 with 4 bits; round to even
//
// so |w - scale * code| <= scale / 2. -128 (-8) is not used, so the range is symmetric. A row of zeros has the scale 1. Bytes of 4-bit
// codes hold code + 8, the even column in the low half; an odd last column is followed by the code 0. Cost: two passes.
//
// Sparse: a bitmap and the numbers that are not zero: 1 bit an element and 32 a number, so with a fraction s of zeros 1 - s + 1/32 of the
// bytes. Indices (as in compressed sparse rows) take 16 or 32 bits a number and pay only above about 94 % of zeros. Cost: one pass.
#include "cohort/infer/compressed/coded_tensor.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <bit>

#include "cohort/base/fail.h"
#include "cohort/base/files/safetensors.h"
#include "cohort/base/text/strict_json.h"

namespace cohort {
namespace {

/// {rows, columns} -> {rows, groups, group}, with zeros behind the last column.
at::Tensor in_groups(const at::Tensor& rows, int64_t group, int64_t num_groups) {
  return at::constant_pad_nd(rows, {0, group * num_groups - rows.size(1)}).view({rows.size(0), num_groups, group});
}

}  // namespace

Codes encode_rows(const at::Tensor& tensor, int bits, int64_t group) {
  const CodedTensor how{.shape = tensor.sizes().vec(), .bits = bits, .group = group};
  const int64_t columns = how.columns(), num_groups = how.groups(), width = group == 0 ? columns : group;
  const double largest = bits == 8 ? 127 : 7;
  const at::Tensor grouped = in_groups(tensor.detach().to(at::kFloat).contiguous().view({how.rows(), columns}), width, num_groups);
  at::Tensor scales = grouped.abs().amax(2) / largest;
  scales = at::where(scales > 0, scales, at::ones_like(scales)).contiguous();
  const at::Tensor codes = (grouped / scales.unsqueeze(2)).round().clamp(-largest, largest).to(at::kChar);
  const at::Tensor rows = codes.view({how.rows(), num_groups * width}).narrow(1, 0, columns);
  if (bits == 8) return {rows.contiguous().view(how.shape), scales};
  const at::Tensor pairs = (at::constant_pad_nd(rows, {0, columns % 2}) + 8).to(at::kByte).view({how.rows(), (columns + 1) / 2, 2});
  return {(pairs.select(2, 0) + pairs.select(2, 1) * 16).contiguous(), scales};
}

at::Tensor decode_rows(const Codes& codes, const CodedTensor& how) {
  const int64_t columns = how.columns(), num_groups = how.groups(), width = how.group == 0 ? columns : how.group;
  at::Tensor rows;
  if (how.bits == 8) {
    rows = codes.codes.view({how.rows(), columns}).to(at::kFloat);
  } else {
    const at::Tensor low = codes.codes.bitwise_and(15), high = codes.codes.bitwise_right_shift(4);
    rows = at::stack({low, high}, 2).view({how.rows(), -1}).narrow(1, 0, columns).to(at::kFloat) - 8;
  }
  const at::Tensor decoded = in_groups(rows, width, num_groups) * codes.scales.unsqueeze(2);
  return decoded.view({how.rows(), num_groups * width}).narrow(1, 0, columns).contiguous().view(how.shape);
}

Codes read_codes(const std::string& name, const CodedTensor& how, const ReadTensor& read) {
  std::vector<int64_t> shape = how.shape;
  if (how.bits == 4) shape = {how.rows(), (how.columns() + 1) / 2};
  // Scales first: they are small, and a file without them is refused before the codes are read.
  const std::vector<int64_t> scale_shape = {how.rows(), how.groups()};
  Codes codes{.codes = {}, .scales = at::empty(scale_shape, at::kFloat)};
  read(name + ".scale", DType::kF32, scale_shape, codes.scales.data_ptr());
  if (!(at::isfinite(codes.scales) & (codes.scales > 0)).all().item<bool>())
    fail(ErrorCode::kBadInput, "tensor ", quote_text(name + ".scale"), " has a scale that is not positive and finite; the file is damaged");
  codes.codes = at::empty(shape, how.bits == 8 ? at::kChar : at::kByte);
  read(name, how.bits == 8 ? DType::kI8 : DType::kU8, shape, codes.codes.data_ptr());
  return codes;
}

SparseValues encode_sparse(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().contiguous().view({-1});
  const float* const numbers = flat.const_data_ptr<float>();
  const int64_t count = flat.numel();
  SparseValues out{.values = at::empty({flat.count_nonzero().item<int64_t>()}, at::kFloat),
                   .mask = at::zeros({(count + 7) / 8}, at::kByte)};
  auto* const mask = out.mask.data_ptr<uint8_t>();
  float* next = out.values.data_ptr<float>();
  for (int64_t i = 0; i < count; ++i) {
    if (numbers[i] == 0) continue;
    mask[i / 8] |= static_cast<uint8_t>(1U << (i % 8));
    *next++ = numbers[i];
  }
  return out;
}

int64_t sparse_bytes(int64_t num_elements, int64_t kept) { return 4 * kept + (num_elements + 7) / 8; }

at::Tensor read_sparse(const std::string& name, const CodedTensor& how, const ReadTensor& read) {
  const int64_t count = checked_num_elements(how.shape), bytes = (count + 7) / 8;
  const at::Tensor mask = at::empty({bytes}, at::kByte);
  read(name + ".mask", DType::kU8, {bytes}, mask.data_ptr());
  const auto* const bits = mask.const_data_ptr<uint8_t>();
  int64_t num_ones = 0;
  for (int64_t i = 0; i < bytes; ++i) num_ones += std::popcount(bits[i]);
  const bool has_more = count % 8 != 0 && bits[bytes - 1] >> (count % 8) != 0;
  if (num_ones != how.kept || has_more)
    fail(ErrorCode::kBadInput, "tensor ", quote_text(name + ".mask"), " has ", num_ones, " ones for ", how.kept,
         " numbers that are not zero", has_more ? ", some behind the last element" : "", "; the file is damaged");
  const at::Tensor values = at::empty({how.kept}, at::kFloat);
  read(name, DType::kF32, {how.kept}, values.data_ptr());
  at::Tensor out = at::zeros(how.shape, at::kFloat);
  const float* next = values.const_data_ptr<float>();
  float* const numbers = out.data_ptr<float>();
  for (int64_t i = 0; i < count; ++i)
    if ((bits[i / 8] >> (i % 8) & 1) != 0) numbers[i] = *next++;
  return out;
}

}  // namespace cohort
