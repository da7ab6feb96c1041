#pragma once
// Wrappers of a job's store: one encrypts entries, the other polls while it waits.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <string>

#include "cohort/base/error.h"

namespace cohort {

// An encrypted store for stores that anybody can connect to, as LibTorch's TCPStore serves whoever connects. Ranks share a secret.
//
// Entry names get a prefix derived from the secret, so that ranks with other secrets never meet; values are sealed (base/secrets.h) with a
// key derived from the secret, for that name.
//
// So outsiders can neither read a value, nor forge one, nor move it to another key. They can still count and remove entries, restore an
// earlier value of the same key, and keep the server busy: the job then fails with a time-out or an error. Counters (add()) are summed by
// the server and not protected. Cost: 28 bytes and some microseconds per value.

class SealedStore : public c10d::Store {
 public:
  /// `secret` is shared by the ranks of the job only. "": names and values stay as they are, and only the note of a rejected rank
  /// (check_same_secret) is read.
  SealedStore(c10::intrusive_ptr<c10d::Store> store, const std::string& secret);

  c10::intrusive_ptr<c10d::Store> clone() override;
  using Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  /// Error(kEnvironment) where no rank of this job has written the value.
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  const std::chrono::milliseconds& getTimeout() const noexcept override;
  void setTimeout(const std::chrono::milliseconds& timeout) override;

 private:
  std::string name_of(const std::string& key) const { return prefix_ + key; }
  std::vector<std::string> names_of(const std::vector<std::string>& keys) const;
  std::vector<uint8_t> get_in_time(const std::string& name);

  c10::intrusive_ptr<c10d::Store> store_;
  std::string secret_, prefix_, key_;
};

/// Detects ranks with different secrets, or without one (""), before they wait for each other under different names: rank 0 publishes a
/// proof that it knows its secret, the others compare it with theirs. They get an Error(kEnvironment) with advice, and leave a note in the
/// store that explains time-outs to the others. `place`: address of the store. Blocks until rank 0 has come, at most for the store's
/// time-out.
void check_same_secret(c10d::Store& store, int rank, const std::string& secret, const std::string& place);

// A store whose waits end at the time-out, after Ctrl-C, or when a rank reports that it failed to start; LibTorch's stores do none of it.
// Cost: a missing entry is polled every 1 to 20 ms.

class PollingStore : public c10d::Store {
 public:
  /// `heeds_stop`: a wait ends at stop_requested(); for ranks that Cohort started the launcher does that.
  PollingStore(c10::intrusive_ptr<c10d::Store> store, bool heeds_stop);
  /// Called repeatedly while waiting; an exception ends the wait.
  void set_poll(std::function<void()> look) { look_ = std::move(look); }

  c10::intrusive_ptr<c10d::Store> clone() override;
  using Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override { store_->set(key, value); }
  /// Error(kInterrupted) where the entry is missing and stop_requested(); std::runtime_error after the time-out, which counts only time in
  /// which this process ran.
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

/// Throws Error(kInterrupted) some time after stop_requested(), so that what is nearly done may complete.
class StopWatch {
 public:
  void check();

 private:
  double since_ = 0;
};

/// Reports in `store` that a rank of the job failed to start; the first report counts.
void post_startup_failure(c10d::Store& store, ErrorCode code, const std::string& text);
/// Throws the reported failure, if any, and counts this rank as informed.
void check_startup_failure(c10d::Store& store);
/// Ranks that have reported or read the failure.
int64_t num_startup_failure_readers(c10d::Store& store);

}  // namespace cohort
