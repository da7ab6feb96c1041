#pragma once
// sync=local and diloco under the virtual clock: all workers train by themselves for H steps, and wait for the slowest at the exchange.

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "cohort/train/async/local_models.h"
#include "cohort/train/virtual_time/virtual_workers.h"

namespace cohort {

/// One thread.
class LocalRounds {
 public:
  /// `steps`: of a round, H.
  LocalRounds(VirtualParts parts, LocalModels& models, int64_t steps);

  /// Once, unless a state is loaded.
  void begin();
  /// A whole round as one push of all its samples. Error(kFailed) for a loss that is not finite, and where no worker ends a round.
  AppliedPush act();

  double compute_seconds() const { return compute_seconds_; }  ///< Real ones, in forward and backward,
  double push_seconds() const { return push_seconds_; }        ///< and in exchanges.

  Json state() const;
  /// Error(kBadInput) beginning with `where`.
  void load(const Json& state, const std::string& where);

 private:
  struct Part {
    std::vector<Ticket> tickets;
    double seconds = 0;  // Of computing them.
    bool ends = true;    // Does not die before.
    int64_t num_samples() const;
  };
  std::vector<Part> take_parts();
  void live_until(double moment, std::vector<Part>& parts);

  VirtualParts parts_;
  LocalModels& models_;
  int64_t steps_;
  std::set<int> absent_;  // Workers that died and are not back.
  double compute_seconds_ = 0, push_seconds_ = 0;
};

}  // namespace cohort
