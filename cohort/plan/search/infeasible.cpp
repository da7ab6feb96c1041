// Why nothing fits, and what would do.
//
//   memory    the peak of the plan that needs the least: with that much a rank, that plan fits.
//   devices   the same cluster with more hosts of its last kind, twice as many each time until a plan fits, at most kMostDoublings times;
//             then bisection on the number of devices. Every number that is named was found to do.
//
// Cost: about 2 x kMostDoublings searches for the least memory, of a fraction of a second each.

#include "cohort/plan/search/infeasible.h"

#include <algorithm>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

constexpr int kMostDoublings = 6, kMostDevices = 1 << 14;
constexpr double kSearchSeconds = 0.3;

std::string constraint(const WorkerForecast& worker) {
  const StepMemory& memory = worker.memory;
  const int64_t held = memory.weights + memory.gradients + memory.optimizer + memory.buffers + memory.buckets;
  if (held > worker.memory_limit) return "weights, gradients and optimizer alone are more than that";
  if (held + memory.overhead > worker.memory_limit)
    return "what a process has beside its tensors is, with weights, gradients and optimizer, more than that";
  if (memory.stash + memory.recompute > held)
    return "the activations of the smallest micro-batch do not fit, recomputed as far as that helps";
  return "weights, gradients, optimizer and the activations of the smallest micro-batch do not fit together";
}

std::optional<int> devices_that_do(const SearchRequest& request, const LeastMemory& search) {
  const auto does = [&](SearchRequest larger, int devices) {
    larger.problem.cluster = with_hosts_for(std::move(larger.problem.cluster), devices);
    larger.num_workers = devices;
    const auto plan = search(larger, kSearchSeconds);
    return plan && plan->forecast.fits;
  };
  int fails = request.num_workers > 0 ? request.num_workers : request.problem.cluster.num_devices(), fits = fails;
  for (int doubling = 0; doubling < kMostDoublings; ++doubling) {
    if (fits > kMostDevices / 2) return std::nullopt;
    fits *= 2;
    if (does(request, fits)) break;
    fails = fits;
    if (doubling + 1 == kMostDoublings) return std::nullopt;
  }
  while (fits - fails > 1) {
    const int middle = fails + (fits - fails) / 2;
    (does(request, middle) ? fits : fails) = middle;
  }
  return fits;
}

}  // namespace

std::string why_infeasible(const SearchRequest& request, const RankedPlan& least, const LeastMemory& search) {
  const WorkerForecast& worker = least.forecast.tightest_worker();
  const int workers = request.num_workers > 0 ? request.num_workers : request.problem.cluster.num_devices();
  std::string out = concat("plan: no layout of at most ", workers, workers == 1 ? " device" : " devices", " fits into ",
                           worker.memory_limit, " bytes a rank: ", constraint(worker), ". The least that was found needs ",
                           least.forecast.peak_memory_bytes(), " bytes (", to_text(least.candidate.layout), "): give each rank that much");
  const auto devices = devices_that_do(request, search);
  return devices ? concat(out, ", or ", *devices, " devices like these") : concat(out, "; more devices like these were not found to help");
}

}  // namespace cohort
