#include "cohort/data/images/picture_labels.h"

#include <algorithm>
#include <filesystem>
#include <unordered_map>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/data/source/byte_buffer.h"
#include "cohort/base/files/csv.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

constexpr char kPathColumn[] = "path";
constexpr size_t kMostLabels = kMaxCsvColumns - 1;             // Beside the path.
constexpr size_t kMostPathBytes = 4095, kMostNameBytes = 255;  // What Linux opens.
constexpr size_t kMostShown = 60;

/// The beginning of `text`, on one line.
std::string shown(const std::string& text) {
  std::string out = printable(text.substr(0, kMostShown));
  std::replace(out.begin(), out.end(), '\n', '?');
  return text.size() > kMostShown ? out + "..." : out;
}

using Positions = std::unordered_map<std::string, size_t>;  // Of the columns of a table, by name.

Positions positions_in(const CsvReader& reader) {
  Positions positions;
  for (const std::string& name : reader.header()) positions.emplace(name, positions.size());
  return positions;
}

size_t position(const CsvReader& reader, const Positions& positions, const std::string& name) {
  const auto found = positions.find(name);
  if (found == positions.end())
    fail(ErrorCode::kBadInput, reader.path(), ": there is no column '", shown(name), "'", did_you_mean(name, reader.header()),
         name == kPathColumn ? ": expected one with each picture's path below the folder, and one for each label"
                             : ": expected the same labels as in the training");
  return found->second;
}

bool stays_below(const fs::path& path) {
  return path.is_relative() && std::none_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
}

/// Why it names no file below a folder, or "".
std::string fault_of_path(const std::string& path) {
  if (path.empty()) return concat(kPathColumn, " is empty");
  const std::string what = concat(kPathColumn, " '", shown(path), "'");
  // The system would read a path up to its first zero byte.
  if (std::any_of(path.begin(), path.end(), [](unsigned char byte) { return byte < 0x20 || byte == 0x7f; }))
    return what + " has a control character";
  const fs::path parts(path);
  if (path.size() > kMostPathBytes ||
      std::any_of(parts.begin(), parts.end(), [](const fs::path& part) { return part.native().size() > kMostNameBytes; }))
    return what + " is longer than that of a file can be";
  return stays_below(parts) ? "" : what + " leaves the folder";
}

/// Why the row is none, or "".
std::string fault_of(const TableRow& row, size_t path, const std::vector<size_t>& fields, const std::vector<std::string>& names) {
  if (!row.fault.empty()) return row.fault;
  if (const std::string fault = fault_of_path(row.fields[path]); !fault.empty()) return fault;
  for (size_t i = 0; i < fields.size(); ++i)
    if (const std::string& field = row.fields[fields[i]]; field != "0" && field != "1")
      return concat(shown(names[i]), field.empty() ? " is empty" : " is '" + shown(field) + "'", ", expected 0 or 1, as of a label");
  return "";
}

}  // namespace

void read_picture_labels(const std::string& table, const std::string& folder, bool skip_bad, SkippedData& skipped,
                         LabelledPictures& pictures) {
  CsvReader reader(table);
  const Positions positions = positions_in(reader);
  const size_t path = position(reader, positions, kPathColumn), before = pictures.files.size();
  if (pictures.names.empty())
    for (const std::string& name : reader.header())
      if (name != kPathColumn) pictures.names.push_back(name);
  if (pictures.names.empty() || pictures.names.size() > kMostLabels)
    fail(ErrorCode::kBadInput, table, " has ", pictures.names.size(), " columns beside ", kPathColumn, ": expected 1 to ", kMostLabels,
         " labels");
  std::vector<size_t> fields;
  for (const std::string& name : pictures.names) fields.push_back(position(reader, positions, name));
  std::unordered_map<std::string, int64_t> row_of;  // Of each picture: where the split is by the seed, two rows may come to both sides.
  for (TableRow row; reader.next(row);) {
    std::string fault = fault_of(row, path, fields, pictures.names);
    if (fault.empty()) {
      const auto [known, is_new] = row_of.emplace(fs::path(row.fields[path]).lexically_normal().string(), row.line);
      if (!is_new) fault = concat(shown(known->first), " is in rows ", known->second, " and ", row.line);
    }
    if (!fault.empty()) {
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
