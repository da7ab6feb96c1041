// CSV (RFC 4180): fields between separators, rows between line ends (LF or CRLF). A field in double quotes may hold separators, line ends
// and, doubled, quotes. Where we are more generous: a byte-order mark before the header, blanks around fields, empty lines. Where we are
// stricter: a quote inside of a field without quotes, or anything but a separator after the closing one, is a fault of the row, for the
// fields that follow would be somebody's guess.
//
// A fault ends its row at the next line end. Memory: one row, at most kMaxRowBytes.

#include "cohort/data/table/csv_reader.h"

#include <algorithm>
#include <set>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/data/source/byte_reader.h"

namespace cohort {
namespace {

constexpr int64_t kChunk = 1 << 16, kMaxRowBytes = 1 << 24;

bool is_blank(int byte) { return byte == ' ' || byte == '\t'; }

}  // namespace

CsvReader::CsvReader(const std::string& path, char separator)
    : CsvReader([reader = std::make_shared<ByteReader>(path)](uint8_t* out, int64_t num_bytes) { return reader->read(out, num_bytes); },
                path, separator) {}

CsvReader::CsvReader(Source source, std::string path, char separator)
    : source_(std::move(source)), path_(std::move(path)), separator_(separator), buffer_(kChunk) {
  read_header();
}

int CsvReader::peek() {
  if (at_ == end_) {
    at_ = 0;
    end_ = source_(buffer_.data(), kChunk);
    if (end_ == 0) return -1;
  }
  return buffer_[static_cast<size_t>(at_)];
}

int CsvReader::take() {
  const int byte = peek();
  if (byte < 0) return byte;
  ++at_;
  ++row_bytes_;
  if (byte == '\n') ++line_;
  return byte;
}

void CsvReader::skip_line() {
  for (int byte = take(); byte >= 0 && byte != '\n'; byte = take()) {
  }
}

/// After the opening quote, to after the closing one.
void CsvReader::read_quoted(TableRow& row, std::string& field) {
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

/// Adds a field to `row` and takes what ends it; true where another one follows.
bool CsvReader::read_field(TableRow& row, bool& is_quoted) {
  std::string field;
  while (separator_ != '\t' ? is_blank(peek()) : peek() == ' ') take();
  is_quoted = peek() == '"';
  if (is_quoted) {
    take();
    read_quoted(row, field);
    if (!row.fault.empty()) return false;
    while (separator_ != '\t' ? is_blank(peek()) : peek() == ' ') take();
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

bool CsvReader::read_row(TableRow& row) {
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
    const bool is_empty = row.fault.empty() && row.fields.size() == 1 && row.fields[0].empty() && !is_quoted;
    if (!is_empty) return true;
  }
}

void CsvReader::read_header() {
  if (peek() == 0xef) {
    for (const int byte : {0xef, 0xbb, 0xbf})
      if (take() != byte) fail(ErrorCode::kBadInput, path_, ":1: begins with a byte-order mark that is cut short");
  }
  TableRow row;
  if (!read_row(row)) fail(ErrorCode::kBadInput, path_, " is empty: expected a first line with the names of the columns");
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
  if (!read_row(row)) return false;
  if (row.fault.empty() && row.fields.size() != header_.size())
    row.fault = concat(row.fields.size(), row.fields.size() == 1 ? " field" : " fields", ", and the header has ", header_.size());
  return true;
}

}  // namespace cohort
