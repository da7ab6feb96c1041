#include "cohort/parallel/compress/compressor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <map>

#include "cohort/base/fail.h"
#include "cohort/job/specs/small_specs.h"
#include "cohort/parallel/compress/compressors.h"

namespace cohort {
namespace {

/// `argument` is the number after the colon of the spec.
struct Request {
  const CompressedBuffer& buffer;
  int64_t num_elements;
  uint64_t seed;
  double argument;
};

std::unique_ptr<Compressor> coded_sum(std::unique_ptr<Codec> codec, const Request& request) {
  return std::make_unique<CodedSum>(std::move(codec), request.num_elements);
}

using Maker = std::unique_ptr<Compressor> (*)(const Request&);

/// By the names of job/specs/small_specs.cpp.
Maker maker_of(const std::string& name) {
  static const std::map<std::string, Maker> table = {
      {"none", [](const Request&) -> std::unique_ptr<Compressor> { return nullptr; }},
      {"fp16", [](const Request& r) { return coded_sum(make_fp16_codec(), r); }},
      {"bf16", [](const Request& r) { return coded_sum(make_bf16_codec(), r); }},
      {"int8", [](const Request& r) { return coded_sum(make_int8_codec(), r); }},
      {"topk", [](const Request& r) { return make_top_k(r.num_elements, r.argument); }},
      {"powersgd", [](const Request& r) { return make_power_sgd(r.buffer, r.num_elements, static_cast<int64_t>(r.argument), r.seed); }},
  };
  return table.at(name);
}

}  // namespace

std::unique_ptr<Compressor> make_compressor(const std::string& spec, const CompressedBuffer& buffer, int64_t num_elements, uint64_t seed) {
  const Compression compression = parse_compression(spec);
  return maker_of(compression.name)({buffer, num_elements, seed, compression.argument});
}

std::unique_ptr<Codec> make_codec(const std::string& compress) {
  const std::string name = parse_compression(compress).name;
  if (name == "fp16") return make_fp16_codec();
  if (name == "bf16") return make_bf16_codec();
  if (name == "int8") return make_int8_codec();
  fail(ErrorCode::kBadInput, "compress=", name, " does not code single numbers; use one of: fp16 bf16 int8");
}

void check_compressor(const std::string& spec) { parse_compression(spec); }

void CompressorBackup::keep(Compressor& compressor) {
  const auto state = compressor.state();
  kept_.resize(state.size());
  for (size_t i = 0; i < state.size(); ++i) {
    if (!kept_[i].defined()) kept_[i] = at::empty_like(state[i].second);
    kept_[i].copy_(state[i].second);
  }
  is_kept_ = true;
}

void CompressorBackup::restore(Compressor& compressor) {
  if (!is_kept_) return;
  is_kept_ = false;
  const auto state = compressor.state();
  for (size_t i = 0; i < state.size(); ++i) state[i].second.copy_(kept_[i]);
}

ExchangeCost uncompressed_cost(int64_t num_elements, int num_ranks) {
  if (num_ranks == 1 || num_elements == 0) return {};
  const int64_t slice = (num_elements + num_ranks - 1) / num_ranks;
  return {2 * (num_ranks - 1) * slice * static_cast<int64_t>(sizeof(float)), num_ranks == 2 ? 1 : 2};
}

namespace {

std::byte* bytes_of(const at::Tensor& tensor) { return reinterpret_cast<std::byte*>(tensor.data_ptr<uint8_t>()); }

/// output[r] = rank r's input[this rank].
void exchange_slices(Group& group, at::Tensor output, at::Tensor input) {
  std::vector<int64_t> equal_parts;
  group.c10d_backend()->alltoall_base(output, input, equal_parts, equal_parts)->wait();
}

}  // namespace

bool CodedSum::gathers(int num_ranks) const { return num_ranks <= 2 || codec_->bytes(feedback_.num_elements()) <= kSmallBytes; }

int64_t CodedSum::slice_elements(int num_ranks) const {
  const int64_t unit = num_ranks * codec_->granule();
  return (feedback_.num_elements() + unit - 1) / unit * codec_->granule();
}

ExchangeCost CodedSum::cost(int num_ranks) const {
  if (num_ranks == 1 || feedback_.num_elements() == 0) return {};
  if (gathers(num_ranks)) return {(num_ranks - 1) * codec_->bytes(feedback_.num_elements()), 1};
  return {2 * (num_ranks - 1) * codec_->bytes(slice_elements(num_ranks)), 2};
}

void CodedSum::all_reduce_sum(Group& group, at::Tensor flat, const std::string& what) {
  float* const gradients = feedback_.gradients(flat, what);
  if (flat.numel() == 0) return;
  if (gathers(group.size())) sum_gathered(group, gradients, what);
  else sum_slices(group, gradients, what);
  sent_bytes_ = cost(group.size()).sent_bytes;
}

void CodedSum::sum_gathered(Group& group, float* gradients, const std::string& what) {
  const int64_t count = feedback_.num_elements(), length = codec_->bytes(count);
  const int p = group.size();
  if (!mine_.defined()) {
    mine_ = at::zeros({length}, at::kByte);
    theirs_ = p == 1 ? mine_ : at::empty({p, length}, at::kByte);
  }
  codec_->encode(gradients, feedback_.data(), count, p, bytes_of(mine_));
  if (p > 1) group.all_gather(theirs_, mine_, what);
  for (int rank = 0; rank < p; ++rank) codec_->decode(bytes_of(theirs_) + rank * length, count, p, rank > 0, gradients);
}

void CodedSum::sum_slices(Group& group, float* gradients, const std::string& what) {
  const int64_t count = feedback_.num_elements(), slice = slice_elements(group.size()), length = codec_->bytes(slice);
  const int p = group.size();
  // The last slices may be short or empty.
  const auto begin = [&](int owner) { return std::min(owner * slice, count); };
  const auto elements = [&](int owner) { return begin(owner + 1) - begin(owner); };
  if (!mine_.defined()) {
    mine_ = at::zeros({p, length}, at::kByte);
    theirs_ = at::empty({p, length}, at::kByte);
  }
  for (int owner = 0; owner < p; ++owner)
    codec_->encode(gradients + begin(owner), feedback_.data() + begin(owner), elements(owner), p, bytes_of(mine_) + owner * length);
  exchange_slices(group, theirs_, mine_);
  const int me = group.rank();
  float* const sum = gradients + begin(me);
  for (int rank = 0; rank < p; ++rank) codec_->decode(bytes_of(theirs_) + rank * length, elements(me), p, rank > 0, sum);
  const at::Tensor coded_sum = mine_[me];
  codec_->encode(sum, feedback_.data() + begin(me), elements(me), p, bytes_of(coded_sum));
  group.all_gather(theirs_, coded_sum, what);
  for (int owner = 0; owner < p; ++owner)
    codec_->decode(bytes_of(theirs_) + owner * length, elements(owner), p, false, gradients + begin(owner));
}

}  // namespace cohort
