#pragma once
// Metrics of a user's own code: those that COHORT_METRIC registers can be named in --metrics like the built-in ones (metrics.h).

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "cohort/base/export.h"

namespace cohort {

/// Returns one number for each target, in the order of the targets; the metric is the mean over all. `output`: scores {targets, classes},
/// or for regressions and labels {targets}, float32; `target`: {targets}, int64 or float32; in host memory. Called by one thread of a
/// process.
using MetricFunction = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

/// Registers `name`; Error(kBadInput) where it is taken or not a valid name. Call before run_cli(); not thread-safe.
COHORT_API void register_metric(const std::string& name, MetricFunction function);

namespace detail {
struct MetricRegistrar {
  MetricRegistrar(const char* name, MetricFunction function) { register_metric(name, std::move(function)); }
};
}  // namespace detail

#define COHORT_METRIC_CONCAT_(a, b) a##b
#define COHORT_METRIC_CONCAT(a, b) COHORT_METRIC_CONCAT_(a, b)
/// At namespace scope: COHORT_METRIC("mine", [](const at::Tensor& output, const at::Tensor& target) { return output.argmax(1) == target;
/// });
#define COHORT_METRIC(name, ...) \
  static const ::cohort::detail::MetricRegistrar COHORT_METRIC_CONCAT(cohort_metric_, __COUNTER__)(name, __VA_ARGS__)

}  // namespace cohort
