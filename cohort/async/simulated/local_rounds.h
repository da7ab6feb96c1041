#pragma once
// sync=local and diloco under the virtual clock: all workers train by themselves for H steps, and wait for the slowest at the exchange;
// with fragments at that of each fragment.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cohort/async/local_models.h"
#include "cohort/async/simulated/virtual_driver.h"

namespace cohort {

/// One thread.
class LocalRounds : public VirtualDriver {
 public:
  /// `steps`: of a round, H.
  LocalRounds(VirtualParts parts, LocalModels& models, int64_t steps) : VirtualDriver(std::move(parts)), models_(models), steps_(steps) {}

  void begin() override;
  /// A whole round as one push of all its samples. Error(kFailed) also where no worker ends a round.
  std::optional<AppliedPush> act() override;

  Json state() const override;
  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) override;

 private:
  struct Part {
    std::vector<Ticket> tickets;
    double seconds = 0;  // Of computing them.
    bool ends = true;    // Does not die before.
    int64_t num_samples() const;
  };
  /// What a round adds up to.
  struct Round {
    double loss = 0;  // Sum over samples.
    int64_t trained = 0, asked = 0, steps = 0, last_step = 0;
    double gradient_norm = 0;
  };
  std::vector<Part> take_parts(int64_t steps);
  void live_until(double moment, std::vector<Part>& parts);
  double live(std::vector<Part>& parts);
  void act_part(int fragment, int64_t steps, Round& round);
  void compute(int fragment, const std::vector<Part>& parts, Round& round);

  LocalModels& models_;
  int64_t steps_;
  std::set<int> absent_;  // Workers that died and are not back.
};

}  // namespace cohort
