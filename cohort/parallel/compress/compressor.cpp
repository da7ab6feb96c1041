#include "cohort/parallel/compress/compressor.h"

#include <ATen/ops/empty_like.h>

#include <functional>
#include <optional>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
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

struct Row {
  std::string name;
  std::string argument;  ///< As the user writes it; empty: there is none.
  std::string allowed;   ///< What it may be.
  std::function<bool(double)> allows;
  std::function<std::unique_ptr<Compressor>(const Request&)> make;
};

bool is_fraction(double value) { return value > 0 && value <= 1; }
bool is_rank(double value) { return value >= 1 && value <= 1024 && value == static_cast<double>(static_cast<int64_t>(value)); }

const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {"none", "", "", {}, [](const Request&) { return nullptr; }},
      {"fp16", "", "", {}, [](const Request& r) { return make_fp16(r.num_elements); }},
      {"bf16", "", "", {}, [](const Request& r) { return make_bf16(r.num_elements); }},
      {"int8", "", "", {}, [](const Request& r) { return make_int8(r.num_elements); }},
      {"topk", "F", "the fraction of the elements that is sent, 0 < F <= 1, e.g. topk:0.01", is_fraction,
       [](const Request& r) { return make_top_k(r.num_elements, r.argument); }},
      {"powersgd", "R", "the rank of the approximation, a whole number from 1 to 1024, e.g. powersgd:4", is_rank,
       [](const Request& r) { return make_power_sgd(r.buffer, r.num_elements, static_cast<int64_t>(r.argument), r.seed); }},
  };
  return table;
}

std::string known_specs() {
  std::vector<std::string> specs;
  for (const Row& row : rows()) specs.push_back(row.argument.empty() ? row.name : row.name + ":" + row.argument);
  return join(specs, ", ");
}

struct Parsed {
  const Row* row;
  double argument = 0;
};

Parsed parse(const std::string& spec) {
  const size_t colon = spec.find(':');
  const std::string name = spec.substr(0, colon);
  std::vector<std::string> names;
  for (const Row& row : rows()) {
    names.push_back(row.name);
    if (row.name != name) continue;
    if (row.argument.empty()) {
      if (colon != std::string::npos)
        fail(ErrorCode::kBadInput, "compress=", printable(spec), ": ", name, " takes no number; write ", name);
      return {&row};
    }
    const std::optional<double> argument = colon == std::string::npos ? std::nullopt : parse_number(spec.substr(colon + 1));
    if (!argument || !row.allows(*argument))
      fail(ErrorCode::kBadInput, "compress=", printable(spec), ": ", row.argument, " in ", name, ":", row.argument, " is ", row.allowed);
    return {&row, *argument};
  }
  fail(ErrorCode::kBadInput, "compress=", printable(spec), ": no such compression", did_you_mean(name, names), "; one of ", known_specs());
}

}  // namespace

std::unique_ptr<Compressor> make_compressor(const std::string& spec, const CompressedBuffer& buffer, int64_t num_elements, uint64_t seed) {
  const Parsed parsed = parse(spec);
  return parsed.row->make({buffer, num_elements, seed, parsed.argument});
}

void check_compressor(const std::string& spec) { parse(spec); }

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
