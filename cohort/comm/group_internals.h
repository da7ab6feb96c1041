#pragma once
// Parts of a Group for Cohort's own code: the memory shared by the ranks of a host, exchanges implemented in it, and failure reports.

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
  /// Memory shared by this host's ranks, for exchanges that bypass the transport (SharedDataParallel); null without it.
  static std::shared_ptr<ShmArena> arena(const Group& group);
  /// Waits for counters in that memory; its errors name the missing rank. Null with arena().
  static const ShmWaiter* waiter(const Group& group);
  /// Runs `exchange`, implemented with the two above, as a call of this group: `op` on `count` elements of `type` named `what`. A failure
  /// is explained and ends the group like that of any call. Collective.
  static void run_by_hand(const Group& group, Op op, size_t count, at::ScalarType type, const std::string& what,
                          const std::function<void()>& exchange);
  /// "rank 1 (pid 77) has ended" for each dead or stopped rank on this host, or "". Waits up to half a second for an end to become visible.
  static std::string describe_missing(const Group& group);
  /// Shown to all ranks after "rank 1 (pid 77) " should an exchange fail, until it is set again; "" for none.
  static void set_note(const Group& group, const std::string& text);
  /// Limit of one exchange.
  static double timeout_seconds(const Group& group);
  /// 0, 1, 2, ...: the same on all ranks for objects that all create in the same order.
  static int next_number(const Group& group);
};

}  // namespace cohort
