#pragma once
// Metrics from a user's own code: what COHORT_METRIC registers is named by --metrics as the built-in ones are (metrics.h).

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "cohort/base/export.h"

namespace cohort {

/// What a metric of one's own gives of a chunk: a number for each target, in the order of these; the metric is their mean over all. Called
/// with scores {targets, classes}, or of a regression numbers {targets} and of labels scores {targets}, sample after sample, float32, and
/// the targets {targets}, int64 or float32, in host memory; by one thread a process.
using MetricFunction = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

/// Registers `name`; Error(kBadInput) when it is taken, or is no name. Call before run_cli(); not thread-safe.
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
