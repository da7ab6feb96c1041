#pragma once
// For tests of programs as users write them: each runs on ranks as threads and must end like one process, or with the sentence expected
// of it. What ends with other weights and no word is counted as silently wrong.

#include <doctest/doctest.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "tests/support/thread_ranks.h"

namespace cohort::torture {

struct Case {
  std::string name;
  std::function<void(Group&)> program;  ///< Of every rank.
  std::string error;                    ///< Not empty: what the exception says that ends the program on every rank.
  int num_ranks = 2;
  std::string known_wrong;  ///< Not empty: why it does not end as it should, which is counted but does not fail.
  double timeout_seconds = 30;
};

/// Other numbers than one process has, or none of the errors that should be.
struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline std::atomic<bool> error_was_seen{false};

inline void expect(bool right, const std::string& what) {
  if (!right) throw Wrong(what);
}

/// `call` ends with an exception that says `text`, and the program goes on.
template <typename Call>
void must_fail(const std::string& text, const Call& call) {
  std::string found;
  try {
    call();
  } catch (const Wrong&) {
    throw;
  } catch (const std::exception& error) {
    found = error.what();
  }
  if (found.empty()) throw Wrong("no error that says '" + text + "'");
  if (found.find(text) == std::string::npos) throw std::runtime_error("another error than '" + text + "': " + found);
  error_was_seen = true;
}

inline void run_cases(const char* subject, const std::vector<Case>& cases) {
  int num_right = 0, num_clear = 0, num_silent = 0, num_unclear = 0, num_known = 0;
  for (const Case& one : cases) {
    error_was_seen = false;
    std::mutex mutex;
    std::string silent, unclear;
    const auto note = [&](std::string& where, int rank, const std::string& text) {
      const std::lock_guard lock(mutex);
      where += concat("\n    rank ", rank, ": ", text.substr(0, 700));
    };
    run_thread_ranks(one.num_ranks,
                     [&](Group& group) {
                       try {
                         one.program(group);
                         if (!one.error.empty()) note(silent, group.rank(), "no error that says '" + one.error + "'");
                       } catch (const Wrong& wrong) {
                         note(silent, group.rank(), wrong.what());
                       } catch (const std::exception& error) {
                         if (one.error.empty() || std::string(error.what()).find(one.error) == std::string::npos)
                           note(unclear, group.rank(), error.what());
                         else error_was_seen = true;
                       }
                     },
                     {.backend = "auto", .timeout_seconds = one.timeout_seconds});
    const bool fails = !silent.empty() || !unclear.empty();
    if (fails && one.known_wrong.empty()) FAIL_CHECK(concat(one.name, ": ", silent.empty() ? "another error:" : "wrong:", silent, unclear));
    if (!fails && !one.known_wrong.empty()) FAIL_CHECK(one.name << ": is right now; take known_wrong away");
    if (!one.known_wrong.empty()) std::printf("known wrong: %s: %s\n", one.name.c_str(), one.known_wrong.c_str());
    if (!one.known_wrong.empty()) ++num_known;
    else if (!silent.empty()) ++num_silent;
    else if (!unclear.empty()) ++num_unclear;
    else if (error_was_seen) ++num_clear;
    else ++num_right;
  }
  std::printf("torture, %s: %zu cases: %d right, %d clear error, %d silently wrong, %d with another error, %d known wrong\n", subject,
              cases.size(), num_right, num_clear, num_silent, num_unclear, num_known);
}

}  // namespace cohort::torture
