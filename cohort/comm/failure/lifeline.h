#pragma once
// Whether another process of this machine still lives, known before its memory has been taken down.
//
// When a process is killed the kernel first detaches every thread from the memory, then takes the memory down, and only then does the
// process's pidfd become readable, its sockets close and its last thread become a zombie. For a rank, which maps LibTorch and large arrays,
// that is milliseconds later. A thread that is detached has 0 pages in /proc/PID/task/TID/statm, and can neither run code of the program
// nor write into shared memory any more.
//
// Steps of a look: 1. read the main thread's statm through a descriptor opened at the start: pages mean that the process lives.
// 2. Without pages it is being killed, or only its main thread has ended (pthread_exit): it lives as long as any thread has pages.
// Where /proc cannot be read the pidfd alone decides.
//
// Cost: a system call of about a microsecond while the process lives. Source: proc_pid_statm(5), pidfd_open(2). Robust futexes
// (set_robust_list(2)) would tell as early, but need a thread in every rank that holds them, and say nothing to a group over a network.

#include "cohort/base/files/file.h"

namespace cohort {

/// A line to one process. The process of that id at construction is meant, also when the id is given to another one later. Thread-safe.
class Lifeline {
 public:
  explicit Lifeline(int pid);

  /// Whether no thread of the process can run its program any more. What any of them had written before is visible then. An exec does not
  /// end a process, nor does the end of its main thread alone.
  bool is_cut() const;

 private:
  int pid_;
  UniqueDescriptor pidfd_, memory_;  // `memory_`: /proc/PID/statm; none where it cannot be trusted.
};

}  // namespace cohort
