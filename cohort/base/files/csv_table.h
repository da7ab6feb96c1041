#pragma once
// Tables with a header, comma-separated, without quotes: columns are found by name, in any order.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/base/export.h"

namespace cohort {

/// One line of a table. Every refusal is Error(kBadInput) with file, line, column and what was expected.
class COHORT_PROGRAM_API CsvRow {
 public:
  CsvRow(std::shared_ptr<const std::vector<std::string>> header, std::vector<std::string> fields, std::string where);

  bool has(const std::string& column) const;
  /// Without blanks around it.
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
  std::shared_ptr<const std::vector<std::string>> header_;
  std::vector<std::string> fields_;
  std::string where_;
};

/// Lines after the header; a byte-order mark and empty lines are passed over. At most 64 MiB. Error(kBadInput) where a line has another
/// number of fields than the header.
COHORT_PROGRAM_API std::vector<CsvRow> read_csv(const std::string& path);

}  // namespace cohort
