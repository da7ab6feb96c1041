#include "cohort/bench/systems.h"

#include <ATen/ops/empty.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

#include "cohort/comm/group.h"
#include "cohort/comm/net/gloo.h"

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

/// LibTorch's own ProcessGroupGloo.
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

}  // namespace cohort
