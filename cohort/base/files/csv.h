#pragma once
// Tables in CSV (RFC 4180): rows read one after the other in constant memory, and small tables whose fields are looked up by column name.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/base/export.h"

namespace cohort {

constexpr size_t kMaxCsvColumns = 1 << 16;

struct TableRow {
  std::vector<std::string> fields;  ///< Without blanks around unquoted ones.
  int64_t line = 0;                 ///< Its first line in the file, counted from 1.
  std::string fault;                ///< Why the row is invalid, else ""; `fields` are meaningless then, and the next row can be read.
};

/// All rows; the first one has no special meaning. One thread at a time.
class CsvRows {
 public:
  /// Fills `out` with the next `num_bytes`, fewer only at the end; returns how many.
  using Source = std::function<int64_t(uint8_t* out, int64_t num_bytes)>;

  explicit CsvRows(Source source, char separator = ',');
  /// Reads a text, which must outlive the object. `first_line`: the number of its first line. `keeps_empty_lines`: as rows of one field.
  explicit CsvRows(std::string_view text, int64_t first_line = 1, bool keeps_empty_lines = false);
  CsvRows(CsvRows&&) = default;

  /// Replaces `row` by the next one; false at the end.
  bool next(TableRow& row);
  /// For a text: the number of bytes that were read.
  size_t offset() const { return static_cast<size_t>(at_); }
  /// Number of the next line.
  int64_t line() const { return line_; }
  /// Skips a byte-order mark; false where it is incomplete.
  bool skip_byte_order_mark();

 private:
  int take();  // The next byte, or -1 at the end.
  int peek();
  bool read_field(TableRow& row, bool& is_quoted);
  void read_quoted(TableRow& row, std::string& field);
  void skip_line();
  void skip_blanks();

  Source source_;  // Empty: `bytes_` is the whole text.
  char separator_ = ',';
  bool keeps_empty_lines_ = false;
  std::vector<uint8_t> buffer_;
  const uint8_t* bytes_ = nullptr;
  int64_t at_ = 0, end_ = 0, line_ = 1, row_bytes_ = 0;
};

/// Rows below a header of distinct column names.
class CsvReader {
 public:
  using Source = CsvRows::Source;

  /// Reads a plain or gzip file. Error(kBadInput) where it cannot be read, or its first row is not a header.
  explicit CsvReader(const std::string& path, char separator = ',');
  CsvReader(Source source, std::string path, char separator = ',');

  const std::string& path() const { return path_; }
  const std::vector<std::string>& header() const { return header_; }
  /// Replaces `row` by the next one, which has as many fields as the header or a fault; false at the end. Skips empty lines.
  bool next(TableRow& row);

 private:
  void read_header();

  CsvRows rows_;
  std::string path_;
  std::vector<std::string> header_;
};

/// Error(kBadInput) for a table `where` that has no column `name`; `more` ends the sentence.
[[noreturn]] void fail_without_column(const std::string& where, const std::string& name, const std::vector<std::string>& header,
                                      const std::string& more);

/// One row of a small table. Errors are Error(kBadInput) with file, line, column and what was expected.
class COHORT_PROGRAM_API CsvRow {
 public:
  CsvRow(std::shared_ptr<const std::vector<std::string>> header, std::vector<std::string> fields, std::string where);

  bool has(const std::string& column) const;
  /// The field without blanks around it.
  std::string text(const std::string& column) const;
  /// A whole number from 1 to 2,000,000,000.
  int64_t count(const std::string& column) const;
  double positive(const std::string& column) const;
  double at_least_0(const std::string& column) const;
  /// Index of the field's text in `allowed`.
  size_t one_of(const std::string& column, const std::vector<std::string>& allowed) const;

  [[noreturn]] void refuse(const std::string& column, const std::string& expected) const;
  /// "FILE:LINE".
  const std::string& where() const { return where_; }

 private:
  double number(const std::string& column, double least, double most, const char* expected) const;

  std::shared_ptr<const std::vector<std::string>> header_;
  std::vector<std::string> fields_;
  std::string where_;
};

/// All rows below the header, which may have any columns. Skips a byte-order mark and empty lines. At most 64 MiB. Error(kBadInput) for an
/// invalid row, or one with another number of fields than the header.
COHORT_PROGRAM_API std::vector<CsvRow> read_csv(const std::string& path);

}  // namespace cohort
