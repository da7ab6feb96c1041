// A CSV file becomes samples in two passes:
//   1. Kinds of columns: a category by the settings, else by the first non-empty field, a number or not. An invalid number in one row
//      therefore does not turn a numeric column into a category.
//   2. Rows. Values of a category are numbered in order of appearance, and renumbered in ascending order (numeric, if all are numbers) at
//   the
//      end, so the order of rows does not matter.
// Then validation rows are drawn by the seed (or read from a second file), and mean and deviation are computed over the training rows. A
// row takes 8 bytes per column. With a trained model (DataOptions::kept) columns and values are those of the model.

#include "cohort/data/source/openers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/csv.h"
#include "cohort/base/text/text.h"
#include "cohort/data/source/byte_buffer.h"
#include "cohort/data/source/data_settings.h"
#include "cohort/data/source/split.h"
#include "cohort/data/table/table.h"

namespace cohort {
namespace {

constexpr size_t kMaxValues = 1 << 16, kMaxOneHotValues = 1000;
constexpr int64_t kMaxWidth = 1 << 20;

const std::vector<std::string> kSettings{"target", "task", "category", "drop", "encode", "separator", "val", "test", "seed"};

char separator_of(const DataSettings& settings) {
  const std::string name = settings.one_of("separator", {"comma", "semicolon", "tab"}, "comma");
  return name == "comma" ? ',' : name == "tab" ? '\t' : ';';
}

/// The columns to read, their positions in the file, and which of them are targets.
struct ReadColumns {
  std::vector<DataColumn> columns;
  std::vector<size_t> fields, targets;
  TableTask task = TableTask::kClassification;
};

/// Rows of one or more files with the same columns, targets included.
class Rows {
 public:
  Rows(const ReadColumns& read, bool skip_bad, SkippedData* skipped)
      : columns_(read.columns),
        targets_(read.targets),
        task_(read.task),
        skip_bad_(skip_bad),
        skipped_(skipped),
        is_target_(columns_.size()),
        numbers_of_(columns_.size()) {
    for (const size_t target : targets_) is_target_[target] = true;
    for (size_t i = 0; i < columns_.size(); ++i)
      for (const std::string& value : columns_[i].values) numbers_of_[i].emplace(value, numbers_of_[i].size());
  }

  /// Adds the rows of `reader`, whose field `fields[i]` is column i. `learns`: adds new values of categories.
  void read(CsvReader& reader, const std::vector<size_t>& fields, bool learns) {
    TableRow row;
    std::vector<double> cells(columns_.size());
    while (reader.next(row)) {
      std::string fault = row.fault;
      for (size_t i = 0; i < columns_.size() && fault.empty(); ++i) fault = cell_of(i, row.fields[fields[i]], learns, cells[i]);
      if (!fault.empty()) {
        skipped_->add_or_fail(concat(reader.path(), ":", row.line, ": ", fault), skip_bad_, "rows");
        continue;
      }
      if (num_rows_ == kMaxSamples || std::ssize(cells_) > kMaxDataBytes / 8 - std::ssize(cells))
        fail(ErrorCode::kBadInput, reader.path(), ":", row.line, ": more rows than a data set may have, ", kMaxDataBytes,
             " bytes in memory");
      cells_.insert(cells_.end(), cells.begin(), cells.end());
      ++num_rows_;
    }
  }

  /// Sorts the values of categories and renumbers the cells.
  void sort_values() {
    std::vector<std::vector<double>> renumbered(columns_.size());
    for (size_t i = 0; i < columns_.size(); ++i)
      if (columns_[i].is_category) renumbered[i] = sort_values_of(i);
    for (size_t at = 0; at < cells_.size(); ++at) {
      const std::vector<double>& numbers = renumbered[at % columns_.size()];
      if (!numbers.empty()) cells_[at] = numbers[static_cast<size_t>(cells_[at])];
    }
  }

  int64_t num_rows() const { return num_rows_; }
  const std::vector<DataColumn>& columns() const { return columns_; }

  /// Whether a target differs between rows.
  bool has_something_to_learn() const {
    return std::any_of(targets_.begin(), targets_.end(), [&](size_t target) {
      for (size_t at = target; at < cells_.size(); at += columns_.size())
        if (cells_[at] != cells_[target]) return true;
      return false;
    });
  }

  /// Moves the rows out.
  Table table() {
    const size_t width = columns_.size();
    Table out;
    out.targets.reserve(static_cast<size_t>(num_rows_) * targets_.size());
    size_t kept = 0;
    for (size_t row = 0; row < cells_.size(); row += width) {
      for (const size_t target : targets_) out.targets.push_back(cells_[row + target]);
      for (size_t i = 0; i < width; ++i)
        if (!is_target_[i]) cells_[kept++] = cells_[row + i];
    }
    cells_.resize(kept);
    out.cells = std::move(cells_);
    for (size_t i = 0; i < width; ++i)
      if (!is_target_[i]) out.columns.push_back(columns_[i]);
    return out;
  }

 private:
  /// Reads a field into `cell`; returns an error text, or "".
  std::string cell_of(size_t i, const std::string& field, bool learns, double& cell) {
    DataColumn& column = columns_[i];
    if (is_target_[i] && task_ == TableTask::kLabels) return read_label(column, field, cell);
    if (!column.is_category) return read_cell(column, field, cell);
    if (is_target_[i] && field.empty()) return concat(printable(column.name), " is empty, and it is the target");
    const auto [found, is_new] = numbers_of_[i].try_emplace(field, column.values.size());
    cell = static_cast<double>(found->second);
    if (!is_new) return "";
    const size_t most = column.one_hot ? kMaxOneHotValues : kMaxValues;
    if (learns && column.values.size() < most) {
      column.values.push_back(field);
      return "";
    }
    numbers_of_[i].erase(found);
    if (!learns) return read_cell(column, field, cell);
    fail(ErrorCode::kBadInput, "column '", printable(column.name), "' is a category of more than ", most,
         " values; leave it out with drop=", printable(column.name), column.one_hot ? ", or number its values with encode=index" : "");
  }

  static std::string read_label(const DataColumn& column, const std::string& field, double& cell) {
    if (read_cell(column, field, cell).empty() && (cell == 0 || cell == 1)) return "";
    return concat(printable(column.name), field.empty() ? " is empty" : " is '" + printable(field) + "'",
                  ", expected 0 or 1, as of a label");
  }

  std::vector<double> sort_values_of(size_t i) {
    std::vector<std::string>& values = columns_[i].values;
    std::vector<size_t> order(values.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::vector<double> as_number;
    for (const std::string& value : values)
      if (const auto number = parse_number(value)) as_number.push_back(*number);
    const bool all_numbers = as_number.size() == values.size();
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      if (all_numbers && as_number[a] != as_number[b]) return as_number[a] < as_number[b];
      return values[a] < values[b];
    });
    std::vector<double> number_of(values.size());
    std::vector<std::string> sorted;
    for (size_t at = 0; at < order.size(); ++at) {
      number_of[order[at]] = static_cast<double>(at);
      numbers_of_[i][values[order[at]]] = at;
      sorted.push_back(values[order[at]]);
    }
    values = std::move(sorted);
    return number_of;
  }

  std::vector<DataColumn> columns_;
  std::vector<size_t> targets_;
  TableTask task_;
  bool skip_bad_;
  SkippedData* skipped_;
  std::vector<bool> is_target_;
  std::vector<std::map<std::string, size_t>> numbers_of_;  // Of each category: value to index.
  std::vector<double> cells_;
  int64_t num_rows_ = 0;
};

[[noreturn]] void fail_without_rows(const std::string& path, bool has_bad_ones) {
  fail(ErrorCode::kBadInput, path, " has no rows", has_bad_ones ? " that can be read" : "", ": expected at least one after the header");
}

/// Where the columns are in another file than the one that `known_from` names.
std::vector<size_t> fields_in(const CsvReader& reader, const std::vector<DataColumn>& columns, const char* known_from) {
  std::vector<size_t> fields;
  for (const DataColumn& column : columns) {
    const auto found = std::find(reader.header().begin(), reader.header().end(), column.name);
    if (found == reader.header().end()) fail_without_column(reader.path(), column.name, reader.header(), concat(", which ", known_from));
    fields.push_back(static_cast<size_t>(found - reader.header().begin()));
  }
  return fields;
}

ReadColumns learnt_columns(const DataSettings& settings, char separator, bool skip_bad) {
  CsvReader reader(settings.path(), separator);
  CsvColumns columns(settings, reader);
  TableRow row;
  std::string first_fault;
  bool has_rows = false;
  for (bool is_open = true; is_open && reader.next(row);) {
    if (!row.fault.empty() && first_fault.empty()) first_fault = concat(reader.path(), ":", row.line, ": ", row.fault);
    if (!row.fault.empty()) continue;
    has_rows = true;
    is_open = columns.learn_kinds(row);
  }
  if (!has_rows && !first_fault.empty() && !skip_bad)
    fail(ErrorCode::kBadInput, first_fault, name_settings("; --skip-bad leaves such rows out and counts them"));
  if (!has_rows) fail_without_rows(settings.path(), !first_fault.empty());
  ReadColumns read{columns.columns(settings.one_of("encode", {"onehot", "index"}, "onehot") == "onehot"), columns.fields(),
                   columns.targets(), TableTask::kLabels};
  if (!has_labels(settings)) read.task = task_of_target(settings, read.columns[read.targets[0]]);
  return read;
}

/// The columns of a trained model, with its known values.
ReadColumns known_columns(const DataSettings& settings, char separator, const DataDescription& kept) {
  const CsvReader reader(settings.path(), separator);
  const TableTask task = kept.regression ? TableTask::kRegression : kept.labels ? TableTask::kLabels : TableTask::kClassification;
  if (has_labels(settings) != kept.labels && settings.has("task"))
    settings.refuse("task=", settings.text("task"), ", and the model was trained on ", kept.labels ? "labels" : "no labels",
                    "; leave it out");
  if (!settings.has("target") && task == TableTask::kClassification)
    settings.refuse("which column has the classes? Add target=COLUMN; columns: ", printable(join(reader.header(), ", ")));
  std::vector<std::string> names{settings.text("target")};
  if (kept.labels) names = settings.has("target") ? settings.names("target") : kept.class_names;
  else if (!settings.has("target")) names = {kept.targets.at(0).name};
  if (kept.labels && std::ssize(names) != kept.num_outputs)
    settings.refuse("target=", settings.text("target"), " names ", names.size(), names.size() == 1 ? " label" : " labels",
                    ", and the model was trained on ", kept.num_outputs);
  if (kept.labels) {
    for (const std::string& name : names)
      if (std::find(kept.class_names.begin(), kept.class_names.end(), name) == kept.class_names.end())
        settings.refuse("the model knows no label '", printable(name), "'; it was trained on ", printable(join(kept.class_names, ", ")));
    names = kept.class_names;  // In the model's order.
  }
  ReadColumns read{kept.columns, {}, {}, task};
  for (const std::string& name : names) {
    read.targets.push_back(read.columns.size());
    read.columns.push_back({.name = name, .is_category = task == TableTask::kClassification, .one_hot = false});
    if (task == TableTask::kClassification) read.columns.back().values = kept.class_names;
  }
  read.fields = fields_in(reader, read.columns, "the model was trained on");
  return read;
}

template <typename Number>
MeanAndDeviation statistics_of(const std::string& column, const std::vector<int64_t>& rows, const Number& number) {
  const MeanAndDeviation found = mean_and_deviation(static_cast<double>(rows.size()), [&](const auto& visit) {
    for (const int64_t row : rows) visit(number(row));
  });
  if (!std::isfinite(found.mean) || !std::isfinite(found.deviation))
    fail(ErrorCode::kBadInput, "column '", printable(column),
         "' has numbers too large to be summed; divide them, or leave it out with drop=", printable(column));
  return found;
}

/// The description, normalised by the rows `train`.
DataDescription describe(const Table& table, const std::vector<DataColumn>& targets, TableTask task, const std::vector<int64_t>& train) {
  DataDescription made;
  made.input = DataDescription::Input::kRow;
  made.regression = task == TableTask::kRegression;
  made.labels = task == TableTask::kLabels;
  made.columns = table.columns;
  const size_t width = table.columns.size();
  int64_t numbers = 0;
  for (size_t i = 0; i < width; ++i) {
    DataColumn& column = made.columns[i];
    numbers += column.width();
    if (column.is_category) continue;
    const MeanAndDeviation found =
        statistics_of(column.name, train, [&](int64_t row) { return table.cells[static_cast<size_t>(row) * width + i]; });
    column.mean = found.mean, column.deviation = found.deviation;
  }
  if (numbers > kMaxWidth)
    fail(ErrorCode::kBadInput, "the columns make ", numbers, " numbers a row, more than ", kMaxWidth, "; use encode=index, or drop=");
  made.shape = {numbers};
  const DataColumn& target = targets.front();
  if (made.labels)
    for (const DataColumn& label : targets) made.class_names.push_back(label.name);
  else made.class_names = target.values;
  made.num_outputs = std::ssize(made.class_names);
  if (!made.regression) return made;
  const MeanAndDeviation found = statistics_of(target.name, train, [&](int64_t row) { return table.targets[static_cast<size_t>(row)]; });
  made.num_outputs = 1;
  made.targets = {{target.name, found.mean, found.deviation}};
  return made;
}

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> out(static_cast<size_t>(end - begin));
  std::iota(out.begin(), out.end(), begin);
  return out;
}

}  // namespace

DataSet open_csv(const std::string& argument, const DataOptions& options) {
  const DataSettings settings("csv", argument, kSettings);
  const char separator = separator_of(settings);
  const DataDescription* const kept = options.kept && options.kept->input == DataDescription::Input::kRow ? options.kept.get() : nullptr;
  const ReadColumns columns = kept ? known_columns(settings, separator, *kept) : learnt_columns(settings, separator, options.skip_bad);
  DataSet data;
  Rows rows(columns, options.skip_bad, &data.skipped);
  CsvReader again(settings.path(), separator);
  rows.read(again, columns.fields, /*learns=*/!kept);
  if (!kept) rows.sort_values();
  const int64_t of_first = rows.num_rows();
  if (of_first == 0) fail_without_rows(settings.path(), data.skipped.count > 0);
  if (!kept && columns.task != TableTask::kRegression && !rows.has_something_to_learn())
    fail(ErrorCode::kBadInput, settings.path(), ": every row has the same ", printable(settings.text("target")),
         ", so there is nothing to learn");
  std::vector<int64_t> end_of{of_first};
  for (const char* key : {"val", "test"}) {
    if (settings.has(key)) {
      CsvReader more(settings.text(key), separator);
      rows.read(more, fields_in(more, rows.columns(), "the first file has"), false);
      if (rows.num_rows() == end_of.back()) fail_without_rows(settings.text(key), /*has_bad_ones=*/false);
    }
    end_of.push_back(rows.num_rows());
  }
  const uint64_t seed = seed_of_split(settings, options, settings.has("val"), "val=" + settings.text("val"));
  SplitSamples split{range(0, of_first), range(of_first, end_of[1])};
  if (!settings.has("val")) split = split_by_seed(settings.path(), of_first, options, seed);
  std::vector<DataColumn> targets;
  for (const size_t target : columns.targets) targets.push_back(rows.columns()[target]);
  const auto table = std::make_shared<const Table>(rows.table());
  const DataDescription description = kept ? *kept : describe(*table, targets, columns.task, split.train);
  data.train = std::make_shared<TableSource>(table, description, std::move(split.train));
  data.validation = std::make_shared<TableSource>(table, description, std::move(split.validation));
  if (settings.has("test")) data.test = std::make_shared<TableSource>(table, description, range(end_of[1], end_of[2]));
  return data;
}

}  // namespace cohort
