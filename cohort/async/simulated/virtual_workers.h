#pragma once
// Workers of the virtual clock that do not wait for one another: what each does when.

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cohort/async/simulated/virtual_driver.h"

namespace cohort {

/// One thread.
class VirtualWorkers : public VirtualDriver {
 public:
  explicit VirtualWorkers(VirtualParts parts);

  void begin() override;
  std::optional<AppliedPush> act() override;
  double waiting_seconds(int worker) const override;
  void wake() override;

  Json state() const override;
  std::vector<FlatPiece> saved_pieces() override;
  std::vector<FlatPiece> loaded_pieces(const Json& state, const std::string& where) override;
  void loaded() override;

 protected:
  enum Kind { kFree, kComputed, kArrived, kDies, kReturns };
  /// What the worker hands over later.
  virtual void compute(int worker, Work& work);
  virtual std::optional<AppliedPush> arrive(int worker);
  virtual void die(int worker);
  virtual void come_alive(int worker);

  bool has_work(int worker) const { return workers_[static_cast<size_t>(worker)].work.has_value(); }
  Work& work_of(int worker) { return *of(worker).work; }
  void drop_work(int worker) { of(worker).work.reset(); }
  /// Found no ticket.
  bool is_waiting(int worker) const { return workers_[static_cast<size_t>(worker)].waits_since.has_value(); }

 private:
  struct Worker {
    std::optional<Work> work;
    std::optional<double> waits_since;
  };
  Worker& of(int worker) { return workers_[static_cast<size_t>(worker)]; }
  void take(int worker);
  void send(int worker);

  std::vector<Worker> workers_;
  std::set<std::pair<double, int>> waiting_;              // Since when, and who.
  std::vector<std::pair<int, at::Tensor>> being_loaded_;  // Bytes of the work of a worker.
};

}  // namespace cohort
