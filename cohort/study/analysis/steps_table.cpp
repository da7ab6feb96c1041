// A table of steps as people and programs write it: CSV after RFC 4180, with what spreadsheets add (a byte order mark, empty lines, blanks
// around fields). A field in quotes may hold commas, line ends and doubled quotes.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/text.h"
#include "cohort/study/analysis/fits.h"

namespace cohort::study {
namespace {

constexpr size_t kMaxBytes = 16 << 20;

struct Record {
  int line = 1;  ///< Where it begins.
  std::vector<std::string> fields;
};

/// A field as an error shows it: a quoted one may hold line ends.
std::string shown(std::string_view field) {
  std::string text = printable(field);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

class CsvReader {
 public:
  CsvReader(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  /// Records that hold anything; blank lines are passed over.
  std::vector<Record> records() {
    std::vector<Record> records;
    while (place_ < text_.size()) {
      Record record = next();
      if (record.fields.size() > 1 || !record.fields[0].empty()) records.push_back(std::move(record));
    }
    return records;
  }

 private:
  Record next() {
    Record record{.line = line_, .fields = {}};
    do record.fields.push_back(field());
    while (take(','));
    if (!take('\n')) place_ = text_.size();
    else ++line_;
    return record;
  }

  bool is_at(char character) const { return place_ < text_.size() && text_[place_] == character; }
  bool take(char character) {
    if (!is_at(character)) return false;
    ++place_;
    return true;
  }

  /// Up to a comma or the line's end, without the blanks around it.
  std::string field() {
    while (is_at(' ') || is_at('\t')) ++place_;
    if (take('"')) return quoted_field();
    const size_t end = std::min(text_.find_first_of(",\n", place_), text_.size());
    const std::string_view plain = text_.substr(place_, end - place_);
    place_ = end;
    return trim(plain);
  }

  std::string quoted_field() {
    const int first_line = line_;
    std::string out;
    for (;; ++place_) {
      if (place_ == text_.size()) fail(ErrorCode::kBadInput, path_, ":", first_line, ": a quote is opened and never closed");
      if (text_[place_] == '\n') ++line_;
      if (text_[place_] == '"') {
        ++place_;
        if (!is_at('"')) break;
      }
      out += text_[place_];
    }
    const size_t end = std::min(text_.find_first_of(",\n", place_), text_.size());
    if (!trim(text_.substr(place_, end - place_)).empty())
      fail(ErrorCode::kBadInput, path_, ":", line_, ": '", shown(text_.substr(place_, end - place_)), "' after a closing quote");
    place_ = end;
    return trim(out);
  }

  std::string_view text_;
  const std::string& path_;
  size_t place_ = 0;
  int line_ = 1;
};

size_t column_of(const Record& header, const std::string& name, const std::string& path) {
  const auto found = std::find(header.fields.begin(), header.fields.end(), name);
  if (found == header.fields.end())
    fail(ErrorCode::kBadInput, path, ":", header.line, ": no column '", name,
         "'; the first line names the columns, such as batch_size,steps");
  return static_cast<size_t>(found - header.fields.begin());
}

double positive_number(const std::string& text, const char* what, const std::string& where) {
  const std::optional<double> value = parse_number(text);
  if (!value || !std::isfinite(*value) || *value <= 0)
    fail(ErrorCode::kBadInput, where, what, " '", shown(text), "' is not a positive number");
  return *value;
}

}  // namespace

std::vector<StepsPoint> read_steps_table(const std::string& path) {
  const std::string bytes = read_small_file(path, kMaxBytes);
  std::string_view text = bytes;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  const std::vector<Record> records = CsvReader(text, path).records();
  if (records.empty()) fail(ErrorCode::kBadInput, path, " is empty; it needs a line batch_size,steps and one line for each batch size");
  const Record& header = records.front();
  const size_t batch_column = column_of(header, "batch_size", path), steps_column = column_of(header, "steps", path);
  std::vector<StepsPoint> points;
  for (size_t i = 1; i < records.size(); ++i) {
    const auto& [line, fields] = records[i];
    const std::string where = concat(path, ":", line, ": ");
    if (fields.size() != header.fields.size())
      fail(ErrorCode::kBadInput, where, fields.size(), " columns, but the first line names ", header.fields.size());
    const double batch_size = positive_number(fields[batch_column], "batch_size", where);
    // R writes NA where there is no value.
    if (const std::string& steps = fields[steps_column]; !steps.empty() && steps != "NA")
      points.push_back({.batch_size = batch_size, .steps = positive_number(steps, "steps", where)});
  }
  std::sort(points.begin(), points.end(), [](const StepsPoint& a, const StepsPoint& b) { return a.batch_size < b.batch_size; });
  return points;
}

}  // namespace cohort::study
