#pragma once
// A job's store whose waits look around: nobody waits for an entry past the time-out, after Ctrl-C, or for a rank that has said that it
// does not come. LibTorch's stores do none of it.
//
// Cost: an entry that is not there is asked for again after 1 to 20 ms.

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "cohort/base/error.h"

namespace cohort {

class PatientStore : public c10d::Store {
 public:
  /// `heeds_stop`: a wait ends at stop_requested(). Of ranks that Cohort started the launcher sees to that.
  PatientStore(c10::intrusive_ptr<c10d::Store> store, bool heeds_stop);
  /// Called now and then while an entry is waited for; what it throws ends the wait.
  void set_look(std::function<void()> look) { look_ = std::move(look); }

  c10::intrusive_ptr<c10d::Store> clone() override;
  using Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override { store_->set(key, value); }
  /// Error(kInterrupted) where the entry is not there and stop_requested(); std::runtime_error after the time-out, of which only time in
  /// which this process ran counts.
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override { return store_->add(key, value); }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(key); }
  bool check(const std::vector<std::string>& keys) override { return store_->check(keys); }
  int64_t getNumKeys() override { return store_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, getTimeout()); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  const std::chrono::milliseconds& getTimeout() const noexcept override { return store_->getTimeout(); }
  void setTimeout(const std::chrono::milliseconds& timeout) override { store_->setTimeout(timeout); }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  bool heeds_stop_;
  std::function<void()> look_;
};

/// Where a stop was asked for: Error(kInterrupted), after a moment in which what is nearly done may be done.
class StopWatch {
 public:
  void check();

 private:
  double since_ = 0;
};

/// Says in `store` that a rank of the job does not come, and why; the first one counts.
void leave_refusal(c10d::Store& store, ErrorCode code, const std::string& text);
/// Throws what a rank has left there, and counts this one as having heard it.
void check_refusal(c10d::Store& store);
/// How many ranks have left or heard it.
int64_t num_heard_refusal(c10d::Store& store);

}  // namespace cohort
