#pragma once
// The ways in which a call moves its data through shared memory. ShmTransport picks one; the choice is the same on all ranks.

#include "cohort/comm/shm/shm_job.h"
#include "cohort/comm/shm/shm_steps.h"

namespace cohort {

/// Every rank reads what it needs from job.sources (shm_all_read.cpp).
void all_read(const ShmJob& job);
/// All-reduce or reduce: every rank computes a slice from job.sources and writes it into job.targets (shm_push.cpp).
void push_in_place(const ShmJob& job, ShmSteps& steps);
/// All-reduce or reduce of memory that others cannot see (shm_tiled_reduction.cpp).
void tiled_reduction(const ShmJob& job, ShmSteps& steps, size_t tile_bytes);
/// Any other call with memory that others cannot see (shm_tiled_exchange.cpp).
void tiled_exchange(const ShmJob& job, ShmSteps& steps, size_t tile_bytes);

/// Elements [begin, end) of `count` that `rank` computes: whole cache lines, so that no two ranks write to one.
struct Slice {
  size_t begin, end;
};
Slice slice_of(size_t count, size_t element_bytes, int rank, int size);

}  // namespace cohort
