#include "cohort/data/images/picture_source.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/files/csv.h"
#include "cohort/base/text/text.h"
#include "cohort/data/images/image_source.h"
#include "cohort/data/source/byte_buffer.h"
#include "cohort/data/source/split.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with("."); }

/// Recurses into subfolders; links to folders are refused, as they could be cyclic.
void add_files(const std::string& folder, int64_t label, std::vector<PictureFile>& files) {
  const auto before = std::ssize(files);
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (is_hidden(entry->path())) {
      if (entry->is_directory()) entry.disable_recursion_pending();
      continue;
    }
    std::error_code ignored;
    if (entry->is_directory(ignored)) {
      if (entry->is_symlink(ignored))
        fail(ErrorCode::kBadInput, entry->path().string(), " is a link to a folder: expected pictures; copy them, or link each one");
      continue;
    }
    if (std::ssize(files) == kMaxSamples) fail(ErrorCode::kBadInput, folder, ": more pictures than a data set may have, ", kMaxSamples);
    files.push_back({entry->path().string(), label});
  }
  if (error) fail(ErrorCode::kBadInput, "cannot read folder ", folder, ": ", error.message());
  if (std::ssize(files) == before) fail(ErrorCode::kBadInput, folder, " has no pictures: expected at least one in each class folder");
  std::sort(files.begin() + before, files.end(), [](const PictureFile& a, const PictureFile& b) { return a.path < b.path; });
}

}  // namespace

std::vector<std::string> names_in_folder(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) fail(ErrorCode::kBadInput, "no folder ", folder);
  if (!fs::is_directory(folder, error)) fail(ErrorCode::kBadInput, folder, " is not a folder: expected one with a folder for each class");
  std::vector<std::string> names;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    if (!is_hidden(entry->path())) names.push_back(entry->path().filename().string());
  if (error) fail(ErrorCode::kBadInput, "cannot read folder ", folder, ": ", error.message());
  std::sort(names.begin(), names.end());
  return names;
}

PictureList list_pictures(const std::string& folder) {
  PictureList list;
  for (const std::string& name : names_in_folder(folder)) {
    const std::string path = (fs::path(folder) / name).string();
    std::error_code ignored;
    if (!fs::is_directory(path, ignored))
      fail(ErrorCode::kBadInput, path, " stands beside the class folders: expected one folder for each class, with its pictures");
    add_files(path, std::ssize(list.class_names), list.files);
    list.class_names.push_back(printable(name));
  }
  if (list.class_names.empty()) fail(ErrorCode::kBadInput, folder, " has no class folders: expected one for each class, with its pictures");
  return list;
}

namespace {

constexpr char kPathColumn[] = "path";
constexpr size_t kMostLabels = kMaxCsvColumns - 1;             // One column is the path.
constexpr size_t kMostPathBytes = 4095, kMostNameBytes = 255;  // Limits of Linux.
constexpr size_t kMostShown = 60;

/// The beginning of `text`, on one line.
std::string shown(const std::string& text) {
  std::string out = printable(text.substr(0, kMostShown));
  std::replace(out.begin(), out.end(), '\n', '?');
  return text.size() > kMostShown ? out + "..." : out;
}

using Positions = std::unordered_map<std::string, size_t>;  // Columns of a table by name.

size_t position(const CsvReader& reader, const Positions& positions, const std::string& name) {
  const auto found = positions.find(name);
  if (found == positions.end())
    fail_without_column(reader.path(), name, reader.header(),
                        name == kPathColumn ? ": expected one with each picture's path below the folder, and one for each label"
                                            : ": expected the same labels as in the training");
  return found->second;
}

bool stays_below(const fs::path& path) {
  return path.is_relative() && std::none_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
}

/// Why `path` is not a valid path below a folder, or "".
std::string fault_of_path(const std::string& path) {
  if (path.empty()) return concat(kPathColumn, " is empty");
  const std::string what = concat(kPathColumn, " '", shown(path), "'");
  // The system would truncate a path at a zero byte.
  if (std::any_of(path.begin(), path.end(), [](unsigned char byte) { return byte < 0x20 || byte == 0x7f; }))
    return what + " has a control character";
  const fs::path parts(path);
  if (path.size() > kMostPathBytes ||
      std::any_of(parts.begin(), parts.end(), [](const fs::path& part) { return part.native().size() > kMostNameBytes; }))
    return what + " is longer than that of a file can be";
  return stays_below(parts) ? "" : what + " leaves the folder";
}

/// Why the row is invalid, or "".
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
  Positions positions;
  for (const std::string& name : reader.header()) positions.emplace(name, positions.size());
  const size_t path = position(reader, positions, kPathColumn), before = pictures.files.size();
  if (pictures.names.empty())
    for (const std::string& name : reader.header())
      if (name != kPathColumn) pictures.names.push_back(name);
  if (pictures.names.empty() || pictures.names.size() > kMostLabels)
    fail(ErrorCode::kBadInput, table, " has ", pictures.names.size(), " columns beside ", kPathColumn, ": expected 1 to ", kMostLabels,
         " labels");
  std::vector<size_t> fields;
  for (const std::string& name : pictures.names) fields.push_back(position(reader, positions, name));
  std::unordered_map<std::string, int64_t> row_of;  // By picture: duplicates could be split into training and validation.
  for (TableRow row; reader.next(row);) {
    std::string fault = fault_of(row, path, fields, pictures.names);
    if (fault.empty()) {
      const auto [known, is_new] = row_of.emplace(fs::path(row.fields[path]).lexically_normal().string(), row.line);
      if (!is_new) fault = concat(shown(known->first), " is in rows ", known->second, " and ", row.line);
    }
    if (!fault.empty()) {
      skipped.add_or_fail(concat(table, ":", row.line, ": ", fault), skip_bad, "rows");
      continue;
    }
    if (std::ssize(pictures.files) == kMaxSamples || std::ssize(pictures.has_label) > kMaxDataBytes - std::ssize(fields))
      fail(ErrorCode::kBadInput, table, ":", row.line, ": more rows than a data set may have");
    pictures.files.push_back({(fs::path(folder) / row.fields[path]).string(), 0});
    for (const size_t field : fields) pictures.has_label.push_back(row.fields[field] == "1");
  }
  if (pictures.files.size() == before) fail(ErrorCode::kBadInput, table, " has no rows that can be read: expected one for each picture");
}

Picture shaped_picture(std::span<const uint8_t> file, const std::string& what, const PictureForm& form) {
  Picture picture = with_channels(decode_picture(file, what), form.size.channels);
  if (picture.size == form.size) return picture;
  if (!form.resized)
    fail(ErrorCode::kBadInput, what, " has ", picture.size.width, " x ", picture.size.height, " pixels, expected ", form.size.width, " x ",
         form.size.height);
  Picture out{form.size, std::vector<uint8_t>(static_cast<size_t>(form.size.num_bytes()))};
  Resizer resizer(picture.size.height, picture.size.width, form.size.height, form.size.width);
  for (int64_t c = 0; c < form.size.channels; ++c)
    resizer.resize(picture.bytes.data() + c * picture.size.height * picture.size.width,
                   out.bytes.data() + c * form.size.height * form.size.width);
  return out;
}

PictureSource::PictureSource(std::shared_ptr<const PictureStore> store, DataDescription description, std::vector<int64_t> samples)
    : DescribedSource(std::move(description), std::move(samples)), store_(std::move(store)) {
  for (size_t c = 0; c < description_.mean.size(); ++c)
    tables_.push_back(normalised_bytes(description_.mean[c], description_.deviation[c]));
}

void PictureSource::read(std::span<const int64_t> indices, Batch& batch) const {
  const int64_t elements = shape_.input_elements(), plane = elements / std::ssize(tables_);
  resize_batch(batch, shape_, std::ssize(indices));
  const auto take = [&](int64_t i) {
    const int64_t file = sample_at(indices[static_cast<size_t>(i)]);
    Picture picture;
    const uint8_t* in = store_->decoded.data() + file * elements;
    if (store_->decoded.size() == 0) {
      picture = store_->decode(file);
      in = picture.bytes.data();
    }
    float* out = batch.values.data() + i * elements;
    for (const auto& table : tables_)
      for (int64_t at = 0; at < plane; ++at) *out++ = table[*in++];
    const int64_t labels = shape_.num_classes;
    if (shape_.labels) std::copy_n(store_->has_label.data() + file * labels, labels, batch.numbers.data() + i * labels);
    else batch.targets[static_cast<size_t>(i)] = store_->files[static_cast<size_t>(file)].label;
  };
  parallel_for_samples(store_->decoded.size() == 0 ? store_->num_threads : 1, std::ssize(indices), take);
}

}  // namespace cohort
