#pragma once
// Rows of a CSV file, one after the other: RFC 4180, in memory that does not grow with the file.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace cohort {

constexpr size_t kMaxCsvColumns = 1 << 16;

struct TableRow {
  std::vector<std::string> fields;  ///< As many as the header has. Blanks around what is not quoted are gone.
  int64_t line = 0;                 ///< Where it begins in the file, counted from 1.
  std::string fault;                ///< Why it is no row, and then `fields` are nothing; reading goes on with the next one.
};

/// One thread at a time.
class CsvReader {
 public:
  /// Fills `out` with the next `num_bytes`, fewer only at the end; returns how many.
  using Source = std::function<int64_t(uint8_t* out, int64_t num_bytes)>;

  /// A file, plain or gzip. Error(kBadInput) where it cannot be read, or its first row is no header: names, no two alike.
  explicit CsvReader(const std::string& path, char separator = ',');
  CsvReader(Source source, std::string path, char separator = ',');

  const std::string& path() const { return path_; }
  const std::vector<std::string>& header() const { return header_; }
  /// Replaces `row` by the next one; false at the end of the file. Empty lines are passed over.
  bool next(TableRow& row);

 private:
  int take();  // The next byte, or -1.
  int peek();
  bool read_row(TableRow& row);
  bool read_field(TableRow& row, bool& is_quoted);
  void read_quoted(TableRow& row, std::string& field);
  void skip_line();
  void read_header();

  Source source_;
  std::string path_;
  char separator_;
  std::vector<std::string> header_;
  std::vector<uint8_t> buffer_;
  int64_t at_ = 0, end_ = 0, line_ = 1, row_bytes_ = 0;
};

}  // namespace cohort
