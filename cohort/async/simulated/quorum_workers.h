#pragma once
// sync=local and diloco with a quorum under the virtual clock: workers train by themselves for H steps, and an exchange takes place with
// those that have handed over when the quorum and the grace time are over.

#include <memory>
#include <string>
#include <vector>

#include "cohort/async/local_server.h"
#include "cohort/async/round_gate.h"
#include "cohort/async/simulated/virtual_workers.h"
#include "cohort/job/update_rule.h"

namespace cohort {

/// One thread.
class QuorumWorkers : public VirtualWorkers {
 public:
  /// `module`: the one that tickets are computed on; `server` is the mode.
  QuorumWorkers(VirtualParts parts, const torch::nn::Module& module, const UpdateRule& rule, LocalServer& server, RoundGate gate);

  std::optional<AppliedPush> act() override;
  double waiting_seconds(int worker) const override;

  Json state() const override;
  std::vector<FlatPiece> saved_pieces() override;
  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) override;
  void loaded() override;

 protected:
  void compute(int worker, Work& work) override;
  std::optional<AppliedPush> arrive(int worker) override;
  void die(int worker) override;
  void come_alive(int worker) override;

 private:
  struct Learner {
    std::unique_ptr<LocalWorker> trainer;
    bool is_there = true;                     // Not dead.
    std::optional<double> handed_over_since;  // Its work waits for the exchange.
  };
  bool others_come() const;
  AppliedPush merge();
  std::vector<FlatPiece> optimizers();

  const torch::nn::Module& module_;
  UpdateRule rule_;
  LocalServer& server_;
  RoundGate gate_;
  std::vector<Learner> learners_;
};

}  // namespace cohort
