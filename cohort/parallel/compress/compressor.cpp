#include "cohort/parallel/compress/compressor.h"

#include <ATen/ops/empty_like.h>

#include <map>

#include "cohort/base/fail.h"
#include "cohort/job/specs/small_specs.h"
#include "cohort/parallel/compress/codec.h"
#include "cohort/parallel/compress/compressors.h"

namespace cohort {
namespace {

/// What a row's maker gets; `argument` is the number after the colon.
struct Request {
  const CompressedBuffer& buffer;
  int64_t num_elements;
  uint64_t seed;
  double argument;
};

using Maker = std::unique_ptr<Compressor> (*)(const Request&);

/// By the names of job/specs/small_specs.cpp.
Maker maker_of(const std::string& name) {
  static const std::map<std::string, Maker> table = {
      {"none", [](const Request&) -> std::unique_ptr<Compressor> { return nullptr; }},
      {"fp16", [](const Request& r) { return make_fp16(r.num_elements); }},
      {"bf16", [](const Request& r) { return make_bf16(r.num_elements); }},
      {"int8", [](const Request& r) { return make_int8(r.num_elements); }},
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
  fail(ErrorCode::kBadInput, "compress=", name, " is no code of single numbers; there are: fp16 bf16 int8");
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

}  // namespace cohort
