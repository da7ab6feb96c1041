#pragma once
// The tables of study.db and how a file is recognised as one. docs/formats/study.md describes them for other readers.

#include <string>

#include "cohort/study/store/sqlite.h"

namespace cohort::study {

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
