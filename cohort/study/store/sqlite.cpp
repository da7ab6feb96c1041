#include "cohort/study/store/sqlite.h"

#include <sqlite3.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "cohort/base/fail.h"

namespace cohort::study {
namespace {

constexpr int kLockTimeoutMilliseconds = 30'000;

/// file:PATH?immutable=1 with special characters of URIs as %XX.
std::string immutable_uri(const std::string& path) {
  std::string uri = "file:";
  for (const char character : path) {
    if (std::strchr("%?#", character) != nullptr) {
      std::array<char, 4> code{};
      std::snprintf(code.data(), code.size(), "%%%02X", static_cast<unsigned>(character));
      uri += code.data();
    } else {
      uri += character;
    }
  }
  return uri + "?immutable=1";
}

/// The system's error message, where there is one.
std::string because_of(int errno_value) { return errno_value != 0 ? concat(": ", std::strerror(errno_value)) : ""; }

}  // namespace

void Database::Close::operator()(sqlite3* handle) const { sqlite3_close_v2(handle); }

Database::Database(const std::string& path, Mode mode) : path_(path) {
  sqlite3* handle = nullptr;
  // Readers open for writing too where permitted, to recover the transaction of a killed writer.
  const int flags = mode == Mode::kWrite  ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE
                    : mode == Mode::kRead ? SQLITE_OPEN_READWRITE
                                          : SQLITE_OPEN_READONLY | SQLITE_OPEN_URI;
  const std::string name = mode == Mode::kImmutable ? immutable_uri(path) : path;
  const int code = sqlite3_open_v2(name.c_str(), &handle, flags, nullptr);
  handle_.reset(handle);  // After most failures there is a handle too.
  if (code != SQLITE_OK) fail_with(code);
  sqlite3_extended_result_codes(handle, 1);
  set_lock_timeout(kLockTimeoutMilliseconds);
  if (mode != Mode::kWrite) execute("PRAGMA query_only = 1");
}

void Database::set_lock_timeout(int milliseconds) { sqlite3_busy_timeout(handle_.get(), milliseconds); }

void Database::fail_with(int code) const {
  const int reason = handle_ ? sqlite3_system_errno(handle_.get()) : 0;
  // SQLITE_FULL is ENOSPC; a quota or file size limit (EDQUOT, EFBIG) is a failed write, often without its errno.
  const bool is_full = (code & 0xff) == SQLITE_FULL;
  if (is_full || code == SQLITE_IOERR_WRITE)
    fail(ErrorCode::kFailed, "cannot write ", path_, ": ",
         is_full ? "no space left on the device" : "over a quota or a limit of file sizes, or the disk fails",
         "; all that was recorded before is safe: make room and start again");
  switch (code & 0xff) {
    case SQLITE_NOTADB:
      fail(ErrorCode::kBadInput, path_, " is not an SQLite file, so it holds no study");
    case SQLITE_CORRUPT:
      fail(ErrorCode::kBadInput, path_, " is damaged (SQLite: ", sqlite3_errmsg(handle_.get()),
           "); take a copy of it from before, or begin in a new folder");
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      fail(ErrorCode::kBadInput, "cannot write ", path_, because_of(reason), "; the file or its folder is read-only");
    case SQLITE_CANTOPEN:
      fail(ErrorCode::kBadInput, "cannot open ", path_, because_of(reason));
    case SQLITE_BUSY:
      fail(ErrorCode::kFailed, path_, ": another program keeps it locked; end that program and start again");
    default:
      break;
  }
  fail(ErrorCode::kFailed, path_, ": ", handle_ ? sqlite3_errmsg(handle_.get()) : sqlite3_errstr(code), " (SQLite's code ", code, ")",
       because_of(reason));
}

void Database::execute(const std::string& sql) {
  const int code = sqlite3_exec(handle_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) fail_with(code);
}

int64_t Database::integer(const std::string& sql) {
  Statement statement(*this, sql);
  return statement.step() ? statement.integer(0) : 0;
}

std::string Database::text(const std::string& sql) {
  Statement statement(*this, sql);
  return statement.step() ? statement.text(0) : "";
}

void Statement::Finalize::operator()(sqlite3_stmt* handle) const { sqlite3_finalize(handle); }

Statement::Statement(const Database& database, const std::string& sql) : database_(&database) {
  sqlite3_stmt* handle = nullptr;
  const int code = sqlite3_prepare_v2(database.handle(), sql.c_str(), static_cast<int>(sql.size()) + 1, &handle, nullptr);
  handle_.reset(handle);
  if (code != SQLITE_OK) database.fail_with(code);
}

Statement& Statement::check(int code) {
  if (code != SQLITE_OK) database_->fail_with(code);
  return *this;
}

Statement& Statement::bind(int parameter, int64_t value) { return check(sqlite3_bind_int64(handle_.get(), parameter, value)); }

Statement& Statement::bind(int parameter, double value) { return check(sqlite3_bind_double(handle_.get(), parameter, value)); }

Statement& Statement::bind(int parameter, const std::string& value) {
  return check(sqlite3_bind_text64(handle_.get(), parameter, value.data(), value.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
}

bool Statement::step() {
  const int code = sqlite3_step(handle_.get());
  if (code == SQLITE_ROW) return true;
  if (code != SQLITE_DONE) {
    reset();
    database_->fail_with(code);
  }
  return false;
}

void Statement::run() {
  while (step()) {
  }
  reset();
}

void Statement::reset() { sqlite3_reset(handle_.get()); }

int64_t Statement::integer(int column) const { return sqlite3_column_int64(handle_.get(), column); }

double Statement::number(int column) const {
  return is_null(column) ? std::numeric_limits<double>::quiet_NaN() : sqlite3_column_double(handle_.get(), column);
}

std::string Statement::text(int column) const {
  const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(handle_.get(), column));
  return bytes == nullptr ? "" : std::string(bytes, static_cast<size_t>(sqlite3_column_bytes(handle_.get(), column)));
}

bool Statement::is_null(int column) const { return sqlite3_column_type(handle_.get(), column) == SQLITE_NULL; }

Transaction::Transaction(Database& database, Kind kind) : database_(database) {
  // A transaction that begins as a read cannot be upgraded after another writer committed.
  database_.execute(kind == Kind::kWrite ? "BEGIN IMMEDIATE" : "BEGIN");
}

Transaction::~Transaction() {
  // After some failures (a full disk) SQLite has already rolled back.
  if (open_ && sqlite3_get_autocommit(database_.handle()) == 0) sqlite3_exec(database_.handle(), "ROLLBACK", nullptr, nullptr, nullptr);
}

void Transaction::commit() {
  database_.execute("COMMIT");
  open_ = false;
}

bool is_network_file_system(const std::string& folder) {
  // Numbers of linux/magic.h and of the file systems' own sources: NFS, SMB, CIFS, SMB2, Lustre, Ceph, FUSE (sshfs and many others), 9P,
  // GPFS, AFS (two), BeeGFS, GFS2, OCFS2, Coda.
  constexpr std::array<uint32_t, 15> kNetwork = {0x6969,     0x517b,     0xff534d42, 0xfe534d42, 0x0bd00bd0,
                                                 0x00c36400, 0x65735546, 0x01021997, 0x47504653, 0x5346414f,
                                                 0x6b414653, 0x19830326, 0x01161970, 0x7461636f, 0x73757245};
  struct statfs status{};
  if (::statfs(folder.c_str(), &status) != 0) return false;
  return std::find(kNetwork.begin(), kNetwork.end(), static_cast<uint32_t>(status.f_type)) != kNetwork.end();
}

}  // namespace cohort::study
