// The layout of weights and optimizer state in shared memory. The algorithm is in shared_data_parallel.cpp.
#include "cohort/parallel/shared_weights/shared_data_parallel_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cstring>

#include "cohort/base/fail.h"
#include "cohort/comm/group_internals.h"
#include "cohort/parallel/common/agreement.h"
#include "cohort/parallel/common/flat_piece.h"

namespace cohort {

SharedDataParallel::State::State(torch::nn::Module& module_, Group group_, const SharedDataParallelOptions& options)
    : module(module_), group(std::move(group_)), arena(GroupInternals::arena(group)) {
  if (!arena) fail(ErrorCode::kBadInput, "shared weights need ranks that share memory; these exchange over ", group.backend_name());
  at::NoGradGuard no_grad;
  all = distinct_parameters(module);
  check_same_model(group, all);
  check_forward_writes(module, group.size());
  for (const NamedTensor& parameter : all)  // Frozen ones move to shared memory too.
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

/// Cuts the trained elements into equal slices, one per rank, at cache lines.
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
    // Relative to the parameter's start, which is aligned, so that no two ranks write to one line.
    const auto cut = [&](int64_t at) {
      return at >= start + tensor.numel() ? tensor.numel() : std::max<int64_t>(0, at - start) / kAlign * kAlign;
    };
    const int64_t begin = cut(from), end = cut(to);
    const bool empty_one = tensor.numel() == 0 && group.rank() == 0;  // Must be saved by one rank.
    if (end > begin || empty_one) {
      slices.push_back({i, begin, end - begin});
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
  group.barrier();  // Pages must exist before they are read.
}

// Writes to shared weights by the program itself.
//
// In place: p ranks that each multiply a weight by two would multiply it by two to the p. Version counters reveal that; only rank 0 may
// write, between two steps and before load_weights() on all ranks. Writes through data() are not counted, so some elements of each
// parameter are compared with the values after the last step.
//
// Other memory, as torch::load() assigns: forward then reads a rank's own values. When all ranks have finished backward, each copies its
// slice to the shared memory, and parameters point there again before anybody reads.

namespace {

constexpr const char* kHowToWrite =
    "; these weights are one copy for all ranks, which each of them would change: apply gradients with step() alone, and give parameters "
    "new values with set_data(), the same on all ranks (p.set_data(p.data().clamp(-1, 1)) for p.data().clamp_(-1, 1)); or leave the "
    "optimizer out of ParallelOptions and call step(optimizer), where every rank has weights of its own";
constexpr int64_t kNumSamples = 4;

}  // namespace

void SharedDataParallel::State::check_weights() const {
  module_watch.check_trained("SharedDataParallel");
  weight_watch.check();
  if (const int64_t written = weight_watch.first_written(); written >= 0)
    fail(ErrorCode::kFailed, "the program of rank ", group.rank(), " wrote to parameter ", all[static_cast<size_t>(written)].name,
         " in place", kHowToWrite);
}

/// The bits of up to kNumSamples elements of each parameter, concatenated.
std::vector<char> SharedDataParallel::State::sample_weights() const {
  std::vector<char> samples;
  for (size_t i = 0; i < all.size(); ++i) {
    const at::Tensor& place = weight_watch.place(i);
    const auto* const data = static_cast<const char*>(place.const_data_ptr());
    const int64_t count = place.numel(), size = place.element_size();
    for (int64_t k = 0; k < std::min(kNumSamples, count); ++k) {
      const char* const element = data + (count * (2 * k + 1) / (2 * std::min(kNumSamples, count))) * size;
      samples.insert(samples.end(), element, element + size);
    }
  }
  return samples;
}

/// Weights change only in steps.
void SharedDataParallel::State::remember_weights() { samples = sample_weights(); }

void SharedDataParallel::State::check_samples() const {
  if (samples.empty()) return;
  const std::vector<char> now = sample_weights();
  if (now == samples) return;
  size_t at = static_cast<size_t>(std::mismatch(now.begin(), now.end(), samples.begin()).first - now.begin());
  size_t index = 0;
  for (; index < all.size(); ++index) {
    const at::Tensor& place = weight_watch.place(index);
    const auto bytes = static_cast<size_t>(std::min(kNumSamples, place.numel()) * place.element_size());
    if (at < bytes) break;
    at -= bytes;
  }
  fail(ErrorCode::kFailed, "a program wrote to parameter ", all[index].name, " in place, through data() or a pointer, since the last step",
       kHowToWrite);
}

uint64_t SharedDataParallel::State::replaced_parameters() const {
  uint64_t sum = 0;
  for (size_t i = 0; i < all.size(); ++i)
    if (weight_watch.is_replaced(i)) sum = (sum ^ (i + 1)) * 0x100000001b3;
  return sum;
}

/// Copies this rank's slices of them and, on rank 0, frozen ones.
void SharedDataParallel::State::copy_replaced() {
  if (!weight_watch.any_replaced()) return;
  const at::NoGradGuard no_grad;
  std::vector<const OwnSlice*> slice_of(trained.size(), nullptr);
  for (const OwnSlice& slice : slices) slice_of[slice.parameter] = &slice;
  for (size_t i = 0, next_trained = 0; i < all.size(); ++i) {
    const at::Tensor values = all[i].tensor.detach().reshape({-1}), place = weight_watch.place(i).view({-1});
    const OwnSlice* const slice = all[i].tensor.requires_grad() ? slice_of[next_trained++] : nullptr;
    if (!weight_watch.is_replaced(i)) continue;
    if (slice) place.narrow(0, slice->begin, slice->count).copy_(values.narrow(0, slice->begin, slice->count));
    else if (!all[i].tensor.requires_grad() && group.rank() == 0) place.copy_(values);
  }
}

/// After all ranks have arrived: none reads weights until the step has ended.
void SharedDataParallel::State::take_over() {
  for (int rank = 0; rank < group.size(); ++rank)
    if (page(rank).replaced != page(0).replaced)
      fail(ErrorCode::kFailed, "ranks 0 and ", rank, " do not have the same parameters in memory of the program's own",
           " (torch::load(), set_data()); do that on all ranks");
  if (page(0).replaced == 0) return;
  copy_replaced();
  for (size_t i = 0; i < all.size(); ++i)
    if (weight_watch.is_replaced(i)) weight_watch.restore(i);
  group.barrier();  // Programs may not call step() next.
  remember_weights();
}

/// At the first gradient of a backward(). LibTorch's optimizers write through data(), which is not seen, but their zero_grad() is.
void SharedDataParallel::State::begin_backward(const at::Tensor& first) {
  check_weights();
  const bool is_fresh = std::none_of(trained.begin(), trained.end(), [&first](const NamedTensor& parameter) {
    return !parameter.tensor.is_same(first) && parameter.tensor.grad().defined();
  });
  if (has_begun && is_fresh && trained.size() > 1) note_dropped();
  has_begun = true;
}

/// Gradients were dropped without a step().
void SharedDataParallel::State::note_dropped() {
  constexpr int kPatience = 3;  // A program may drop its first gradients, for instance infinite ones.
  if (!step_was_called && ++num_dropped >= kPatience)
    fail(ErrorCode::kFailed, "the gradients of ", num_dropped, " backward passes were dropped and step() was never called", kHowToWrite);
}

void SharedDataParallel::skip_step() {
  state_->num_dropped = 0;
  state_->forget_gradients();
}

/// The next backward begins a new step.
void SharedDataParallel::State::forget_gradients() {
  for (NamedTensor& parameter : trained) parameter.tensor.mutable_grad() = at::Tensor();
  held_gradients.clear();
  arrived = has_begun = false;
}

void SharedDataParallel::part_from_module() {
  const at::NoGradGuard no_grad;
  for (const NamedTensor& parameter : state_->all) {
    at::Tensor tensor = parameter.tensor;
    tensor.set_data(tensor.detach().clone());
  }
}

void SharedDataParallel::gather_weights() {
  state_->check_weights();
  state_->check_samples();
  state_->group.barrier();  // Rank 0 may write next, while another rank is still comparing.
}

void SharedDataParallel::load_weights() {
  const at::NoGradGuard no_grad;
  State& s = *state_;
  s.weight_watch.check();
  const at::Tensor mine = at::empty({1}, at::kLong), all = at::empty({s.group.size(), 1}, at::kLong);
  mine.data_ptr<int64_t>()[0] = s.weight_watch.first_written();
  s.group.all_gather(all, mine, "what ranks wrote to weights");
  const auto* const written = all.const_data_ptr<int64_t>();
  int64_t num_writers = 0, last = 0;
  for (int rank = 0; rank < s.group.size(); ++rank)
    if (written[rank] >= 0) ++num_writers, last = rank;
  if (num_writers > 1)
    fail(ErrorCode::kFailed, num_writers, " ranks wrote to weights in place, rank ", last, " to parameter ",
         s.all[static_cast<size_t>(written[last])].name, kHowToWrite);
  for (size_t i = 0; i < s.all.size(); ++i) {
    if (!s.weight_watch.is_replaced(i)) continue;
    const at::Tensor values = s.weight_watch.restore(i);
    if (s.group.rank() == 0) s.weight_watch.place(i).copy_(values);
  }
  for (const NamedTensor& buffer : distinct_buffers(s.module)) {
    if (buffer.tensor.numel() == 0) continue;
    at::Tensor values = buffer.tensor.detach().contiguous();
    s.group.broadcast(values, 0, buffer.name);
    if (!values.is_same(buffer.tensor)) buffer.tensor.detach().copy_(values);
  }
  s.weight_watch.remember();
  s.group.barrier();
  s.remember_weights();
}

}  // namespace cohort
