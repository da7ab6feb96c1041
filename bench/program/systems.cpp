// The systems that `bench collectives` measures: this library's backends, LibTorch's, MPI's.
#include "bench/program/systems.h"

#include <ATen/ops/empty.h>
#include <dlfcn.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <cstdint>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/comm/group.h"
#include "cohort/comm/net/gloo.h"
#include "cohort/comm/net/mpi_library.h"

namespace cohort {
namespace {

class GroupSystem : public BenchSystem {
 public:
  GroupSystem(Group group, bool shared) : group_(std::move(group)), shared_(shared) {}
  at::Tensor allocate(int64_t num_elements) override {
    return shared_ ? group_.allocate(num_elements, at::kFloat) : BenchSystem::allocate(num_elements);
  }
  bool has_own_memory() const override { return shared_; }
  void call(Op op, at::Tensor& whole, at::Tensor& part) override {
    switch (op) {
      case Op::kAllReduce:
        return group_.all_reduce_sum(whole, "all-reduce");
      case Op::kReduceScatter:
        return group_.start_reduce_scatter_sum(part, whole, "reduce-scatter")->wait();
      case Op::kAllGather:
        return group_.start_all_gather(whole, part, "all-gather")->wait();
      case Op::kBroadcast:
        return group_.broadcast(whole, 0, "broadcast");
      default:
        return group_.barrier();
    }
  }

 private:
  Group group_;
  bool shared_;
};

/// LibTorch's ProcessGroupGloo.
class GlooSystem : public BenchSystem {
 public:
  explicit GlooSystem(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}
  void call(Op op, at::Tensor& whole, at::Tensor& part) override { start(op, whole, part)->wait(); }

 private:
  c10::intrusive_ptr<c10d::Work> start(Op op, at::Tensor& whole, at::Tensor& part) {
    std::vector<at::Tensor> tensors{whole};
    switch (op) {
      case Op::kAllReduce:
        return backend_->allreduce(tensors);
      case Op::kReduceScatter:
        return backend_->_reduce_scatter_base(part, whole);
      case Op::kAllGather:
        return backend_->_allgather_base(whole, part);
      case Op::kBroadcast:
        return backend_->broadcast(tensors);
      default:
        return backend_->barrier();
    }
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
};

}  // namespace

at::Tensor BenchSystem::allocate(int64_t num_elements) { return at::empty({num_elements}, at::kFloat); }

std::unique_ptr<BenchSystem> make_bench_system(const std::string& name, c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                               double timeout_seconds) {
  if (name == "open-mpi" || name == "mpich") return make_mpi_system(name);
  store = c10::make_intrusive<c10d::PrefixStore>("bench-" + name, std::move(store));
  if (name == "pytorch-gloo") return std::make_unique<GlooSystem>(make_gloo(store, rank, size, "127.0.0.1", timeout_seconds));
  const std::string backend = name == "gloo" ? "gloo" : "shm";
  return std::make_unique<GroupSystem>(Group::create(store, rank, size, {.backend = backend, .timeout_seconds = timeout_seconds}),
                                       name == "shm");
}

// MPI's own collectives, without MPI's headers: the few functions are looked up in the library, and the handles are
// those of its stable binary interface. Open MPI's are addresses of objects that it exports (ompi_mpi_comm_world, ...), MPICH's are the
// numbers that the MPICH ABI initiative fixes (2013, www.mpich.org/abi) for every library that calls itself libmpi.so.12 or libmpich.so.12.
namespace {

/// `Handle` is the type of a communicator, data type and operation: a pointer with Open MPI, an int with MPICH.
template <typename Handle>
struct MpiHandles {
  Handle world, type_float, sum;
  void* in_place;
};

template <typename Function>
Function look_up(void* library, const char* symbol) {
  void* const found = ::dlsym(library, symbol);
  if (!found) fail(ErrorCode::kEnvironment, "the MPI library has no ", symbol, ": ", ::dlerror());
  return reinterpret_cast<Function>(found);
}

template <typename Handle>
class MpiSystem : public BenchSystem {
 public:
  MpiSystem(void* library, MpiHandles<Handle> handles) : mpi_(handles) {
    all_reduce_ = look_up<decltype(all_reduce_)>(library, "MPI_Allreduce");
    reduce_scatter_ = look_up<decltype(reduce_scatter_)>(library, "MPI_Reduce_scatter_block");
    all_gather_ = look_up<decltype(all_gather_)>(library, "MPI_Allgather");
    broadcast_ = look_up<decltype(broadcast_)>(library, "MPI_Bcast");
    barrier_ = look_up<decltype(barrier_)>(library, "MPI_Barrier");
    finalize_ = look_up<decltype(finalize_)>(library, "MPI_Finalize");
    if (look_up<int (*)(int*, char***)>(library, "MPI_Init")(nullptr, nullptr) != 0) fail(ErrorCode::kEnvironment, "MPI_Init failed");
  }
  ~MpiSystem() override { finalize_(); }

  void call(Op op, at::Tensor& whole, at::Tensor& part) override {
    const int result = run(op, whole, part);  // By default MPI ends the process itself.
    if (result != 0) fail(ErrorCode::kEnvironment, "MPI: ", name_of(op), " failed with code ", result);
  }

 private:
  int run(Op op, at::Tensor& whole, at::Tensor& part) {
    if (op == Op::kBarrier) return barrier_(mpi_.world);
    const int count = static_cast<int>(whole.numel());
    void* const data = whole.data_ptr();
    switch (op) {
      case Op::kAllReduce:
        return all_reduce_(mpi_.in_place, data, count, mpi_.type_float, mpi_.sum, mpi_.world);
      case Op::kReduceScatter:
        return reduce_scatter_(data, part.data_ptr(), static_cast<int>(part.numel()), mpi_.type_float, mpi_.sum, mpi_.world);
      case Op::kAllGather:
        return all_gather_(part.data_ptr(), static_cast<int>(part.numel()), mpi_.type_float, data, static_cast<int>(part.numel()),
                           mpi_.type_float, mpi_.world);
      default:
        return broadcast_(data, count, mpi_.type_float, 0, mpi_.world);
    }
  }

  MpiHandles<Handle> mpi_;
  int (*all_reduce_)(const void*, void*, int, Handle, Handle, Handle);
  int (*reduce_scatter_)(const void*, void*, int, Handle, Handle, Handle);
  int (*all_gather_)(const void*, int, Handle, void*, int, Handle, Handle);
  int (*broadcast_)(void*, int, Handle, int, Handle);
  int (*barrier_)(Handle);
  int (*finalize_)();
};

void* library_of(MpiKind kind, const char* what) {
  void* const library = open_mpi_library(kind);
  if (!library) fail(ErrorCode::kEnvironment, what, " is not installed here: ", ::dlerror());
  if (kind_of(library) != kind) fail(ErrorCode::kEnvironment, what, " is not installed here: libmpi.so is another MPI's");
  return library;
}

}  // namespace

std::unique_ptr<BenchSystem> make_mpi_system(const std::string& name) {
  if (name == "open-mpi") {
    void* const library = library_of(MpiKind::kOpenMpi, "Open MPI");
    return std::make_unique<MpiSystem<void*>>(
        library, MpiHandles<void*>{look_up<void*>(library, "ompi_mpi_comm_world"), look_up<void*>(library, "ompi_mpi_float"),
                                   look_up<void*>(library, "ompi_mpi_op_sum"), reinterpret_cast<void*>(intptr_t{1})});
  }
  void* const library = library_of(MpiKind::kMpich, "MPICH");
  return std::make_unique<MpiSystem<int>>(library,
                                          MpiHandles<int>{0x44000000, 0x4c00040a, 0x58000003, reinterpret_cast<void*>(intptr_t{-1})});
}

}  // namespace cohort
