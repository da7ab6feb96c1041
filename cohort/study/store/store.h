#pragma once
// A study on disk: DIR/study.db, one SQLite file that a kill at any instant leaves whole. Tables: docs/formats/study.md.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/study/spec/data.h"
#include "cohort/study/spec/spec.h"

namespace cohort::study {

class Database;

/// One process at a time writes (a second one gets Error(kBadInput) that names the first's pid); any number read, also while one writes.
/// One thread; not to be used, nor destroyed, in a process forked from the one that opened it.
///
/// Failures are one sentence: kBadInput for a file that is no study, is damaged or can not be opened or written; kFailed for a full disk
/// (what was added before is safe, and add() may be tried again).
class Store {
 public:
  /// Opens or makes DIR/study.db for this spec and writes DIR/study.toml. Error(kBadInput) where DIR holds another study
  /// (explain_difference), other files and no study, a file that is no study, or a store of a later version. A store of the same study is
  /// gone on with, and takes over what was added to the spec; what the spec leaves out stays (merge_specs).
  static Store open(const std::string& folder, const StudySpec& spec);
  /// Reads only; Error(kBadInput) where there is none.
  static Store open_readonly(const std::string& folder);
  /// Opens what is there to set notes (what a report measured), whatever its spec; refuses a second writer as open() does.
  static Store open_existing(const std::string& folder);
  /// A new store with all of a study that came from elsewhere (an archive). It has no spec: it can be read, and notes be set, but no run
  /// goes on with it. Error(kBadInput) where DIR holds a study.
  static void create(const std::string& folder, const StudyData& study);
  /// Where not all of it is in memory: `batch_with_all` gives each batch size again, with all measurements.
  static void create(const std::string& folder, const StudyData& study,
                     const std::function<BatchStudy(int64_t batch_size)>& batch_with_all);

  Store(Store&&) noexcept;
  ~Store();

  /// All that was asked for so far. Error(kBadInput) where there is none: see create().
  StudySpec spec() const;
  /// Writes an ended trial with all its measurements in one transaction. Error(kFailed) when it is there already: nothing is run twice.
  /// A trial of 0.4 s or more is also synced to the disk; shorter ones may be lost, whole, by a loss of power (never by a kill).
  void add(int64_t batch_size, const Trial& trial);
  /// Ended trials of a batch size without measurements, ids rising.
  std::vector<Trial> trials(int64_t batch_size) const;
  /// Everything, measurements included, as of one instant. num_train_samples is the note "num_train_samples" (a whole number; whoever runs
  /// the trials sets it), else the spec's train_samples, else 0. warnings are the notes "halving" (a text) and "warnings" (a list of
  /// texts).
  StudyData read() const;
  /// Named values that later steps keep beside the trials (measured step times, noise scales): JSON text. A store that was opened to read
  /// takes none: Error(kBadInput).
  void set_note(const std::string& name, const std::string& text);
  std::optional<std::string> note(const std::string& name) const;

 private:
  struct State;
  explicit Store(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Error(kBadInput) where a new study would be put among files of somebody else: a folder without study.db that is not empty.
void check_holds_nothing_else(const std::string& folder);

/// DIR as StudyData: a folder with study.db, or an archive's with one workload (archive.h). Error(kBadInput) where it is neither.
StudyData read_study(const std::string& folder);
/// The same where only results are asked for, to `goal` or to the study's own goals: of an archive no more is kept in memory than these
/// need (keep_for_goals).
StudyData read_study_for_goal(const std::string& folder, const std::optional<GoalSpec>& goal);

// The tables of study.db and how a file is recognised as one.

/// Raised whenever a table changes; a later version is refused, an earlier one is to be converted here.
constexpr int64_t kStoreVersion = 1;

/// Error(kBadInput) where the file is damaged, another program's, or of a later version. False for a file that is still empty.
bool is_study_store(Database& database);
/// In one transaction.
void make_tables(Database& database);

enum class Journal {
  kWriteAhead,  ///< Readers and the writer never wait for each other, and a commit costs no sync of the disk. Needs shared memory.
  kRollback     ///< For network file systems: every commit syncs.
};
void set_journal(Database& database, Journal journal);

}  // namespace cohort::study
