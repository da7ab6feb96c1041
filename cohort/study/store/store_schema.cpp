#include "cohort/study/store/store_schema.h"

#include "cohort/base/fail.h"
#include "cohort/study/spec/data.h"

namespace cohort::study {
namespace {

constexpr int64_t kApplicationId = 0x436f5374;  // "CoSt", at byte 68 of the file.

constexpr const char* kTables = R"(
  CREATE TABLE study (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
  CREATE TABLE notes (name TEXT PRIMARY KEY, text TEXT NOT NULL) STRICT, WITHOUT ROWID;
  CREATE TABLE batches (
    batch_size INTEGER PRIMARY KEY CHECK (batch_size > 0), num_trials INTEGER NOT NULL, train_steps INTEGER NOT NULL,
    early_stopping INTEGER NOT NULL, space TEXT NOT NULL) STRICT;
  CREATE TABLE trials (
    trial INTEGER PRIMARY KEY, batch_size INTEGER NOT NULL REFERENCES batches, id INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('COMPLETE', 'CENSORED', 'INFEASIBLE', 'INCOMPLETE')), steps INTEGER NOT NULL,
    seconds REAL NOT NULL, parameters TEXT NOT NULL, UNIQUE (batch_size, id)) STRICT;
)";

}  // namespace

bool is_study_store(Database& database) {
  const int64_t application = database.integer("PRAGMA application_id");
  const int64_t version = database.integer("PRAGMA user_version");
  if (application == 0 && version == 0 && database.integer("SELECT count(*) FROM sqlite_schema") == 0) return false;
  if (application != kApplicationId)
    fail(ErrorCode::kBadInput, database.path(), " is another program's SQLite file, not a study; give another folder");
  if (version > kStoreVersion)
    fail(ErrorCode::kBadInput, database.path(), " was written by a later version of Cohort (store version ", version, ", this one knows ",
         kStoreVersion, "); use that version");
  return true;
}

void make_tables(Database& database) {
  // A row a measurement, without a row number of its own: sorted by (trial, step), so that a trial's curve is one piece of the file.
  std::string measurements = "CREATE TABLE measurements (trial INTEGER NOT NULL REFERENCES trials, step INTEGER NOT NULL";
  std::string view = "CREATE VIEW curves AS SELECT batch_size, id, status, step";
  for (int metric = 0; metric < kNumMetrics; ++metric) {
    measurements += concat(", ", name_of(static_cast<Metric>(metric)), " REAL");
    view += concat(", ", name_of(static_cast<Metric>(metric)));
  }
  Transaction transaction(database, Transaction::Kind::kWrite);
  database.execute(kTables);
  database.execute(measurements + ", PRIMARY KEY (trial, step)) STRICT, WITHOUT ROWID");
  database.execute(view + " FROM trials JOIN measurements USING (trial)");
  database.execute(concat("PRAGMA application_id = ", kApplicationId));
  database.execute(concat("PRAGMA user_version = ", kStoreVersion));
  transaction.commit();
}

void set_journal(Database& database, Journal journal) {
  if (journal == Journal::kWriteAhead) {
    database.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL");
  } else {
    database.execute("PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL");
  }
}

}  // namespace cohort::study
