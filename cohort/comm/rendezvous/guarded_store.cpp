#include "cohort/comm/rendezvous/guarded_store.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/secrets.h"
#include "cohort/base/text/text.h"
#include "cohort/world/job_token.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

constexpr const char* kProofKey = "proof";
constexpr const char* kRefusedKey = "refused";  // Set by rejected ranks. Anybody may write it, so it only explains failures.
constexpr const char* kNoSecret = "no token";

std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

SealedStore::SealedStore(c10::intrusive_ptr<c10d::Store> store, const std::string& secret)
    : store_(std::move(store)),
      secret_(secret),
      prefix_(secret.empty() ? "" : hexadecimal(derived_key(secret, "store: names").substr(0, 8)) + "/"),
      key_(secret.empty() ? "" : derived_key(secret, "store: values")) {}

c10::intrusive_ptr<c10d::Store> SealedStore::clone() { return c10::make_intrusive<SealedStore>(store_->clone(), secret_); }

std::vector<std::string> SealedStore::names_of(const std::vector<std::string>& keys) const {
  std::vector<std::string> names;
  for (const std::string& key : keys) names.push_back(name_of(key));
  return names;
}

void SealedStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  if (secret_.empty()) return store_->set(key, value);
  const std::string name = name_of(key), sealed = seal(key_, name, text_of(value));
  store_->set(name, std::vector<uint8_t>(sealed.begin(), sealed.end()));
}

/// Adds to a time-out that a rank was rejected.
std::vector<uint8_t> SealedStore::get_in_time(const std::string& name) {
  try {
    return store_->get(name);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    bool refused = false;
    try {
      refused = store_->check({kRefusedKey});
    } catch (const std::exception&) {  // The store is gone: report that.
    }
    if (!refused) throw;
    fail(ErrorCode::kEnvironment, "a rank did not come in time, and one was turned away because ",
         secret_.empty() ? "it has a token and this job has none; " : "its token is another than this job's, or it has none; ",
         token_instructions(), " [", first_line(error.what()), "]");
  }
}

std::vector<uint8_t> SealedStore::get(const std::string& key) {
  const std::string name = name_of(key);
  if (secret_.empty()) return get_in_time(name);
  const std::optional<std::string> text = unseal(key_, name, text_of(get_in_time(name)));
  if (!text)
    fail(ErrorCode::kEnvironment, "the store's entry '", key,
         "' was not written by a rank of this job: somebody without its token writes to "
         "the store; use a network, or a port, that only the job's hosts reach");
  return {text->begin(), text->end()};
}

int64_t SealedStore::add(const std::string& key, int64_t value) { return store_->add(name_of(key), value); }
bool SealedStore::deleteKey(const std::string& key) { return store_->deleteKey(name_of(key)); }
bool SealedStore::check(const std::vector<std::string>& keys) { return store_->check(names_of(keys)); }
int64_t SealedStore::getNumKeys() { return store_->getNumKeys(); }
void SealedStore::wait(const std::vector<std::string>& keys) { store_->wait(names_of(keys)); }
void SealedStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  store_->wait(names_of(keys), timeout);
}
const std::chrono::milliseconds& SealedStore::getTimeout() const noexcept { return store_->getTimeout(); }
void SealedStore::setTimeout(const std::chrono::milliseconds& timeout) { store_->setTimeout(timeout); }

void check_same_secret(c10d::Store& store, int rank, const std::string& secret, const std::string& place) {
  const auto proof_with = [&](const std::string& nonce) {
    return nonce + " " + hexadecimal(hmac_sha256(derived_key(secret, "store: proof"), nonce));
  };
  if (rank == 0) {
    const std::string proof = secret.empty() ? kNoSecret : proof_with(hexadecimal(secret_bytes(16)));
    return store.set(kProofKey, std::vector<uint8_t>(proof.begin(), proof.end()));
  }
  std::string proof;
  try {
    proof = text_of(store.get(kProofKey));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorCode::kEnvironment, "rank ", rank, " waited for rank 0 at the store at ", place, ", which did not come in time [",
         first_line(error.what()), "]");
  }
  if (proof == kNoSecret) {
    if (secret.empty()) return;
    store.set(kRefusedKey, std::vector<uint8_t>{'1'});
    fail(ErrorCode::kEnvironment, "rank ", rank, " has a token (COHORT_TOKEN), rank 0 of the job at ", place, " has none; ",
         token_instructions());
  }
  const bool is_same = !secret.empty() && equal_secrets(proof, proof_with(proof.substr(0, proof.find(' '))));
  if (!is_same) store.set(kRefusedKey, std::vector<uint8_t>{'1'});
  if (secret.empty())
    fail(ErrorCode::kEnvironment, "rank ", rank, " has no token, and the job at ", place, " asks for one; ", token_instructions());
  if (!is_same) fail(ErrorCode::kEnvironment, "the token of rank ", rank, " is not that of the job at ", place, "; ", token_instructions());
}

namespace {

constexpr std::chrono::milliseconds kFirstNap{1}, kLongestNap{20};
constexpr double kBetweenLooks = 0.05, kMomentAfterStop = 0.3;
constexpr const char *kRefusal = "cohort/refusal", *kHeard = "cohort/refusal/heard";

}  // namespace

PollingStore::PollingStore(c10::intrusive_ptr<c10d::Store> store, bool heeds_stop) : store_(std::move(store)), heeds_stop_(heeds_stop) {}

c10::intrusive_ptr<c10d::Store> PollingStore::clone() { return c10::make_intrusive<PollingStore>(store_->clone(), heeds_stop_); }

std::vector<uint8_t> PollingStore::get(const std::string& key) {
  wait({key});
  return store_->get(key);
}

void PollingStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  AwakeTimer timer;
  StopWatch stop;
  double next_look = 0;
  for (auto nap = kFirstNap; !store_->check(keys); nap = std::min(2 * nap, kLongestNap)) {
    if (heeds_stop_) stop.check();
    const double seconds = timer.seconds();
    if (look_ && seconds >= next_look) look_(), next_look = seconds + kBetweenLooks;
    if (seconds > std::chrono::duration<double>(timeout).count())
      throw std::runtime_error(concat("wait timeout after ", timeout.count(), "ms, keys: ", join(keys, ", ")));
    std::this_thread::sleep_for(nap);
  }
}

void StopWatch::check() {
  if (!stop_requested()) return;
  if (since_ == 0) since_ = steady_seconds();
  if (steady_seconds() - since_ > kMomentAfterStop) throw Error(ErrorCode::kInterrupted, kStoppedBeforeFirstStep);
}

void post_startup_failure(c10d::Store& store, ErrorCode code, const std::string& text) {
  if (!store.check({kRefusal})) {
    const std::string entry = concat(static_cast<int>(code), " ", text);
    store.set(kRefusal, std::vector<uint8_t>(entry.begin(), entry.end()));
  }
  store.add(kHeard, 1);
}

void check_startup_failure(c10d::Store& store) {
  if (!store.check({kRefusal})) return;
  const std::vector<uint8_t> bytes = store.get(kRefusal);
  const std::string entry(bytes.begin(), bytes.end());
  store.add(kHeard, 1);
  const size_t space = std::min(entry.find(' '), entry.size());
  const auto code = parse_integer(entry.substr(0, space));
  throw Error(code && *code > 0 && *code < 256 ? static_cast<ErrorCode>(*code) : ErrorCode::kEnvironment,
              entry.substr(std::min(space + 1, entry.size())));
}

int64_t num_startup_failure_readers(c10d::Store& store) { return store.add(kHeard, 0); }

}  // namespace cohort
