#pragma once
// What Cohort's own rooms use of a Group and programs do not: the memory that the ranks of a host share, exchanges made by hand in it, what
// ranks say of themselves when something fails.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "cohort/comm/group.h"
#include "cohort/comm/transport/transport.h"

namespace cohort {

class ShmArena;
class ShmWaiter;

struct GroupInternals {
  /// What this host's ranks share, for exchanges that are made by hand (parallel/one_copy/shared_data_parallel.h); null where they share
  /// nothing.
  static std::shared_ptr<ShmArena> arena(const Group& group);
  /// Waits for counters in that memory; its errors name the rank that is missing. Null with arena().
  static const ShmWaiter* waiter(const Group& group);
  /// Runs `exchange`, made by hand through the two above, as a call of this group: `op` on `count` elements of `type` called `what`. Its
  /// failure is explained, and ends the group, like that of any call. Collective.
  static void run_by_hand(const Group& group, Op op, size_t count, at::ScalarType type, const std::string& what,
                          const std::function<void()>& exchange);
  /// "rank 1 (pid 77) has ended" for each rank on this host that is dead or stopped, or "". Waits up to half a second for an end to show.
  static std::string describe_missing(const Group& group);
  /// What all ranks read of this one should an exchange fail, after "rank 1 (pid 77) ", until it is set anew; "" for nothing.
  static void set_note(const Group& group, const std::string& text);
  /// The longest that an exchange may take.
  static double timeout_seconds(const Group& group);
  /// 0, 1, 2, ...: the same on all ranks, for things that all make in the same order.
  static int next_number(const Group& group);
};

}  // namespace cohort
