// Data parallelism with one copy of weights and optimizer state on a host.
//
// The parameters lie in rank 0's shared memory and are everybody's; all trained elements, one parameter after the other, are divided into p
// consecutive shares, one a rank. Steps, p ranks, n elements, after backward() has left gradients in shared memory (gradient_memory.h):
//   1. finish_backward(): rank r writes where its gradients lie (and its control numbers) to its table, publishes "arrived" and waits
//      until all have.
//   2. step(): in one pass over its share rank r adds the gradients of all ranks, in rank order, and applies the optimizer to its share of
//      the weights in place; publishes "finished" and waits until all have.
// Clipping and checks for infinities need the sum before the update: then step 2 is two passes, the sum is kept in the rank's own gradient,
// and the partial norms are exchanged between them.
//
// Cost for a rank: 2 synchronisations (3 with clipping), no message, no copy of a gradient larger than a page. Memory traffic of the host:
// p n gradients read once, n weights and s n optimizer state read and written once (s = 0 sgd, 1 momentum, 2 adam). With an all-reduce and
// a whole optimizer in each rank it is 2 p n + p (3 + 2 s) n.
// Memory of the host: n weights, s n state, p n gradients.
//
// Source: ZeRO stage 1 (Rajbhandari et al. 2020, section 5.1) where "gather" is a page table; the idea of a server that owns a share of the
// weights in shared memory is that of Hogwild's lock-free predecessors and BytePS' CPU servers. Sums in rank order are ours.
#include "cohort/parallel/shared_data_parallel.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>

#include "cohort/base/clock.h"
#include "cohort/base/error.h"
#include "cohort/comm/shm_arena.h"
#include "cohort/comm/shm_wait.h"
#include "cohort/parallel/agreement.h"
#include "cohort/parallel/buffer_average.h"
#include "cohort/parallel/gradient_memory.h"
#include "cohort/parallel/initial_broadcast.h"
#include "cohort/parallel/parameters.h"
#include "cohort/parallel/tensor_alias.h"
#include "cohort/parallel/tile_sum.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kNoGradient = ~uint64_t{0};

/// One rank's page of numbers for the others, followed by its table: for each trained parameter where its gradient lies in the rank's
/// region.
struct alignas(128) RankPage {
  ShmCounter arrived, summed, finished;
  std::atomic<int> num_weight_users{0};  ///< Rank 0's: ranks that still use the weights; the last one gives the memory back.
  double norm_squared = 0;
  float controls[DataParallel::kNumControls] = {};
};

/// Elements [begin, begin + count) of a parameter: one rank's work.
struct Share {
  size_t parameter = 0;
  int64_t begin = 0, count = 0;
};

}  // namespace

struct SharedDataParallel::State {
  Group group;
  std::shared_ptr<ShmArena> arena;
  std::vector<NamedTensor> all, trained;
  std::vector<Share> shares;  ///< This rank's; segment i of the optimizer is shares[i].
  std::unique_ptr<ShardOptimizer> optimizer;
  std::unique_ptr<GradientMemory> gradient_memory;
  std::unique_ptr<BufferAverage> buffers;
  at::Tensor small_gradients;              ///< Places of gradients below a page, in shared memory.
  std::vector<at::Tensor> small_places;    ///< One a parameter; undefined for large ones.
  std::vector<at::Tensor> held_gradients;  ///< What the table points to, until all have finished.
  uint64_t num_steps = 0;
  int64_t num_elements = 0;  ///< Trained, of the whole model.
  double buffer_share = -1;
  bool arrived = false;
  std::array<float, DataParallel::kNumControls> controls{}, control_sums{};
  ExchangeStatistics statistics;

  State(torch::nn::Module& module, Group group, const SharedDataParallelOptions& options);
  void share_weights();
  void divide(const UpdateRule& rule);
  void place_small_gradients();
  RankPage& page(int rank) const { return *reinterpret_cast<RankPage*>(arena->region(rank) + page_offset); }
  uint64_t* table(int rank) const { return reinterpret_cast<uint64_t*>(arena->region(rank) + page_offset + sizeof(RankPage)); }
  size_t page_offset = 0;

  void write_table();
  void arrive();
  void wait_all(ShmCounter RankPage::* counter, Op op, int64_t count, const char* what);
  std::vector<std::byte*> addends(const Share& share) const;
  void add_and_update(double learning_rate, double factor);
  double add_and_measure(const std::function<bool(const std::string&)>& counts);
  StepOutcome agree(double norm_squared, const StepOptions& options, double* factor);
  std::vector<std::byte*> sums;  ///< Of each of this rank's shares, null where no rank has a gradient; for steps in two passes.
};

SharedDataParallel::State::State(torch::nn::Module& module, Group group_, const SharedDataParallelOptions& options)
    : group(std::move(group_)), arena(group.arena()) {
  if (!arena)
    fail(ErrorCode::kBadInput, "one copy of the weights needs ranks that share memory; these exchange over ", group.backend_name());
  at::NoGradGuard no_grad;
  all = distinct_parameters(module);
  check_same_model(group, all);
  for (const NamedTensor& parameter : all)  // The frozen ones move to shared memory too.
    if (!parameter.tensor.is_contiguous())
      fail(ErrorCode::kBadInput, "parameter ", parameter.name, " is not contiguous; make it contiguous before it is trained in parallel");
  trained = trained_parameters(all);
  if (options.broadcast_model) broadcast_model(module, group);
  buffers = std::make_unique<BufferAverage>(module, group);
  page_offset = arena->reserve(sizeof(RankPage) + trained.size() * sizeof(uint64_t));
  new (&page(group.rank())) RankPage;
  share_weights();
  divide(options.rule);
  place_small_gradients();
  std::vector<size_t> sizes;
  for (const NamedTensor& parameter : trained) sizes.push_back(parameter.tensor.nbytes());
  gradient_memory = std::make_unique<GradientMemory>(arena, sizes);
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

/// Says where each gradient lies; what does not lie in shared memory is copied there.
void SharedDataParallel::State::write_table() {
  uint64_t* const places = table(group.rank());
  held_gradients.clear();
  for (size_t i = 0; i < trained.size(); ++i) {
    at::Tensor gradient = trained[i].tensor.grad();
    places[i] = kNoGradient;
    if (!gradient.defined() || gradient.numel() == 0) continue;
    if (gradient.is_sparse()) gradient = gradient.to_dense();
    size_t offset;
    if (small_places[i].defined()) {
      if (gradient.is_contiguous()) std::memcpy(small_places[i].data_ptr(), gradient.data_ptr(), gradient.nbytes());
      else small_places[i].copy_(gradient);
      gradient = small_places[i];
    } else if (!gradient.is_contiguous() || !arena->offset_of(gradient.data_ptr(), gradient.nbytes(), &offset)) {
      gradient = at::empty(trained[i].tensor.sizes(), trained[i].tensor.options().requires_grad(false)).copy_(gradient);
    }
    if (!arena->offset_of(gradient.data_ptr(), gradient.nbytes(), &offset))
      fail(ErrorCode::kFailed, "the gradient of ", trained[i].name,
           " could not be put into shared memory: backward() ran on another thread?");
    places[i] = offset;
    held_gradients.push_back(std::move(gradient));
  }
}

/// Recorded as the operation that it stands for, so that a failure is told like that of any exchange.
void SharedDataParallel::State::wait_all(ShmCounter RankPage::* counter, Op op, int64_t count, const char* what) {
  const at::ScalarType type = trained.empty() ? at::kFloat : trained.front().tensor.scalar_type();
  group.run_by_hand(op, static_cast<size_t>(count), type, what, [&] {
    group.waiter()->wait_all(group.rank(), num_steps, [&](int peer) -> ShmCounter& { return page(peer).*counter; });
  });
}

void SharedDataParallel::State::arrive() {
  if (arrived) return;
  const auto began = Clock::now();
  at::NoGradGuard no_grad;
  write_table();
  RankPage& mine = page(group.rank());
  std::copy(controls.begin(), controls.end(), mine.controls);
  publish(mine.arrived, ++num_steps);
  wait_all(&RankPage::arrived, Op::kReduceScatter, num_elements, "gradients");
  for (int slot = 0; slot < DataParallel::kNumControls; ++slot) {
    double sum = 0;
    for (int rank = 0; rank < group.size(); ++rank) sum += page(rank).controls[slot];
    control_sums[static_cast<size_t>(slot)] = static_cast<float>(sum);
  }
  buffers->average(buffer_share >= 0 ? buffer_share : 1.0 / group.size());
  arrived = true;
  statistics.exposed_seconds = seconds_since(began);
}

/// The gradients of a share on the ranks that have one, in rank order.
std::vector<std::byte*> SharedDataParallel::State::addends(const Share& share) const {
  std::vector<std::byte*> arrays;
  const size_t skip = static_cast<size_t>(share.begin) * trained[share.parameter].tensor.element_size();
  for (int rank = 0; rank < group.size(); ++rank)
    if (const uint64_t place = table(rank)[share.parameter]; place != kNoGradient) arrays.push_back(arena->region(rank) + place + skip);
  return arrays;
}

/// One pass. A parameter that no rank used, and its state, stay as they are.
void SharedDataParallel::State::add_and_update(double learning_rate, double factor) {
  for (size_t i = 0; i < shares.size(); ++i) {
    const std::vector<std::byte*> arrays = addends(shares[i]);
    if (arrays.empty()) continue;
    optimizer->begin_update(i);
    optimizer->update_by_sum(i, arrays, learning_rate, factor);
  }
}

/// First of two passes: the sum replaces the first addend, of which nobody else reads this share. Returns its squared norm.
double SharedDataParallel::State::add_and_measure(const std::function<bool(const std::string&)>& counts) {
  double norm_squared = 0;
  sums.assign(shares.size(), nullptr);
  for (size_t i = 0; i < shares.size(); ++i) {
    const std::vector<std::byte*> arrays = addends(shares[i]);
    if (arrays.empty()) continue;
    sums[i] = arrays.front();
    const at::ScalarType type = trained[shares[i].parameter].tensor.scalar_type();
    const size_t element_bytes = c10::elementSize(type);
    const bool is_counted = counts(trained[shares[i].parameter].name);
    for_each_tile_sum(arrays, shares[i].count, type, [&](int64_t offset, int64_t count, const void* sum) {
      std::memcpy(sums[i] + static_cast<size_t>(offset) * element_bytes, sum, static_cast<size_t>(count) * element_bytes);
      if (is_counted) norm_squared += squared_norm(sum, count, type);
    });
  }
  return norm_squared;
}

/// The same norm, and the same decision, on every rank.
StepOutcome SharedDataParallel::State::agree(double norm_squared, const StepOptions& options, double* factor) {
  RankPage& mine = page(group.rank());
  mine.norm_squared = norm_squared;
  publish(mine.summed, num_steps);
  wait_all(&RankPage::summed, Op::kAllReduce, 1, "gradient norm");
  double total = 0;
  for (int rank = 0; rank < group.size(); ++rank) total += page(rank).norm_squared;
  return judge_gradient(total, options, factor);
}

SharedDataParallel::SharedDataParallel(torch::nn::Module& module, Group group, SharedDataParallelOptions options)
    : state_(std::make_unique<State>(module, std::move(group), options)) {}
SharedDataParallel::~SharedDataParallel() = default;

void SharedDataParallel::zero_grad() {
  for (NamedTensor& parameter : state_->trained) parameter.tensor.mutable_grad() = at::Tensor();
  state_->held_gradients.clear();
  state_->arrived = false;
}

void SharedDataParallel::set_sync(bool) {}  // Gradients add up in `.grad` until finish_backward().
void SharedDataParallel::set_buffer_share(double share) { state_->buffer_share = share; }
void SharedDataParallel::set_control(int slot, float value) { state_->controls.at(static_cast<size_t>(slot)) = value; }
float SharedDataParallel::control_sum(int slot) const { return state_->control_sums.at(static_cast<size_t>(slot)); }
void SharedDataParallel::exchange_without_backward() {}
void SharedDataParallel::finish_backward() { state_->arrive(); }

StepOutcome SharedDataParallel::step(const StepOptions& options) {
  State& s = *state_;
  s.arrive();
  at::NoGradGuard no_grad;
  const auto began = Clock::now();
  StepOutcome outcome;
  double factor = options.gradient_factor;
  if (options.clip_norm > 0 || options.check_finite) {
    outcome = s.agree(s.add_and_measure([this](const std::string& name) { return counts(name); }), options, &factor);
    for (size_t i = 0; i < s.shares.size() && !outcome.skipped; ++i) {
      if (!s.sums[i]) continue;
      s.optimizer->begin_update(i);
      s.optimizer->update(i, 0, s.shares[i].count, s.sums[i], options.learning_rate, factor);
    }
  } else {
    s.add_and_update(options.learning_rate, factor);
  }
  const auto updated = Clock::now();
  outcome.update_seconds = std::chrono::duration<double>(updated - began).count();
  publish(s.page(s.group.rank()).finished, s.num_steps);
  s.wait_all(&RankPage::finished, Op::kAllGather, s.num_elements, "weights");
  s.statistics.exposed_seconds += seconds_since(updated);
  return outcome;
}

const ExchangeStatistics& SharedDataParallel::statistics() const { return state_->statistics; }

MemoryForecast SharedDataParallel::memory_forecast() const {
  int64_t weights = 0, gradients = 0;
  for (const NamedTensor& parameter : state_->all) weights += static_cast<int64_t>(parameter.tensor.nbytes());
  for (const NamedTensor& parameter : state_->trained) gradients += static_cast<int64_t>(parameter.tensor.nbytes());
  return {state_->group.rank() == 0 ? weights : 0, gradients, state_->optimizer->state_bytes()};
}

std::vector<FlatPiece> SharedDataParallel::saved_pieces() {
  std::vector<FlatPiece> pieces = state_->optimizer->state(/*saving=*/true);
  for (size_t i = 0; i < state_->optimizer->size(); ++i) {
    const Segment& segment = state_->optimizer->segment(i);
    pieces.push_back({"model/" + segment.parameter, segment.weights, segment.shape, segment.begin});
  }
  if (state_->group.rank() == 0)
    for (const NamedTensor& parameter : state_->all)
      if (!parameter.tensor.requires_grad())
        pieces.push_back({"model/" + parameter.name, alias_of(parameter.tensor.detach(), 0, {parameter.tensor.numel()}),
                          parameter.tensor.sizes().vec(), 0});
  return pieces;
}

std::vector<FlatPiece> SharedDataParallel::loaded_pieces() {
  std::vector<FlatPiece> pieces = state_->optimizer->state(/*saving=*/false);
  for (FlatPiece& piece : saved_pieces())
    if (piece.name.starts_with("model/")) pieces.push_back(std::move(piece));
  return pieces;
}

void SharedDataParallel::loaded() {
  state_->optimizer->load_counts();
  state_->group.barrier();
}

}  // namespace cohort
