#include "cohort/base/files/csv_table.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr size_t kMostBytes = size_t{1} << 26;
constexpr int64_t kMostCount = 2'000'000'000;

}  // namespace

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

int64_t CsvRow::count(const std::string& column) const {
  const auto number = parse_number(text(column));
  if (!number || *number < 1 || *number > static_cast<double>(kMostCount) || *number != static_cast<double>(static_cast<int64_t>(*number)))
    refuse(column, concat("a whole number from 1 to ", kMostCount));
  return static_cast<int64_t>(*number);
}

double CsvRow::positive(const std::string& column) const {
  const auto number = parse_number(text(column));
  if (!number || !std::isfinite(*number) || *number <= 0) refuse(column, "a positive number");
  return *number;
}

double CsvRow::at_least_0(const std::string& column) const {
  const auto number = parse_number(text(column));
  if (!number || !std::isfinite(*number) || *number < 0) refuse(column, "a number of at least 0");
  return *number;
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
  const std::string content = read_small_file(path, kMostBytes);
  const std::vector<std::string> lines = split(content.starts_with("\xEF\xBB\xBF") ? content.substr(3) : content, '\n');
  std::shared_ptr<std::vector<std::string>> header;
  std::vector<CsvRow> rows;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (trim(lines[i]).empty()) continue;
    std::vector<std::string> fields = split(lines[i], ',');
    if (header) {
      rows.emplace_back(header, std::move(fields), concat(path, ":", i + 1));
      continue;
    }
    header = std::make_shared<std::vector<std::string>>();
    for (const std::string& name : fields) header->push_back(trim(name));
  }
  return rows;
}

}  // namespace cohort
