// One copy of weights and optimizer state in shared memory: where things lie. The whole is described in shared_data_parallel.cpp.
#include "cohort/parallel/one_copy/shared_data_parallel_state.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cstring>

#include "cohort/base/fail.h"
#include "cohort/comm/group_internals.h"
#include "cohort/parallel/common/agreement.h"
#include "cohort/parallel/common/initial_broadcast.h"
#include "cohort/parallel/common/tensor_alias.h"

namespace cohort {

SharedDataParallel::State::State(torch::nn::Module& module_, Group group_, const SharedDataParallelOptions& options)
    : module(module_), group(std::move(group_)), arena(GroupInternals::arena(group)) {
  if (!arena)
    fail(ErrorCode::kBadInput, "one copy of the weights needs ranks that share memory; these exchange over ", group.backend_name());
  at::NoGradGuard no_grad;
  all = distinct_parameters(module);
  check_same_model(group, all);
  check_forward_writes(module, group.size());
  for (const NamedTensor& parameter : all)  // The frozen ones move to shared memory too.
    if (!parameter.tensor.is_contiguous())
      fail(ErrorCode::kBadInput, "parameter ", parameter.name, " is not contiguous; make it contiguous before it is trained in parallel");
  trained = trained_parameters(all);
  if (options.broadcast_model) broadcast_model(module, group);
  buffers = std::make_unique<BufferAverage>(module, group);
  page_offset = arena->reserve(sizeof(SharedRankPage) + trained.size() * sizeof(uint64_t));
  new (&page(group.rank())) SharedRankPage;
  share_weights();
  for (const NamedTensor& parameter : all) weight_watch.add(parameter);
  divide(options.rule);
  place_small_gradients();
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& parameter : trained) tensors.push_back(parameter.tensor);
  gradient_memory = std::make_unique<GradientMemory>(arena, tensors);
  remember_weights();
}

/// Moves all parameters to rank 0's region.
void SharedDataParallel::State::share_weights() {
  constexpr int64_t kLine = 64;
  std::vector<int64_t> offsets;
  int64_t bytes = 0;
  for (const NamedTensor& parameter : all) {
    offsets.push_back(bytes);
    bytes += (static_cast<int64_t>(parameter.tensor.nbytes()) + kLine - 1) / kLine * kLine;
  }
  at::Tensor where = at::zeros({1}, at::kLong);
  if (group.rank() == 0) {
    std::byte* const data = arena->allocate_local(static_cast<size_t>(bytes));
    where.fill_(static_cast<int64_t>(data - arena->region(0)));
    for (size_t i = 0; i < all.size(); ++i) {
      const at::Tensor& tensor = all[i].tensor;
      if (tensor.numel() > 0) std::memcpy(data + offsets[i], tensor.data_ptr(), tensor.nbytes());
    }
    page(0).num_weight_users = group.size();
  }
  group.broadcast(where, 0, "the place of the shared weights");
  std::byte* const data = arena->region(0) + where.item<int64_t>();
  // Held by every parameter: a rank may end while others still read.
  const std::shared_ptr<void> user(nullptr, [arena = arena, data, bytes, &users = page(0).num_weight_users](void*) {
    if (users.fetch_sub(1) == 1) arena->release_local(data, static_cast<size_t>(bytes));
  });
  for (size_t i = 0; i < all.size(); ++i) {
    at::Tensor& tensor = all[i].tensor;
    if (tensor.numel() == 0) continue;
    tensor.set_data(at::from_blob(data + offsets[i], tensor.sizes(), [user](void*) {}, tensor.options()));
  }
  group.barrier();
}

/// Cuts the trained elements into as many equal shares as there are ranks, at cache lines.
void SharedDataParallel::State::divide(const UpdateRule& rule) {
  constexpr int64_t kAlign = 16;
  int64_t total = 0;
  for (const NamedTensor& parameter : trained) total += parameter.tensor.numel();
  num_elements = total;
  const auto cut_before = [&](int rank) { return rank == group.size() ? total : total / kAlign * rank / group.size() * kAlign; };
  const int64_t from = cut_before(group.rank()), to = cut_before(group.rank() + 1);
  std::vector<Segment> segments;
  int64_t start = 0;
  for (size_t i = 0; i < trained.size(); ++i) {
    const at::Tensor& tensor = trained[i].tensor;
    // Relative to the parameter's start, which is a cache line, so that no line is written by two ranks.
    const auto cut = [&](int64_t at) {
      return at >= start + tensor.numel() ? tensor.numel() : std::max<int64_t>(0, at - start) / kAlign * kAlign;
    };
    const int64_t begin = cut(from), end = cut(to);
    const bool empty_one = tensor.numel() == 0 && group.rank() == 0;  // Saved by somebody, too.
    if (end > begin || empty_one) {
      shares.push_back({i, begin, end - begin});
      segments.push_back({trained[i].name, tensor.sizes().vec(), begin, alias_of(tensor.detach(), begin, {end - begin})});
    }
    start += tensor.numel();
  }
  optimizer = std::make_unique<ShardOptimizer>(rule, std::move(segments));
}

void SharedDataParallel::State::place_small_gradients() {
  constexpr int64_t kLineElements = 8;  // Of the widest type.
  int64_t elements = 0;
  small_places.resize(trained.size());
  std::vector<int64_t> offsets(trained.size(), -1);
  for (size_t i = 0; i < trained.size(); ++i) {
    const at::Tensor& tensor = trained[i].tensor;
    if (tensor.nbytes() >= GradientMemory::kSmallestBytes || tensor.numel() == 0) continue;
    offsets[i] = elements;
    elements += (tensor.numel() + kLineElements - 1) / kLineElements * kLineElements;
  }
  small_gradients = group.allocate(elements, at::kDouble);
  for (size_t i = 0; i < trained.size(); ++i) {
    if (offsets[i] < 0) continue;
    const at::Tensor& tensor = trained[i].tensor;
    void* const data = small_gradients.data_ptr<double>() + offsets[i];
    small_places[i] = at::from_blob(data, tensor.sizes(), [keep = small_gradients](void*) {}, tensor.options().requires_grad(false));
  }
  statistics.num_buckets = 1;
  for (const NamedTensor& parameter : trained) statistics.bytes += static_cast<int64_t>(parameter.tensor.nbytes());
  group.barrier();  // Nobody reads a page before it is made.
}

}  // namespace cohort
