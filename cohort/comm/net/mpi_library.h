#pragma once
// Open MPI or MPICH, loaded when it is first wanted: the build needs neither, and one program runs under both.
//
// The two agree on names and arguments of functions but not on anything else: Open MPI's handles are addresses of objects inside its
// library, MPICH's are numbers (so are those of Intel MPI and MVAPICH, which keep MPICH's binary interface). Everything that differs is in
// mpi_library.cpp, with its source. Only messages between two ranks are used; the operations are NetworkTransport's.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/base/export.h"

namespace cohort {

enum class MpiKind { kOpenMpi, kMpich };  ///< Whose binary interface.

/// A library of this kind where one is installed, else null, and dlerror() says more. It stays loaded, its symbols global, since Open MPI's
/// plug-ins look for them. A name that both use may lead to the other kind: see kind_of().
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

  /// The library of the launcher of this process, initialised; the first call does that, and waits until all ranks of the job do.
  /// Finalised when the process ends, unless something failed. Error(kEnvironment) that says what to install and how to start where there
  /// is no mpirun, no library, or one without MPI_THREAD_MULTIPLE. Thread-safe.
  static MpiLibrary& instance();

  virtual ~MpiLibrary() = default;
  int rank() const { return rank_; }  ///< In MPI_COMM_WORLD.
  int size() const { return size_; }
  int max_tag() const { return max_tag_; }
  const std::string& version() const { return version_; }  ///< "Open MPI v4.1.4".

  /// A communicator of these ranks of MPI_COMM_WORLD, in this order; all of them call it. `tag` tells groups that are made at the same time
  /// apart. Blocks.
  virtual Handle make_group(const std::vector<int>& world_ranks, int tag) = 0;
  virtual void free_group(Handle group) = 0;
  /// peer -1 in receive(): any. `bytes` at most INT_MAX.
  virtual Handle send(const void* data, size_t bytes, int peer, int tag, Handle group) = 0;
  virtual Handle receive(void* data, size_t bytes, int peer, int tag, Handle group) = 0;
  /// Makes progress without waiting. std::runtime_error with MPI's text, for instance for a message that is longer than its place.
  virtual Outcome test(Handle& request) = 0;
  /// Gives a receive up that nothing came for.
  virtual void cancel(Handle& request) = 0;

  /// After a failure: MPI_Finalize would wait for ranks that are gone.
  void leave_unfinalized() { finalize_ = false; }

 protected:
  int rank_ = 0, size_ = 0, max_tag_ = 0;
  std::string version_;
  bool finalize_ = false;
};

}  // namespace cohort
