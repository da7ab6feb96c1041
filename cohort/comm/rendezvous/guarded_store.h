#pragma once
// Two stores around a job's own, by which ranks meet as if nobody else were there: one keeps strangers out, the waits of the other look
// around.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <string>

#include "cohort/base/error.h"

namespace cohort {

// A job's store in a place where strangers can read and write: LibTorch's TCPStore serves whoever connects. Ranks that share a secret use
// it as if they were alone.
//
//   name of an entry     a prefix made from the secret, so that ranks with other secrets never meet, then the key
//   value of an entry    seal()ed (base/secrets.h) with a key made from the secret, for that name
//
// So a stranger can neither read a value nor make one that a rank accepts, nor move one to another key. What is left to strangers: to
// count and remove entries, to put an earlier value of the same key back, and to keep the server busy: the job fails then, with a time-out
// or with an error that says so. Counters (add()) are summed by the server and so not protected.
//
// Cost: 28 bytes and some microseconds a value.

class SealedStore : public c10d::Store {
 public:
  /// `secret` is the same on all ranks of the job and on no others. "": names and values stay as they are, and only the note of a rank that
  /// was turned away (check_same_secret) is read.
  SealedStore(c10::intrusive_ptr<c10d::Store> store, const std::string& secret);

  c10::intrusive_ptr<c10d::Store> clone() override;
  using Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  /// Error(kEnvironment) where the value was not written by a rank of this job.
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

/// Ranks find out, before they wait for each other under names that differ, that they were given different secrets, or only some of them
/// one ("" is none): rank 0 publishes a proof that it knows its secret, the others compare it with theirs. Error(kEnvironment) on these,
/// which says what to do, and a note in the store, so that a get() of the others that is not answered in time says it too. `place` is where
/// the store is. Blocks until rank 0 has come, at most for the store's time-out.
void check_same_secret(c10d::Store& store, int rank, const std::string& secret, const std::string& place);

// A job's store whose waits look around: nobody waits for an entry past the time-out, after Ctrl-C, or for a rank that has said that it
// does not come. LibTorch's stores do none of it.
//
// Cost: an entry that is not there is asked for again after 1 to 20 ms.

class PollingStore : public c10d::Store {
 public:
  /// `heeds_stop`: a wait ends at stop_requested(). Of ranks that Cohort started the launcher sees to that.
  PollingStore(c10::intrusive_ptr<c10d::Store> store, bool heeds_stop);
  /// Called now and then while an entry is waited for; what it throws ends the wait.
  void set_poll(std::function<void()> look) { look_ = std::move(look); }

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
void post_startup_failure(c10d::Store& store, ErrorCode code, const std::string& text);
/// Throws what a rank has left there, and counts this one as having heard it.
void check_startup_failure(c10d::Store& store);
/// How many ranks have left or heard it.
int64_t num_startup_failure_readers(c10d::Store& store);

}  // namespace cohort
