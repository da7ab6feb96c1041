#pragma once
// The C interface of SQLite without leaks and without silent failures: a connection, a prepared statement, a transaction. Every failure is
// an Error of one line with the file and what to do. docs/adr/0014-sqlite-store.md.

#include <cstdint>
#include <memory>
#include <string>

struct sqlite3;
struct sqlite3_stmt;

namespace cohort::study {

/// One connection. One thread; not to be carried over a fork.
class Database {
 public:
  enum class Mode {
    kWrite,     ///< Makes the file where it is missing.
    kRead,      ///< Of a file that others may be writing. Changes no data, yet may tidy up after a writer that was killed.
    kImmutable  ///< Of a file that no one writes, in a place where nothing can be written.
  };
  Database(const std::string& path, Mode mode);

  /// Statements without parameters and results.
  void execute(const std::string& sql);
  /// First column of the first row; 0 or "" where there is none.
  int64_t integer(const std::string& sql);
  std::string text(const std::string& sql);

  const std::string& path() const { return path_; }
  /// How long a lock of another process is waited for; 30 s at first.
  void set_lock_timeout(int milliseconds);
  sqlite3* handle() const { return handle_.get(); }
  /// Throws what SQLite's result `code` means. kBadInput: the file is no database, damaged, or can not be opened or written; kFailed: a
  /// full disk and all else.
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
  /// Whether there is a (next) row.
  bool step();
  /// Runs it to its end; it can be bound and run again.
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
  const Database* database_;
  std::unique_ptr<sqlite3_stmt, Finalize> handle_;
};

/// Rolled back where it is left without commit().
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

/// Whether `folder` lies on a file system that other machines may write too. Write-ahead logs share memory between processes, so they do
/// not work there.
bool is_network_file_system(const std::string& folder);

}  // namespace cohort::study
