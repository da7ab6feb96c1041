// Tiled exchange: broadcast, all-gather, gather, scatter, all-to-all and reduce-scatter where some rank's input is private to it.
//
// A rank's tile holds one section for all receivers where all need the same bytes, else one section for each. In step i every rank
//   1. stages round i: copies the i-th section of what each receiver needs into its tile;
//   2. takes round i - 1: copies its section out of the senders' tiles, or reduces it (reduce-scatter: its own addends straight from its
//      input, in rank order).
//
// Cost for a rank that gives g and takes t bytes: g + t copied (read and written), one synchronisation for each T or T/p bytes of the
// longest route. Senders and receivers work on different rounds at once, so a broadcast of large n takes the time of one copy, not two.
//
// Source: pipelined staging as in coll/sm of Open MPI; the rounds of all operations made one scheme by their routes (shm_job.h) are ours.

#include <algorithm>
#include <cstring>

#include "cohort/comm/shm/shm_algorithms.h"
#include "cohort/comm/transport/reduce.h"

namespace cohort {
namespace {

class TiledExchange {
 public:
  TiledExchange(const ShmJob& job, ShmSteps& steps, size_t tile_bytes)
      : job_(job),
        steps_(steps),
        // Whole cache lines, hence whole elements.
        section_bytes_(job.same_for_all() ? tile_bytes : std::max<size_t>(64, tile_bytes / static_cast<size_t>(job.size) / 64 * 64)),
        arrays_(static_cast<size_t>(job.size)) {}

  void run() {
    const size_t num_rounds = (job_.longest_route() + section_bytes_ - 1) / section_bytes_;
    if (job_.op != Op::kReduceScatter) keep_own();
    for (size_t step = 0; step < num_rounds + 1; ++step) {
      if (step < num_rounds) stage(step);
      if (step >= 1) take(step - 1);
      if (step < num_rounds) steps_.next();
    }
  }

 private:
  /// The part of a route that goes in a round.
  Route part(const Route& whole, size_t round) const {
    const size_t begin = std::min(whole.bytes, round * section_bytes_);
    return {whole.at + begin, whole.place + begin, std::min(section_bytes_, whole.bytes - begin)};
  }
  size_t section(int to) const { return job_.same_for_all() ? 0 : static_cast<size_t>(to) * section_bytes_; }

  void keep_own() {
    const Route own = job_.route(job_.rank, job_.rank);
    if (own.bytes > 0 && job_.output + own.place != job_.input + own.at)
      std::memcpy(job_.output + own.place, job_.input + own.at, own.bytes);
  }

  void stage(size_t round) {
    for (int to = 0; to < job_.size; ++to) {
      if (to == job_.rank) continue;
      const Route of = part(job_.route(job_.rank, to), round);
      if (of.bytes == 0) continue;
      std::memcpy(steps_.filling() + section(to), job_.input + of.at, of.bytes);
      if (job_.same_for_all()) return;
    }
  }

  void take(size_t round) {
    if (job_.op == Op::kReduceScatter) return reduce(round);
    for (int step = 1; step < job_.size; ++step) {
      const int from = (job_.rank + step) % job_.size;
      const Route of = part(job_.route(from, job_.rank), round);
      if (of.bytes > 0) std::memcpy(job_.output + of.place, steps_.current(from) + section(job_.rank), of.bytes);
    }
  }

  void reduce(size_t round) {
    const Route of = part(job_.route(job_.rank, job_.rank), round);
    for (int from = 0; from < job_.size; ++from)
      arrays_[static_cast<size_t>(from)] = from == job_.rank ? job_.input + of.at : steps_.current(from) + section(job_.rank);
    std::byte* const result = job_.output + of.place;
    reduce_arrays(&result, 1, arrays_.data(), arrays_.size(), of.bytes / job_.element_bytes, job_.type, job_.reduction);
  }

  const ShmJob& job_;
  ShmSteps& steps_;
  const size_t section_bytes_;
  std::vector<const std::byte*> arrays_;
};

}  // namespace

void tiled_exchange(const ShmJob& job, ShmSteps& steps, size_t tile_bytes) { TiledExchange(job, steps, tile_bytes).run(); }

}  // namespace cohort
