// CSV (RFC 4180): fields between separators, rows between line ends (LF or CRLF). A field in double quotes may hold separators, line ends
// and doubled quotes. More lenient than the RFC: a byte-order mark before the header, blanks around fields, empty lines. Stricter: a quote
// inside an unquoted field, or anything but a separator after the closing quote, makes the row invalid.
//
// An invalid row ends at the next line end. Memory: one row, at most kMaxRowBytes.

#include "cohort/base/files/csv.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/files/byte_reader.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr int64_t kChunk = 1 << 16, kMaxRowBytes = 1 << 24;
constexpr size_t kMostTableBytes = size_t{1} << 26;
constexpr double kMostCount = 2e9;

}  // namespace

CsvRows::CsvRows(Source source, char separator)
    : source_(std::move(source)), separator_(separator), buffer_(kChunk), bytes_(buffer_.data()) {}

CsvRows::CsvRows(std::string_view text, int64_t first_line, bool keeps_empty_lines)
    : keeps_empty_lines_(keeps_empty_lines),
      bytes_(reinterpret_cast<const uint8_t*>(text.data())),
      end_(static_cast<int64_t>(text.size())),
      line_(first_line) {}

int CsvRows::peek() {
  if (at_ == end_) {
    if (!source_) return -1;
    at_ = 0;
    end_ = source_(buffer_.data(), kChunk);
    if (end_ == 0) return -1;
  }
  return bytes_[at_];
}

int CsvRows::take() {
  const int byte = peek();
  if (byte < 0) return byte;
  ++at_;
  ++row_bytes_;
  if (byte == '\n') ++line_;
  return byte;
}

void CsvRows::skip_line() {
  for (int byte = take(); byte >= 0 && byte != '\n'; byte = take()) {
  }
}

void CsvRows::skip_blanks() {
  while (peek() == ' ' || (peek() == '\t' && separator_ != '\t')) take();
}

/// Reads from behind the opening quote to behind the closing one.
void CsvRows::read_quoted(TableRow& row, std::string& field) {
  while (true) {
    const int byte = take();
    if (byte < 0) {
      row.fault = "a quote that is opened in this row is not closed before the end of the file";
      return;
    }
    if (byte == '"') {
      if (peek() != '"') return;
      take();
    }
    if (row_bytes_ > kMaxRowBytes) {
      row.fault = concat("has more than ", kMaxRowBytes, " bytes: is a quote not closed?");
      return skip_line();
    }
    field += static_cast<char>(byte);
  }
}

/// Adds a field to `row` and consumes its end; true where another field follows.
bool CsvRows::read_field(TableRow& row, bool& is_quoted) {
  std::string field;
  skip_blanks();
  is_quoted = peek() == '"';
  if (is_quoted) {
    take();
    read_quoted(row, field);
    if (!row.fault.empty()) return false;
    skip_blanks();
  }
  while (true) {
    const int byte = take();
    const bool ends_line = byte < 0 || byte == '\n' || (byte == '\r' && (peek() == '\n' || peek() < 0));
    if (ends_line && byte == '\r') take();
    if (ends_line || byte == static_cast<unsigned char>(separator_)) {
      if (!is_quoted) field.erase(field.find_last_not_of(" \t") + 1);
      row.fields.push_back(std::move(field));
      return !ends_line;
    }
    if (byte == '"' || is_quoted) {
      row.fault = concat("field ", row.fields.size() + 1,
                         is_quoted ? " goes on after its closing quote"
                                   : " has a quote inside; expected the whole field in quotes, and this quote doubled");
      skip_line();
      return false;
    }
    if (row_bytes_ > kMaxRowBytes) {
      row.fault = concat("has more than ", kMaxRowBytes, " bytes");
      skip_line();
      return false;
    }
    field += static_cast<char>(byte);
  }
}

bool CsvRows::next(TableRow& row) {
  while (true) {
    if (peek() < 0) return false;
    row.fields.clear();
    row.fault.clear();
    row.line = line_;
    row_bytes_ = 0;
    bool is_quoted = false;
    while (read_field(row, is_quoted)) {
      if (row.fields.size() < kMaxCsvColumns) continue;
      row.fault = concat("has more than ", kMaxCsvColumns, " fields");
      skip_line();
      break;
    }
    const bool is_empty = !keeps_empty_lines_ && row.fault.empty() && row.fields.size() == 1 && row.fields[0].empty() && !is_quoted;
    if (!is_empty) return true;
  }
}

bool CsvRows::skip_byte_order_mark() {
  if (peek() != 0xef) return true;
  return take() == 0xef && take() == 0xbb && take() == 0xbf;
}

CsvReader::CsvReader(const std::string& path, char separator)
    : CsvReader([reader = std::make_shared<ByteReader>(path)](uint8_t* out, int64_t num_bytes) { return reader->read(out, num_bytes); },
                path, separator) {}

CsvReader::CsvReader(Source source, std::string path, char separator) : rows_(std::move(source), separator), path_(std::move(path)) {
  read_header();
}

void CsvReader::read_header() {
  if (!rows_.skip_byte_order_mark()) fail(ErrorCode::kBadInput, path_, ":1: begins with a byte-order mark that is cut short");
  TableRow row;
  if (!rows_.next(row)) fail(ErrorCode::kBadInput, path_, " is empty: expected a first line with the names of the columns");
  if (!row.fault.empty()) fail(ErrorCode::kBadInput, path_, ":", row.line, ": ", row.fault);
  std::set<std::string> seen;
  for (const std::string& name : row.fields) {
    if (name.empty())
      fail(ErrorCode::kBadInput, path_, ":", row.line, ": column ", seen.size() + 1,
           " has no name: expected a first line with the names of the columns");
    if (!seen.insert(name).second) fail(ErrorCode::kBadInput, path_, ":", row.line, ": two columns have the name '", printable(name), "'");
  }
  header_ = std::move(row.fields);
}

bool CsvReader::next(TableRow& row) {
  if (!rows_.next(row)) return false;
  if (row.fault.empty() && row.fields.size() != header_.size())
    row.fault = concat(row.fields.size(), row.fields.size() == 1 ? " field" : " fields", ", and the header has ", header_.size());
  return true;
}

void fail_without_column(const std::string& where, const std::string& name, const std::vector<std::string>& header,
                         const std::string& more) {
  constexpr size_t kMostShown = 60;
  std::string shown = printable(name.substr(0, kMostShown));
  std::replace(shown.begin(), shown.end(), '\n', '?');
  fail(ErrorCode::kBadInput, where, ": there is no column '", shown, name.size() > kMostShown ? "..." : "", "'", did_you_mean(name, header),
       more);
}

CsvRow::CsvRow(std::shared_ptr<const std::vector<std::string>> header, std::vector<std::string> fields, std::string where)
    : header_(std::move(header)), fields_(std::move(fields)), where_(std::move(where)) {
  if (fields_.size() != header_->size())
    fail(ErrorCode::kBadInput, where_, ": ", fields_.size(), " fields, and the header has ", header_->size());
}

bool CsvRow::has(const std::string& column) const { return std::find(header_->begin(), header_->end(), column) != header_->end(); }

std::string CsvRow::text(const std::string& column) const {
  const auto at = std::find(header_->begin(), header_->end(), column);
  if (at == header_->end()) fail(ErrorCode::kBadInput, where_, ": no column '", column, "'", did_you_mean(column, *header_));
  return trim(fields_[static_cast<size_t>(at - header_->begin())]);
}

double CsvRow::number(const std::string& column, double least, double most, const char* expected) const {
  const auto value = parse_number(text(column), least, most);
  if (!value) refuse(column, expected);
  return *value;
}

int64_t CsvRow::count(const std::string& column) const {
  const double value = number(column, 1, kMostCount, "a whole number from 1 to 2000000000");
  if (value != std::floor(value)) refuse(column, "a whole number from 1 to 2000000000");
  return static_cast<int64_t>(value);
}

double CsvRow::positive(const std::string& column) const {
  return number(column, std::numeric_limits<double>::denorm_min(), std::numeric_limits<double>::max(), "a positive number");
}

double CsvRow::at_least_0(const std::string& column) const {
  return number(column, 0, std::numeric_limits<double>::max(), "a number of at least 0");
}

size_t CsvRow::one_of(const std::string& column, const std::vector<std::string>& allowed) const {
  const auto at = std::find(allowed.begin(), allowed.end(), text(column));
  if (at == allowed.end()) refuse(column, "one of " + join(allowed, " "));
  return static_cast<size_t>(at - allowed.begin());
}

void CsvRow::refuse(const std::string& column, const std::string& expected) const {
  fail(ErrorCode::kBadInput, where_, ": ", column, " is '", printable(text(column)), "', expected ", expected);
}

std::vector<CsvRow> read_csv(const std::string& path) {
  const std::string content = read_small_file(path, kMostTableBytes);
  CsvRows lines{std::string_view(content)};
  if (!lines.skip_byte_order_mark()) fail(ErrorCode::kBadInput, path, ":1: begins with a byte-order mark that is cut short");
  std::shared_ptr<std::vector<std::string>> header;
  std::vector<CsvRow> rows;
  for (TableRow row; lines.next(row);) {
    std::string where = concat(path, ":", row.line);
    if (!row.fault.empty()) fail(ErrorCode::kBadInput, where, ": ", row.fault);
    if (header) rows.emplace_back(header, std::move(row.fields), std::move(where));
    else header = std::make_shared<std::vector<std::string>>(std::move(row.fields));
  }
  return rows;
}

}  // namespace cohort
