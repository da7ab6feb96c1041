#pragma once
// The systems that `bench collectives` measures, behind one interface.

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "cohort/comm/transport/transport.h"

namespace cohort {

/// A system in one rank; all ranks make the same calls. Tensors are one-dimensional floats.
class BenchSystem {
 public:
  virtual ~BenchSystem() = default;
  /// Memory of the kind that is fastest for this system. Collective; contents are undefined.
  virtual at::Tensor allocate(int64_t num_elements);
  /// Whether allocate() is more than at::empty, so that buffers cannot be shared with other systems.
  virtual bool has_own_memory() const { return false; }
  /// `whole`: of all-reduce (in place) and broadcast (from rank 0), all-gather's output, reduce-scatter's input; `part`: the other one.
  virtual void call(Op op, at::Tensor& whole, at::Tensor& part) = 0;
};

/// `name` of collective_backends() or collective_peers() (bench_collectives.h); the latter in ranks that their own mpirun started.
std::unique_ptr<BenchSystem> make_bench_system(const std::string& name, c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                               double timeout_seconds);

/// Open MPI ("open-mpi") or MPICH ("mpich"), loaded at run time. Error(kEnvironment) where its library is missing.
std::unique_ptr<BenchSystem> make_mpi_system(const std::string& name);

}  // namespace cohort
