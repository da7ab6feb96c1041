#include "cohort/parallel/shared_weights/shared_data_parallel_state.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/node.h>

#include <mutex>
#include <unordered_map>

#include "cohort/parallel/watch/backward_watch.h"

namespace cohort {

using torch::autograd::Node;

/// Blocks of a rank's shared memory by size. Blocks may be released by any thread.
class GradientMemory::Pool {
 public:
  Pool(std::shared_ptr<ShmArena> arena, const std::vector<at::Tensor>& parameters) : arena_(std::move(arena)) {
    for (const at::Tensor& parameter : parameters) {
      if (parameter.nbytes() < kSmallestBytes) continue;
      bytes_of_[parameter.unsafeGetTensorImpl()] = parameter.nbytes();
      ++sizes_[parameter.nbytes()].num_parameters;
    }
  }
  ~Pool() {
    for (const auto& [data, block] : blocks_)
      if (block.has_memory) arena_->release_local(block.memory, block.memory_bytes);
  }

  bool has_size(size_t bytes) const { return sizes_.contains(bytes); }  // The keys never change, so no lock is needed.

  /// Whether an output of `node` becomes the gradient of a parameter of that size, directly or through nodes with one edge, such as a
  /// transpose.
  bool makes_gradient(const Node& node, size_t bytes) const {
    constexpr int kMostViews = 4;
    if (bytes_behind(node) == bytes) return true;
    for (const torch::autograd::Edge& edge : node.next_edges()) {
      const Node* next = edge.function.get();
      for (int i = 0; i < kMostViews && next && next->num_outputs() == 1; ++i) next = next->next_edge(0).function.get();
      if (next && bytes_behind(*next) == bytes) return true;
    }
    return false;
  }

  enum class Limit { kNone, kTwice };
  /// Null where the limit of blocks of that size is reached because the program holds earlier gradients.
  std::byte* take(size_t bytes, Limit limit) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Size& size = sizes_.at(bytes);
    if (limit == Limit::kTwice && size.num_in_use >= 2 * size.num_parameters + kSpare) return nullptr;
    std::byte* data = nullptr;
    if (!size.idle.empty()) {
      data = size.idle.back();
      size.idle.pop_back();
    } else if (!size.without_memory.empty()) {
      data = size.without_memory.back();
      Block& block = blocks_.at(data);
      arena_->take_local_again(block.memory, block.memory_bytes);
      block.has_memory = true;
      size.without_memory.pop_back();
      bytes_ += static_cast<int64_t>(bytes);
    } else {
      // Blocks begin at different cache lines of a page, so that arrays read side by side use different cache sets.
      const size_t shift = 64 * (blocks_.size() * 5 % 64);
      const Block block{arena_->allocate_local(bytes + shift), bytes + shift, bytes};
      data = block.memory + shift;
      blocks_.emplace(data, block);
      bytes_ += static_cast<int64_t>(bytes);
    }
    ++size.num_in_use;
    ++num_in_use_;
    return data;
  }

  /// Whether the block was one of the pool's.
  bool give_back(std::byte* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(data);
    if (found == blocks_.end()) return false;
    Block& block = found->second;
    Size& size = sizes_.at(block.bytes);
    if (static_cast<int64_t>(size.idle.size()) < size.num_parameters + kSpare) {
      size.idle.push_back(data);
    } else {
      arena_->release_local(block.memory, block.memory_bytes);
      block.has_memory = false;
      size.without_memory.push_back(data);
      bytes_ -= static_cast<int64_t>(block.bytes);
    }
    --size.num_in_use;
    --num_in_use_;
    return true;
  }

  bool in_use() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return num_in_use_ > 0;
  }
  int64_t bytes() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return bytes_;
  }
  bool holds(const void* data) const {
    size_t offset;
    return arena_->offset_of(data, 1, &offset);
  }

  bool closed = false;  ///< The registry drops the pool with its last block.

 private:
  static constexpr int64_t kSpare = 2;  ///< A node's other output of that size, and the gradient that it reads.

  /// Bytes of the parameter that this node accumulates for; 0: none of the pool's.
  size_t bytes_behind(const Node& node) const {
    if (node.num_outputs() != 0) return 0;
    const auto* const leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(&node);
    const auto found = leaf ? bytes_of_.find(leaf->variable.unsafeGetTensorImpl()) : bytes_of_.end();
    return found == bytes_of_.end() ? 0 : found->second;
  }

  struct Block {
    std::byte* memory;
    size_t memory_bytes, bytes;
    bool has_memory = true;
  };
  struct Size {
    std::vector<std::byte*> idle, without_memory;
    int64_t num_parameters = 0, num_in_use = 0;
  };
  std::shared_ptr<ShmArena> arena_;
  std::unordered_map<const c10::TensorImpl*, size_t> bytes_of_;
  mutable std::mutex mutex_;
  std::unordered_map<size_t, Size> sizes_;
  std::unordered_map<std::byte*, Block> blocks_;
  int64_t num_in_use_ = 0, bytes_ = 0;
};

namespace {

using Pool = GradientMemory::Pool;

thread_local std::vector<Pool*> pools_of_thread;

/// All pools with blocks in use: blocks are released by address.
class Registry {
 public:
  void add(std::shared_ptr<Pool> pool) {
    const std::lock_guard<std::mutex> lock(mutex_);
    pools_.push_back(std::move(pool));
  }
  void close(Pool& pool) {
    const std::lock_guard<std::mutex> lock(mutex_);
    pool.closed = true;
    drop_unused();
  }
  bool give_back(void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const std::shared_ptr<Pool>& pool : pools_) {
      if (!pool->holds(data) || !pool->give_back(static_cast<std::byte*>(data))) continue;
      if (pool->closed) drop_unused();
      return true;
    }
    return false;
  }

 private:
  void drop_unused() {
    std::erase_if(pools_, [](const std::shared_ptr<Pool>& pool) { return pool->closed && !pool->in_use(); });
  }
  std::mutex mutex_;
  std::vector<std::shared_ptr<Pool>> pools_;
};

Registry& registry() {
  static Registry* const one = new Registry;  // Never destroyed: tensors in static objects may outlive it.
  return *one;
}

/// LibTorch's allocator, except for sizes that the thread's pool serves.
class SharingAllocator final : public c10::Allocator {
 public:
  explicit SharingAllocator(c10::Allocator& base) : base_(base), release_base_(base.raw_deleter()) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes >= GradientMemory::kSmallestBytes)
      for (Pool* pool : pools_of_thread)
        if (pool->has_size(bytes))
          if (std::byte* const data = take(*pool, bytes)) return {data, data, &release, c10::Device(c10::kCPU)};
    return base_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  static void install() {
    static std::once_flag once;
    std::call_once(once, [] {
      one() = new SharingAllocator(*c10::GetCPUAllocator());
      c10::SetCPUAllocator(one(), /*priority=*/255);
    });
  }

 private:
  static std::byte* take(Pool& pool, size_t bytes) {
    const auto node = torch::autograd::get_current_node();
    if (!node || BackwardWatch::returns_gradients() || !pool.makes_gradient(*node, bytes)) return nullptr;
    return pool.take(bytes, Pool::Limit::kTwice);
  }
  static SharingAllocator*& one() {
    static SharingAllocator* allocator = nullptr;
    return allocator;
  }
  /// Also releases raw blocks of the base allocator.
  static void release(void* data) {
    if (data && !registry().give_back(data)) one()->release_base_(data);
  }

  c10::Allocator& base_;
  c10::DeleterFnPtr release_base_;
};

}  // namespace

GradientMemory::GradientMemory(std::shared_ptr<ShmArena> arena, const std::vector<at::Tensor>& parameters)
    : pool_(std::make_shared<Pool>(std::move(arena), parameters)) {
  SharingAllocator::install();
  registry().add(pool_);
  pools_of_thread.push_back(pool_.get());
}

GradientMemory::~GradientMemory() {
  std::erase(pools_of_thread, pool_.get());
  registry().close(*pool_);
}

at::Tensor GradientMemory::empty_like(const at::Tensor& parameter) {
  std::byte* const data = pool_->take(parameter.nbytes(), Pool::Limit::kNone);
  const auto give_back = [](void* block) { registry().give_back(block); };
  return at::from_blob(data, parameter.sizes(), give_back, parameter.options().requires_grad(false));
}

int64_t GradientMemory::bytes() const { return pool_->bytes(); }

}  // namespace cohort
