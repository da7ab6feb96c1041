#pragma once
// Data by name, from a user's own code: what COHORT_DATA registers is opened by --data NAME[:ARGUMENT] as the built-in kinds are.

#include <functional>
#include <map>
#include <string>

#include "cohort/base/export.h"
#include "cohort/data/source/source.h"

namespace cohort {

/// Gets what stands after the colon, "" where nothing does. The sources that it gives are read by several threads at once, and by several
/// processes that were forked after it was called.
using DataFactory = std::function<DataSet(const std::string& argument, const DataOptions& options)>;

/// Registers under `name`; Error(kBadInput) when it is taken, or is no name. Call before run_cli; not thread-safe.
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
