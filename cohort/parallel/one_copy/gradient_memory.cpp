#include "cohort/parallel/one_copy/gradient_memory.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/node.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace cohort {

/// Blocks of one rank's shared memory, by size. Any thread may give a block back.
class GradientMemory::Pool {
 public:
  Pool(std::shared_ptr<ShmArena> arena, const std::vector<size_t>& sizes_bytes) : arena_(std::move(arena)) {
    for (const size_t bytes : sizes_bytes)
      if (bytes >= kSmallestBytes) ++sizes_[bytes].num_missing;
  }
  ~Pool() {
    for (const auto& [data, block] : blocks_) arena_->release_local(block.memory, block.memory_bytes);
  }

  bool has_size(size_t bytes) const { return sizes_.contains(bytes); }  // The keys never change: no lock is needed to look.

  /// Null where `bytes` is no gradient's size, or all of that size are in use.
  std::byte* take(size_t bytes) {
    const auto found = sizes_.find(bytes);
    if (found == sizes_.end()) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    Size& size = found->second;
    if (size.free.empty() && size.num_missing == 0) return nullptr;
    ++num_in_use_;
    if (!size.free.empty()) {
      std::byte* const data = size.free.back();
      size.free.pop_back();
      return data;
    }
    --size.num_missing;
    // Blocks begin at different cache lines of a page, so that arrays that are read side by side do not fall on the same cache sets.
    const size_t shift = 64 * (blocks_.size() * 5 % 64);
    Block block{arena_->allocate_local(bytes + shift), bytes + shift, bytes};
    std::byte* const data = block.memory + shift;
    blocks_.emplace(data, block);
    bytes_ += static_cast<int64_t>(bytes);
    return data;
  }

  /// Whether the block was one of these.
  bool give_back(std::byte* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(data);
    if (found == blocks_.end()) return false;
    sizes_.at(found->second.bytes).free.push_back(data);
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

  bool closed = false;  ///< Its GradientMemory has ended; the registry drops it with its last block.

 private:
  struct Block {
    std::byte* memory;
    size_t memory_bytes, bytes;
  };
  std::shared_ptr<ShmArena> arena_;
  mutable std::mutex mutex_;
  struct Size {
    std::vector<std::byte*> free;
    int64_t num_missing = 0;  // That may be made yet.
  };
  std::unordered_map<size_t, Size> sizes_;
  std::unordered_map<std::byte*, Block> blocks_;
  int64_t num_in_use_ = 0, bytes_ = 0;
};

namespace {

using Pool = GradientMemory::Pool;

thread_local std::vector<Pool*> pools_of_thread;

/// All pools that have blocks out: a block is given back by its address.
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
  static Registry* const one = new Registry;  // Never destroyed: tensors in static objects may end after it.
  return *one;
}

/// LibTorch's allocator, but for sizes that the thread's pool serves.
class SharingAllocator final : public c10::Allocator {
 public:
  explicit SharingAllocator(c10::Allocator& base) : base_(base), release_base_(base.raw_deleter()) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes >= GradientMemory::kSmallestBytes)
      for (Pool* pool : pools_of_thread)
        if (pool->has_size(bytes) && torch::autograd::get_current_node())
          if (std::byte* const data = pool->take(bytes)) return {data, data, &release, c10::Device(c10::kCPU)};
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
  static SharingAllocator*& one() {
    static SharingAllocator* allocator = nullptr;
    return allocator;
  }
  /// Also for raw blocks of the base allocator.
  static void release(void* data) {
    if (data && !registry().give_back(data)) one()->release_base_(data);
  }

  c10::Allocator& base_;
  c10::DeleterFnPtr release_base_;
};

}  // namespace

GradientMemory::GradientMemory(std::shared_ptr<ShmArena> arena, const std::vector<size_t>& sizes_bytes)
    : pool_(std::make_shared<Pool>(std::move(arena), sizes_bytes)) {
  SharingAllocator::install();
  registry().add(pool_);
  pools_of_thread.push_back(pool_.get());
}

GradientMemory::~GradientMemory() {
  std::erase(pools_of_thread, pool_.get());
  registry().close(*pool_);
}

at::Tensor GradientMemory::empty_like(const at::Tensor& parameter) {
  std::byte* const data = pool_->take(parameter.nbytes());
  if (!data) return {};
  const auto give_back = [](void* block) { registry().give_back(block); };
  return at::from_blob(data, parameter.sizes(), give_back, parameter.options().requires_grad(false));
}

int64_t GradientMemory::bytes() const { return pool_->bytes(); }

}  // namespace cohort
