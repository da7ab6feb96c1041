#include "cohort/bench/workload.h"

#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/utils.h>

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {

const std::vector<std::string>& bench_workloads() {
  static const std::vector<std::string> names = {"mlp-small", "mlp", "cnn", "gpt"};
  return names;
}

BenchWorkload bench_workload(const std::string& name) {
  const DataShape pictures{DataShape::Kind::kImage, {1, 28, 28}, 10, {}}, text{DataShape::Kind::kText, {128}, 256, {}};
  if (name == "mlp-small") return {"mlp-small", pictures, 16};
  if (name == "mlp") return {"mlp", pictures, 64};
  if (name == "cnn") return {"cnn-bench", pictures, 32};
  if (name == "gpt") return {"gpt", text, 8};
  fail(ErrorCode::kBadInput, "no workload '", name, "'", did_you_mean(name, bench_workloads()),
       "; workloads: ", join(bench_workloads(), " "));
}

BatchTensors bench_batch(const BenchWorkload& workload) {
  torch::manual_seed(1);
  std::vector<int64_t> sizes{workload.batch};
  sizes.insert(sizes.end(), workload.shape.input.begin(), workload.shape.input.end());
  const bool pictures = workload.shape.kind == DataShape::Kind::kImage;
  BatchTensors batch;
  batch.input = pictures ? at::randn(sizes) : at::randint(256, sizes, at::kLong);
  batch.target = at::randint(workload.shape.num_classes, pictures ? std::vector<int64_t>{workload.batch} : sizes, at::kLong);
  return batch;
}

}  // namespace cohort
