#include "cohort/data/table/table.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/data/source/split.h"

namespace cohort {

std::string read_cell(const DataColumn& column, const std::string& field, double& cell) {
  if (!column.is_category) {
    const auto number = parse_number(field);
    if (number) cell = *number;
    return number ? "" : concat(column.name, field.empty() ? " is empty" : " is '" + printable(field) + "'", ", expected a number");
  }
  const auto found = std::find(column.values.begin(), column.values.end(), field);
  cell = static_cast<double>(found - column.values.begin());
  if (found != column.values.end()) return "";
  return concat(column.name, " is '", printable(field), "', expected one of the ", column.values.size(), " values that the training had",
                field.size() > 2 ? did_you_mean(field, column.values) : "");
}

void write_cell(const DataColumn& column, double cell, float* out) {
  if (!column.is_category) {
    *out = static_cast<float>((cell - column.mean) / column.deviation);
  } else if (!column.one_hot) {
    *out = static_cast<float>(cell);
  } else {
    std::fill_n(out, column.values.size(), 0.0F);
    out[static_cast<size_t>(cell)] = 1;
  }
}

void TableSource::read(std::span<const int64_t> indices, Batch& batch) const {
  resize_batch(batch, shape_, static_cast<int64_t>(indices.size()));
  const std::vector<DataColumn>& columns = description_.columns;
  float* out = batch.values.data();
  for (size_t i = 0; i < indices.size(); ++i) {
    const auto row = static_cast<size_t>(sample_at(indices[i]));
    const double* cell = table_->cells.data() + row * columns.size();
    for (const DataColumn& column : columns) {
      write_cell(column, *cell++, out);
      out += column.width();
    }
    if (description_.labels) {
      const auto num_labels = static_cast<size_t>(description_.num_outputs);
      std::copy_n(table_->targets.data() + row * num_labels, num_labels, batch.numbers.data() + i * num_labels);
      continue;
    }
    const double target = table_->targets[row];
    if (description_.regression)
      batch.numbers[i] = static_cast<float>((target - description_.targets[0].mean) / description_.targets[0].deviation);
    else batch.targets[i] = static_cast<int64_t>(target);
  }
}

namespace {

/// A hint where the only column contains another separator.
std::string separator_hint(const std::vector<std::string>& header) {
  if (header.size() != 1) return "";
  for (const auto& [character, name] : {std::pair(';', "semicolon"), std::pair('\t', "tab"), std::pair(',', "comma")})
    if (header.front().find(character) != std::string::npos) return concat("; is it separator=", name, "?");
  return "";
}

bool contains(const std::vector<size_t>& list, size_t at) { return std::find(list.begin(), list.end(), at) != list.end(); }

std::string task_of(const DataSettings& settings) { return settings.one_of("task", {"regression", "classification", "labels"}, ""); }

}  // namespace

bool has_labels(const DataSettings& settings) { return task_of(settings) == "labels"; }

TableTask task_of_target(const DataSettings& settings, DataColumn& target) {
  const std::string task = task_of(settings);
  if (!target.is_category && task.empty())
    settings.refuse("the target ", printable(target.name),
                    " is a column of numbers: add task=regression, or task=classification where each number is a class");
  if (target.is_category && task == "regression")
    settings.refuse("task=regression needs a target of numbers, and ", printable(target.name), " is a category");
  if (task != "regression") target.is_category = true;
  target.one_hot = false;
  return task == "regression" ? TableTask::kRegression : TableTask::kClassification;
}

CsvColumns::CsvColumns(const DataSettings& settings, const CsvReader& reader) : path_(reader.path()), header_(reader.header()) {
  find_targets(settings);
  std::vector<size_t> dropped, categories;
  for (const std::string& name : settings.names("drop")) dropped.push_back(position(name));
  for (const std::string& name : settings.names("category")) categories.push_back(position(name));
  for (size_t at = 0; at < header_.size(); ++at) {
    const bool is_dropped = contains(dropped, at), is_category = contains(categories, at), is_target = contains(targets_, at);
    if (is_dropped && (is_target || is_category))
      settings.refuse("column '", printable(header_[at]), "' is dropped and also ", is_target ? "the target" : "a category");
    const bool is_label = is_target && has_labels(settings);
    if (is_label && is_category) settings.refuse("column '", printable(header_[at]), "' is a label, 0 or 1, and also a category");
    if (is_dropped) continue;
    fields_.push_back(at);
    kinds_.push_back(is_category || is_label ? std::optional(is_category) : std::nullopt);
  }
  if (fields_.size() <= targets_.size()) settings.refuse("there is no column beside the target to learn from");
}

void CsvColumns::find_targets(const DataSettings& settings) {
  if (!settings.has("target")) settings.refuse("which column is to be predicted? Add target=COLUMN; columns: ", join(header_, ", "));
  if (!has_labels(settings)) {
    const std::string name = settings.text("target");
    if (name.find('+') != std::string::npos && std::find(header_.begin(), header_.end(), name) == header_.end())
      fail(ErrorCode::kBadInput, path_, ": there is no column '", printable(name), "'; several columns of 0 and 1 are task=labels");
    targets_ = {position(name)};
    return;
  }
  for (const std::string& name : settings.names("target")) {
    targets_.push_back(position(name));
    if (std::count(targets_.begin(), targets_.end(), targets_.back()) > 1) settings.refuse("target= names '", printable(name), "' twice");
  }
}

bool CsvColumns::learn_kinds(const TableRow& row) {
  bool is_open = false;
  for (size_t i = 0; i < fields_.size(); ++i) {
    const std::string& field = row.fields[fields_[i]];
    if (!kinds_[i] && !field.empty()) kinds_[i] = !parse_number(field);
    is_open = is_open || !kinds_[i];
  }
  return is_open;
}

std::vector<DataColumn> CsvColumns::columns(bool one_hot) const {
  std::vector<DataColumn> out;
  for (size_t i = 0; i < fields_.size(); ++i) {
    if (!kinds_[i])
      fail(ErrorCode::kBadInput, path_, ": column '", printable(header_[fields_[i]]),
           "' is empty in every row; leave it out with drop=", printable(header_[fields_[i]]));
    out.push_back({.name = header_[fields_[i]], .is_category = *kinds_[i], .one_hot = one_hot});
  }
  return out;
}

std::vector<size_t> CsvColumns::targets() const {
  std::vector<size_t> places;
  for (const size_t target : targets_)
    places.push_back(static_cast<size_t>(std::find(fields_.begin(), fields_.end(), target) - fields_.begin()));
  return places;
}

size_t CsvColumns::position(const std::string& name) const {
  const auto found = std::find(header_.begin(), header_.end(), name);
  if (found == header_.end())
    fail_without_column(path_, name, header_, concat("; columns: ", printable(join(header_, ", ")), separator_hint(header_)));
  return static_cast<size_t>(found - header_.begin());
}

}  // namespace cohort
