// Counts the allocations of LibTorch's CPU allocator and refuses those beyond a limit.
//
// The process's allocator is wrapped: blocks get a deleter of ours. LibTorch frees by address alone (raw_deallocate, and tensors that took
// over our deleter), so sizes are kept in a table by address; an unknown address was allocated before and goes to the wrapped allocator
// only. Sizes are those requested, without rounding. Cost of an allocation or release: one atomic addition and one look-up under one of
// kNumShards mutexes.
//
// Nothing here allocates with LibTorch's allocator, and a refusal leaves all counts unchanged, so the exception may pass through any
// operator and thread of backward.

#include "cohort/comm/shm/memory_count.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <mutex>
#include <unordered_map>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

/// Bytes held, their peak, and the limit.
class Count {
 public:
  void set_limit(int64_t bytes) { limit_ = bytes > 0 ? bytes : std::numeric_limits<int64_t>::max(); }

  void take(int64_t bytes) {
    int64_t held = held_.load(std::memory_order_relaxed);
    do {
      const int64_t limit = limit_.load(std::memory_order_relaxed);
      if (held > limit - bytes) refuse(bytes, held, limit);
    } while (!held_.compare_exchange_weak(held, held + bytes, std::memory_order_relaxed));
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (held + bytes > peak && !peak_.compare_exchange_weak(peak, held + bytes, std::memory_order_relaxed)) {
    }
  }
  void give_back(int64_t bytes) { held_.fetch_sub(bytes, std::memory_order_relaxed); }

  int64_t held() const { return held_.load(std::memory_order_relaxed); }
  int64_t peak() const { return peak_.load(std::memory_order_relaxed); }

 private:
  [[noreturn]] static void refuse(int64_t bytes, int64_t held, int64_t limit) {
    fail(ErrorCode::kEnvironment, kMemoryLimitReached, ": ", with_commas(bytes), " bytes (", human_bytes(bytes), ") were asked for, ",
         with_commas(held), " (", human_bytes(held), ") are held, the limit is ", with_commas(limit), " (", human_bytes(limit), ")");
  }

  std::atomic<int64_t> held_{0}, peak_{0}, limit_{std::numeric_limits<int64_t>::max()};
};

/// Sizes by address.
class SizeTable {
 public:
  void put(const void* data, int64_t bytes) {
    Shard& shard = shard_of(data);
    const std::lock_guard<std::mutex> lock(shard.mutex);
    shard.bytes.insert_or_assign(data, bytes);
  }
  /// 0 for an unknown address.
  int64_t remove(const void* data) {
    Shard& shard = shard_of(data);
    const std::lock_guard<std::mutex> lock(shard.mutex);
    const auto found = shard.bytes.find(data);
    if (found == shard.bytes.end()) return 0;
    const int64_t bytes = found->second;
    shard.bytes.erase(found);
    return bytes;
  }

 private:
  static constexpr size_t kNumShards = 16;
  struct Shard {
    std::mutex mutex;
    std::unordered_map<const void*, int64_t> bytes;
  };
  Shard& shard_of(const void* data) {
    // Blocks are aligned to 64 bytes, large ones to 64 behind a page.
    const auto address = reinterpret_cast<uintptr_t>(data);
    return shards_[((address >> 6) ^ (address >> 12)) % kNumShards];
  }
  std::array<Shard, kNumShards> shards_;
};

Count& count() {
  static Count one;
  return one;
}

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator& base) : base_(base), release_base_(base.raw_deleter()) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return base_.allocate(0);
    constexpr auto kMost = static_cast<size_t>(std::numeric_limits<int64_t>::max());
    const auto counted = static_cast<int64_t>(std::min(bytes, kMost));
    count().take(counted);
    try {
      c10::DataPtr data = base_.allocate(bytes);
      void* const address = data.get();
      sizes_.put(address, counted);
      data.release_context();  // release() calls the same deleter.
      return {address, address, &release, data.device()};
    } catch (...) {
      count().give_back(counted);
      throw;
    }
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  /// Null until installed.
  static std::atomic<CountingAllocator*>& installed() {
    static std::atomic<CountingAllocator*> allocator{nullptr};
    return allocator;
  }
  static void install() {
    static std::once_flag once;
    std::call_once(once, [] {
      c10::Allocator* const base = c10::GetCPUAllocator();
      if (!base->raw_deleter())
        fail(ErrorCode::kEnvironment, "a memory limit needs a CPU allocator that frees by address, and this program has set another one");
      installed() = new CountingAllocator(*base);
      c10::SetCPUAllocator(installed(), /*priority=*/255);
    });
  }

 private:
  static void release(void* data) {
    CountingAllocator& self = *installed();
    // Before the block is freed: another thread may get the same address at once.
    if (data) count().give_back(self.sizes_.remove(data));
    self.release_base_(data);
  }

  c10::Allocator& base_;
  c10::DeleterFnPtr release_base_;
  SizeTable sizes_;
};

bool is_counting() { return CountingAllocator::installed().load() != nullptr; }

}  // namespace

void limit_memory(int64_t limit_bytes) {
  if (limit_bytes < 0) fail(ErrorCode::kBadInput, "memory limit ", limit_bytes, " bytes: expected 0 (none) or more");
  CountingAllocator::install();
  count().set_limit(limit_bytes);
}

int64_t counted_memory_bytes() { return is_counting() ? count().held() : 0; }
int64_t peak_counted_memory_bytes() { return is_counting() ? count().peak() : 0; }

void count_memory(int64_t bytes) {
  if (bytes >= 0) count().take(bytes);
  else count().give_back(-bytes);
}

}  // namespace cohort
