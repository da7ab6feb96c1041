// A bitmap and the numbers it stands for: 1 bit an element and 32 a number that is not zero, so with a part s of zeros 1 - s + 1/32 of the
// bytes. Indices (as in compressed sparse rows) take 16 or 32 bits a number and pay only above about 94 % of zeros. Cost: one pass.
#include "cohort/infer/compressed/sparse_tensor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <bit>

#include "cohort/base/fail.h"
#include "cohort/base/files/safetensors.h"
#include "cohort/base/text/strict_json.h"

namespace cohort {

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
