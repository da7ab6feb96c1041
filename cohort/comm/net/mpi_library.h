#pragma once
// Open MPI or MPICH, loaded at first use: the build needs neither, and one program runs under both.
//
// The two agree on names and arguments of functions only: Open MPI's handles are addresses of objects in its library, MPICH's (and Intel
// MPI's and MVAPICH's) are numbers. All differences are in mpi_library.cpp. Only point-to-point messages are used; collectives are
// NetworkTransport's.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/base/export.h"

namespace cohort {

enum class MpiKind { kOpenMpi, kMpich };  ///< Binary interface.

/// An installed library of this kind, else null (dlerror() has the reason). It stays loaded with global symbols, which Open MPI's plug-ins
/// need. Some names may lead to the other kind: see kind_of().
COHORT_PROGRAM_API void* open_mpi_library(MpiKind kind);
COHORT_PROGRAM_API MpiKind kind_of(void* library);

class MpiLibrary {
 public:
  using Handle = uint64_t;  ///< A communicator or a request of either library.
  struct Outcome {
    bool done = false;
    int source = 0;
    size_t bytes = 0;  ///< Received.
  };

  /// The initialised library of this process's launcher. The first call initialises it and waits for all ranks of the job. Finalised at the
  /// end of the process, unless something failed. Error(kEnvironment) with advice where there is no mpirun, no library, or no
  /// MPI_THREAD_MULTIPLE. Thread-safe.
  static MpiLibrary& instance();

  virtual ~MpiLibrary() = default;
  int rank() const { return rank_; }  ///< In MPI_COMM_WORLD.
  int size() const { return size_; }
  int max_tag() const { return max_tag_; }
  const std::string& version() const { return version_; }  ///< "Open MPI v4.1.4".

  /// A communicator of these ranks of MPI_COMM_WORLD, in this order. Collective over them; blocks. `tag` separates groups that are created
  /// at the same time.
  virtual Handle make_group(const std::vector<int>& world_ranks, int tag) = 0;
  virtual void free_group(Handle group) = 0;
  /// peer -1 in receive(): any. `bytes` at most INT_MAX.
  virtual Handle send(const void* data, size_t bytes, int peer, int tag, Handle group) = 0;
  virtual Handle receive(void* data, size_t bytes, int peer, int tag, Handle group) = 0;
  /// Makes progress without waiting. std::runtime_error with MPI's text, for instance for a message that is too long.
  virtual Outcome test(Handle& request) = 0;
  /// Cancels a receive.
  virtual void cancel(Handle& request) = 0;

  /// After a failure: MPI_Finalize would wait for ranks that are gone.
  void leave_unfinalized() { finalize_ = false; }

 protected:
  int rank_ = 0, size_ = 0, max_tag_ = 0;
  std::string version_;
  bool finalize_ = false;
};

}  // namespace cohort
