#pragma once
// Registers custom data that --data NAME[:ARGUMENT] opens like the built-in kinds.

#include <functional>
#include <map>
#include <string>

#include "cohort/base/export.h"
#include "cohort/data/source/source.h"

namespace cohort {

/// Opens the data; `argument` is the text behind the colon, or "". Its sources are read concurrently by several threads, and by processes
/// that are forked afterwards.
using DataFactory = std::function<DataSet(const std::string& argument, const DataOptions& options)>;

/// Error(kBadInput) when `name` is taken or invalid. Call before run_cli; not thread-safe.
COHORT_API void register_data(const std::string& name, const std::string& help, DataFactory factory);

struct DataEntry {
  std::string name, help;
  DataFactory factory;
};
/// Sorted by name.
COHORT_API const std::map<std::string, DataEntry>& registered_data();

namespace detail {
struct DataRegistrar {
  DataRegistrar(const char* name, DataFactory factory) { register_data(name, "", std::move(factory)); }
};
}  // namespace detail

#define COHORT_DATA_CONCAT_(a, b) a##b
#define COHORT_DATA_CONCAT(a, b) COHORT_DATA_CONCAT_(a, b)
/// At namespace scope: COHORT_DATA("mine", [](const std::string& argument, const cohort::DataOptions& options) { return open(argument); });
#define COHORT_DATA(name, ...) static const ::cohort::detail::DataRegistrar COHORT_DATA_CONCAT(cohort_data_, __COUNTER__)(name, __VA_ARGS__)

}  // namespace cohort
