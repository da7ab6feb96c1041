#pragma once
// A planner instance in a file (docs/formats/instance.md), its options and its answer. Published instances of other planners,
// which `cohort bench plan` reads, have the same options and answers.

#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/base/text/json.h"

namespace cohort {

/// Overrides of the values of a file; nullopt or empty: the value of the file, or the format's default.
struct InstanceOptions {
  std::optional<int> devices;
  std::optional<double> memory_bytes;    ///< Per device.
  std::vector<double> bytes_per_second;  ///< For each level of links, inner first.
  std::vector<int> machines;             ///< For each level, inner first: {4, 4}.
  std::optional<int> batch;              ///< Micro-batches in a batch.
  double search_seconds = 10;            ///< At most; the best plan so far is the answer then.
  uint64_t search_seed = 1;              ///< Seed of randomized searches.
};

struct InstanceAnswer {
  double objective = 0;    ///< In the unit of the format; smaller is better.
  double lower_bound = 0;  ///< Proven: no plan is below.
  std::string bound_by;    ///< The relaxation that gave the bound: "area", "critical path", "memory", "search", ...
  bool optimal = false;    ///< The plan is as good as the bound, to 1e-9 of it, or the search was exhaustive.
  double search_seconds = 0;
  Json plan;  ///< As check.py of the instances takes it.
};

/// Error(kBadInput) names the file, the location, what was expected and what was found; Error(kInfeasible) names
/// the constraint that nothing meets, and what would do.
COHORT_PROGRAM_API InstanceAnswer solve_cohort_instance(const std::string& path, const InstanceOptions& options);

// Planner instances in JSON, with required values and types checked.

/// Every refusal is Error(kBadInput): file, place, what was expected, what was found (nodes[1] "id": expected a whole number, found 1.5).
class COHORT_PROGRAM_API JsonInstance {
 public:
  using Value = nlohmann::json;
  static constexpr double kMostValue = std::numeric_limits<double>::max();

  /// Reads all of it. Error(kBadInput) for more than `most_bytes`, for what is no JSON, or is nested too deep.
  JsonInstance(const std::string& path, size_t most_bytes);

  const Value& file() const { return json_; }
  const std::string& path() const { return path_; }

  [[noreturn]] void wrong(const std::string& place, const std::string& expected, const Value& found) const;

  /// The value of a key that must be there; refuses an `object` that is none.
  const Value& member(const Value& object, const char* key, const std::string& place) const;
  /// A number from `least` to `most`.
  double number(const Value& object, const char* key, const std::string& place, double least = 0, double most = kMostValue) const;
  double number_of(const Value& value, const char* key, const std::string& place, double least = 0, double most = kMostValue) const;
  /// A whole number at the top level of the file.
  int count(const char* key, int least, int most) const;
  int64_t integer(const Value& object, const char* key, const std::string& place) const;

 private:
  [[noreturn]] void wrong_value(const std::string& place, const char* key, const std::string& expected, const Value& found) const;

  std::string path_;
  Value json_;
};

}  // namespace cohort
