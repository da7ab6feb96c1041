#pragma once
// Models by name: the built-in families, and whatever a user's binary or plug-in registers with COHORT_MODEL.

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/data/source.h"
#include "cohort/models/layer_graph.h"

namespace cohort {

/// The `key=value` settings of `--model NAME:key=value,...`, and what the data looks like. Every getter marks its key as known; a key that
/// no getter asked for is an Error(kBadInput) that lists the known ones (check_all_used).
class ModelOptions {
 public:
  ModelOptions(DataShape data, std::map<std::string, std::string> values) : data_(std::move(data)), values_(std::move(values)) {}

  const DataShape& data() const { return data_; }
  int64_t integer(const std::string& key, int64_t fallback, int64_t minimum = 1, int64_t maximum = INT64_C(1) << 40) const;
  double number(const std::string& key, double fallback, double minimum, double maximum) const;
  std::string text(const std::string& key, const std::string& fallback, const std::vector<std::string>& allowed = {}) const;
  void check_all_used(const std::string& model) const;

 private:
  const std::string* find(const std::string& key) const;  ///< Marks the key as known; null when it was not given.

  DataShape data_;
  std::map<std::string, std::string> values_;
  mutable std::vector<std::string> known_;
};

/// What a factory may return: a LayerGraph, or a torch::nn::Sequential that becomes one (each child a layer under its own name).
struct BuiltModel {
  BuiltModel(std::shared_ptr<LayerGraph> built) : graph(std::move(built)) {}  // NOLINT: meant to convert
  BuiltModel(torch::nn::Sequential sequential);                               // NOLINT: meant to convert
  std::shared_ptr<LayerGraph> graph;
};
using ModelFactory = std::function<BuiltModel(const ModelOptions&)>;

/// Registers under `name`; Error(kBadInput) when it is taken. Call before run_cli; not thread-safe.
void register_model(const std::string& name, const std::string& help, ModelFactory factory);

struct ModelEntry {
  std::string name, help;
  ModelFactory factory;
};
/// Built-in and registered models, sorted by name.
const std::map<std::string, ModelEntry>& registered_models();
/// Error(kBadInput) that suggests the nearest name, where there is none.
const ModelEntry& find_model(const std::string& name);

/// Builds `NAME[:key=value,...]` for this data with weights initialised from `seed` (the same on every rank and every layout). An unknown
/// name or key: Error(kBadInput) that suggests the nearest.
std::shared_ptr<LayerGraph> build_model(const std::string& specification, const DataShape& data, uint64_t seed);

namespace detail {
struct ModelRegistrar {
  ModelRegistrar(const char* name, ModelFactory factory) { register_model(name, "", std::move(factory)); }
};
}  // namespace detail

#define COHORT_CONCAT_(a, b) a##b
#define COHORT_CONCAT(a, b) COHORT_CONCAT_(a, b)
/// At namespace scope: COHORT_MODEL("mine", [](const cohort::ModelOptions& options) { return build(options); });
#define COHORT_MODEL(name, ...) static const ::cohort::detail::ModelRegistrar COHORT_CONCAT(cohort_model_, __COUNTER__)(name, __VA_ARGS__)

}  // namespace cohort
