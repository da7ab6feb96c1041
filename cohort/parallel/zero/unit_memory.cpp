#include "cohort/parallel/zero/unit_memory.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "cohort/base/fail.h"

namespace cohort {

namespace {

/// Of that device's allocator, as any tensor's.
c10::DataPtr allocate(size_t bytes, c10::Device device) {
  const at::Tensor tensor = at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte).device(device));
  return tensor.storage().unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(nullptr, device));
}

/// From now on LibTorch throws where an operator asks for the data.
void guard(c10::StorageImpl& storage) {
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
      "these elements are not in this process's memory now: they are a sharded parameter's (ZeRO stage 3), which is here only while an "
      "operator "
      "of the thread that built ZeroDataParallel uses it; for other uses call gather_weights() first");
}

}  // namespace

at::Tensor without_memory(int64_t num_elements, at::TensorOptions options) {
  at::Tensor tensor = at::empty({num_elements}, options.requires_grad(false));
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));  // The size stays, nominally.
  guard(storage);
  return tensor;
}

bool has_memory(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr;
}

UnitMemory::Block UnitMemory::take(size_t bytes, c10::Device device) {
  // A block up to an eighth too large serves as well.
  auto best = idle_.end();
  for (auto block = idle_.begin(); block != idle_.end(); ++block)
    if (block->data.device() == device && block->bytes >= bytes && block->bytes <= bytes + bytes / 8 &&
        (best == idle_.end() || block->bytes < best->bytes))
      best = block;
  if (best != idle_.end()) {
    Block block = std::move(*best);
    idle_.erase(best);
    idle_bytes_ -= static_cast<int64_t>(block.bytes);
    return block;
  }
  while (!idle_.empty() && lent_bytes_ + idle_bytes_ + static_cast<int64_t>(bytes) > kept_bytes_) {
    idle_bytes_ -= static_cast<int64_t>(idle_.front().bytes);
    idle_.erase(idle_.begin());
  }
  return {bytes, allocate(bytes, device)};
}

void UnitMemory::attach(const at::Tensor& tensor) {
  if (has_memory(tensor)) fail(ErrorCode::kFailed, "a unit already has memory");
  Block block = take(tensor.storage().nbytes(), tensor.device());
  lent_bytes_ += static_cast<int64_t>(block.bytes);
  lent_.emplace_back(tensor.storage().unsafeGetStorageImpl(), block.bytes);
  peak_bytes_ = std::max(peak_bytes_, lent_bytes_ + idle_bytes_);
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  storage->clear_data_ptr_access_error_msg_();
  storage->set_data_ptr_noswap(std::move(block.data));
}

void UnitMemory::detach(const at::Tensor& tensor) {
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  const auto place = std::find_if(lent_.begin(), lent_.end(), [&](const auto& one) { return one.first == storage; });
  if (place == lent_.end()) fail(ErrorCode::kFailed, "a unit has no memory to give back");
  Block block{place->second, storage->set_data_ptr(c10::DataPtr(nullptr, tensor.device()))};
  guard(*storage);
  lent_.erase(place);
  lent_bytes_ -= static_cast<int64_t>(block.bytes);
  idle_bytes_ += static_cast<int64_t>(block.bytes);
  idle_.push_back(std::move(block));
}

}  // namespace cohort
