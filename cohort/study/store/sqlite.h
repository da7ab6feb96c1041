#pragma once
// RAII wrappers of the C interface of SQLite: a connection, a prepared statement, a transaction. Every failure is an Error of one line with
// the file and what to do. docs/adr/0014-sqlite-store.md.

#include <cstdint>
#include <memory>
#include <string>

struct sqlite3;
struct sqlite3_stmt;

namespace cohort::study {

/// One connection. Used by one thread; must not be used after a fork.
class Database {
 public:
  enum class Mode {
    kWrite,     ///< Creates the file where it is missing.
    kRead,      ///< For files that others may be writing. Changes no data, but may recover after a killed writer.
    kImmutable  ///< For files in read-only folders, which no one writes.
  };
  Database(const std::string& path, Mode mode);

  /// Runs statements without parameters and results.
  void execute(const std::string& sql);
  /// The first column of the first row; 0 or "" where there is none.
  int64_t integer(const std::string& sql);
  std::string text(const std::string& sql);

  const std::string& path() const { return path_; }
  /// The time to wait for a lock of another process; 30 s by default.
  void set_lock_timeout(int milliseconds);
  sqlite3* handle() const { return handle_.get(); }
  /// Throws the Error for SQLite's result `code`. kBadInput: the file is not a database, damaged, or cannot be opened or written; kFailed:
  /// a full disk and all other failures.
  [[noreturn]] void fail_with(int code) const;

 private:
  struct Close {
    void operator()(sqlite3* handle) const;
  };
  std::string path_;
  std::unique_ptr<sqlite3, Close> handle_;
};

/// A prepared statement; the database must outlive it. Parameters and columns count from 1 and 0, as in SQLite.
class Statement {
 public:
  Statement(const Database& database, const std::string& sql);

  Statement& bind(int parameter, int64_t value);
  Statement& bind(int parameter, double value);  ///< NaN becomes NULL.
  Statement& bind(int parameter, const std::string& value);
  /// Advances to the next row; false at the end.
  bool step();
  /// Runs the statement to its end; it can then be bound and run again.
  void run();
  void reset();

  int64_t integer(int column) const;
  double number(int column) const;  ///< NaN for NULL.
  std::string text(int column) const;
  bool is_null(int column) const;

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* handle) const;
  };
  Statement& check(int code);
  const Database* database_;
  std::unique_ptr<sqlite3_stmt, Finalize> handle_;
};

/// Rolls back on destruction without commit().
class Transaction {
 public:
  enum class Kind { kRead, kWrite };
  Transaction(Database& database, Kind kind);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit();

 private:
  Database& database_;
  bool open_ = true;
};

/// Whether `folder` is on a network file system. Write-ahead logs share memory between processes, so they do not work there.
bool is_network_file_system(const std::string& folder);

}  // namespace cohort::study
