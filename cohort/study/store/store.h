#pragma once
// A study on disk: DIR/study.db, an SQLite file that is consistent after a kill at any time. Tables: docs/formats/study.md.

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
/// Used by one thread; must not be used or destroyed in a forked process.
///
/// Errors: kBadInput for a file that is not a study, is damaged or cannot be opened or written; kFailed for a full disk (earlier trials are
/// safe, and add() may be retried).
class Store {
 public:
  /// Opens or creates DIR/study.db for this spec and writes DIR/study.toml. A store of the same study is continued, and adopts what was
  /// added to the spec; what the spec omits is kept (merge_specs). Error(kBadInput) where DIR holds another study (explain_difference),
  /// other files and no study, a file that is not a study, or a store of a later version.
  static Store open(const std::string& folder, const StudySpec& spec);
  /// Opens for reading only. Error(kBadInput) where there is no study.
  static Store open_readonly(const std::string& folder);
  /// Opens an existing store to set notes, whatever its spec; refuses a second writer as open() does.
  static Store open_existing(const std::string& folder);
  /// Creates a store of an imported study. It has no spec: it can be read and notes can be set, but no run can continue it.
  /// Error(kBadInput) where DIR holds a study.
  static void create(const std::string& folder, const StudyData& study);
  /// For studies with only some measurements in memory: `batch_with_all` returns each batch size with all of them.
  static void create(const std::string& folder, const StudyData& study,
                     const std::function<BatchStudy(int64_t batch_size)>& batch_with_all);

  Store(Store&&) noexcept;
  ~Store();

  /// The merged spec of all runs. Error(kBadInput) where there is none: see create().
  StudySpec spec() const;
  /// Writes an ended trial with all its measurements in one transaction. Error(kFailed) where the trial exists already.
  /// A trial of 0.4 s or more is also synced to the disk; shorter ones may be lost entirely by a power failure (never by a kill).
  void add(int64_t batch_size, const Trial& trial);
  /// Ended trials of a batch size without measurements, in increasing order of ids.
  std::vector<Trial> trials(int64_t batch_size) const;
  /// The whole study in one transaction, measurements included. num_train_samples is the note "num_train_samples" (a whole number that
  /// runs set), else the spec's train_samples, else 0. warnings are the notes "halving" (a string) and "warnings" (a list of
  /// strings).
  StudyData read() const;
  /// Named JSON values stored beside the trials (such as noise scales). Error(kBadInput) for a store that is open for reading only.
  void set_note(const std::string& name, const std::string& text);
  std::optional<std::string> note(const std::string& name) const;

 private:
  struct State;
  explicit Store(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Error(kBadInput) for a folder without study.db that is not empty: a new study must not be mixed with other files.
void check_holds_nothing_else(const std::string& folder);

/// Reads DIR as StudyData: a folder with study.db, or an archive's with one workload (archive.h). Error(kBadInput) otherwise.
StudyData read_study(const std::string& folder);
/// The same for results at `goal` or at the study's own goals only: of an archive only the measurements that these need are kept in memory
/// (keep_for_goals).
StudyData read_study_for_goal(const std::string& folder, const std::optional<GoalSpec>& goal);

// The tables of study.db, and the recognition of such a file.

/// Increased whenever a table changes; later versions are refused.
constexpr int64_t kStoreVersion = 1;

/// Error(kBadInput) where the file is damaged, another program's, or of a later version. False for a file that is still empty.
bool is_study_store(Database& database);
/// Creates all tables in one transaction.
void make_tables(Database& database);

enum class Journal {
  kWriteAhead,  ///< Readers and the writer never wait for each other, and a commit needs no sync. Needs shared memory.
  kRollback     ///< For network file systems; every commit syncs.
};
void set_journal(Database& database, Journal journal);

}  // namespace cohort::study
