#include "cohort/job/specs/compression.h"

#include <functional>
#include <optional>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

struct Row {
  std::string name;
  std::string argument;  ///< As the user writes it; empty: there is none.
  std::string allowed;   ///< What it may be.
  std::function<bool(double)> allows;
};

bool is_fraction(double value) { return value > 0 && value <= 1; }
bool is_rank(double value) { return value >= 1 && value <= 1024 && value == static_cast<double>(static_cast<int64_t>(value)); }

const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {"none", "", "", {}},
      {"fp16", "", "", {}},
      {"bf16", "", "", {}},
      {"int8", "", "", {}},
      {"topk", "F", "the fraction of the elements that is sent, 0 < F <= 1, e.g. topk:0.01", is_fraction},
      {"powersgd", "R", "the rank of the approximation, a whole number from 1 to 1024, e.g. powersgd:4", is_rank},
  };
  return table;
}

std::string known_specs() {
  std::vector<std::string> specs;
  for (const Row& row : rows()) specs.push_back(row.argument.empty() ? row.name : row.name + ":" + row.argument);
  return join(specs, ", ");
}

}  // namespace

Compression parse_compression(const std::string& spec) {
  const size_t colon = spec.find(':');
  const std::string name = spec.substr(0, colon);
  std::vector<std::string> names;
  for (const Row& row : rows()) {
    names.push_back(row.name);
    if (row.name != name) continue;
    if (row.argument.empty()) {
      if (colon != std::string::npos)
        fail(ErrorCode::kBadInput, "compress=", printable(spec), ": ", name, " takes no number; write ", name);
      return {.name = name};
    }
    const std::optional<double> argument = colon == std::string::npos ? std::nullopt : parse_number(spec.substr(colon + 1));
    if (!argument || !row.allows(*argument))
      fail(ErrorCode::kBadInput, "compress=", printable(spec), ": ", row.argument, " in ", name, ":", row.argument, " is ", row.allowed);
    return {.name = name, .argument = *argument};
  }
  fail(ErrorCode::kBadInput, "compress=", printable(spec), ": no such compression", name.size() > 64 ? "" : did_you_mean(name, names),
       "; one of ", known_specs());
}

}  // namespace cohort
