#pragma once
// What came of tickets where several servers divide the model: each gets its part over a connection of its own, so a push is whole only
// when all of them have theirs.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "cohort/train/async/async_mode.h"
#include "cohort/world/messages/message_server.h"

namespace cohort {

/// What a worker handed over to rank 0.
struct PushedWork {
  PeerId peer = 0;
  int worker = 0;
  Work work;
  double computing_seconds = 0;
};

/// One thread. Orders that nobody knows of (any more) are passed over.
class PushesOnTheWay {
 public:
  void handed_out(int64_t order) { orders_.emplace(order, OnItsWay()); }
  /// Rank 0's part is here; the push, where it is whole now.
  std::optional<PushedWork> came(PushedWork pushed, size_t num_others) {
    const int64_t order = pushed.work.order;
    if (const auto found = orders_.find(order); found != orders_.end()) found->second.pushed = std::move(pushed);
    return whole(order, num_others);
  }
  /// Another server has its part.
  std::optional<PushedWork> another_has(int64_t order, size_t num_others) {
    if (const auto found = orders_.find(order); found != orders_.end()) ++found->second.num_others;
    return whole(order, num_others);
  }
  /// Whether something that the peer handed over is not with all servers yet.
  bool has_of(PeerId peer) const {
    return std::any_of(orders_.begin(), orders_.end(), [&](const auto& each) { return is_of(each.second, peer); });
  }
  /// The same, which it is not on its way any more.
  std::vector<PushedWork> take_of(PeerId peer) {
    std::vector<PushedWork> taken;
    for (auto next = orders_.begin(); next != orders_.end();) {
      const auto each = next++;
      if (!is_of(each->second, peer)) continue;
      taken.push_back(std::move(*each->second.pushed));
      orders_.erase(each);
    }
    return taken;
  }
  void forget(int64_t order) { orders_.erase(order); }

 private:
  struct OnItsWay {
    std::optional<PushedWork> pushed;
    size_t num_others = 0;
  };
  static bool is_of(const OnItsWay& one, PeerId peer) { return one.pushed && one.pushed->peer == peer; }
  std::optional<PushedWork> whole(int64_t order, size_t num_others) {
    const auto found = orders_.find(order);
    if (found == orders_.end() || !found->second.pushed || found->second.num_others < num_others) return std::nullopt;
    PushedWork pushed = std::move(*found->second.pushed);
    orders_.erase(found);
    return pushed;
  }

  std::map<int64_t, OnItsWay> orders_;
};

}  // namespace cohort
