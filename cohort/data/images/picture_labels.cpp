#include "cohort/data/images/picture_labels.h"

#include <algorithm>
#include <filesystem>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/data/byte_buffer.h"
#include "cohort/data/table/csv_reader.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

constexpr char kPathColumn[] = "path";
constexpr size_t kMostLabels = size_t{1} << 20;

size_t position(const CsvReader& reader, const std::string& name) {
  const std::vector<std::string>& header = reader.header();
  const auto found = std::find(header.begin(), header.end(), name);
  if (found == header.end())
    fail(ErrorCode::kBadInput, reader.path(), ": there is no column '", printable(name), "'", did_you_mean(name, header),
         name == kPathColumn ? ": expected one with each picture's path below the folder, and one for each label"
                             : ": expected the same labels as in the training");
  return static_cast<size_t>(found - header.begin());
}

bool stays_below(const fs::path& path) {
  return path.is_relative() && std::none_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
}

/// Why the row is none, or "".
std::string fault_of(const TableRow& row, size_t path, const std::vector<size_t>& fields, const std::vector<std::string>& names) {
  if (!row.fault.empty()) return row.fault;
  if (row.fields[path].empty()) return concat(kPathColumn, " is empty");
  if (!stays_below(row.fields[path])) return concat(kPathColumn, " '", printable(row.fields[path]), "' leaves the folder");
  for (size_t i = 0; i < fields.size(); ++i)
    if (const std::string& field = row.fields[fields[i]]; field != "0" && field != "1")
      return concat(printable(names[i]), field.empty() ? " is empty" : " is '" + printable(field) + "'",
                    ", expected 0 or 1, as of a label");
  return "";
}

}  // namespace

void read_picture_labels(const std::string& table, const std::string& folder, bool skip_bad, SkippedData& skipped,
                         LabelledPictures& pictures) {
  CsvReader reader(table);
  const size_t path = position(reader, kPathColumn), before = pictures.files.size();
  if (pictures.names.empty())
    for (const std::string& name : reader.header())
      if (name != kPathColumn) pictures.names.push_back(name);
  if (pictures.names.empty() || pictures.names.size() > kMostLabels)
    fail(ErrorCode::kBadInput, table, " has ", pictures.names.size(), " columns beside ", kPathColumn, ": expected 1 to ", kMostLabels,
         " labels");
  std::vector<size_t> fields;
  for (const std::string& name : pictures.names) fields.push_back(position(reader, name));
  for (TableRow row; reader.next(row);) {
    if (const std::string fault = fault_of(row, path, fields, pictures.names); !fault.empty()) {
      const std::string sentence = concat(table, ":", row.line, ": ", fault);
      if (!skip_bad) fail(ErrorCode::kBadInput, sentence, name_settings("; --skip-bad leaves such rows out and counts them"));
      skipped.add(sentence);
      continue;
    }
    if (std::ssize(pictures.files) == kMaxSamples || std::ssize(pictures.has_label) > kMaxDataBytes - std::ssize(fields))
      fail(ErrorCode::kBadInput, table, ":", row.line, ": more rows than a data set may have");
    pictures.files.push_back({(fs::path(folder) / row.fields[path]).string(), 0});
    for (const size_t field : fields) pictures.has_label.push_back(row.fields[field] == "1");
  }
  if (pictures.files.size() == before) fail(ErrorCode::kBadInput, table, " has no rows that can be read: expected one for each picture");
}

}  // namespace cohort
