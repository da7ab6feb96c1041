#include "cohort/data/source/description_json.h"

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json_fields.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/base/value_hash.h"
#include "cohort/data/source/description.h"

namespace cohort {
namespace {

using Input = DataDescription::Input;

constexpr size_t kMostFileBytes = size_t{1} << 26, kMostNames = 1 << 20, kMostDimensions = 16;
constexpr const char* kChecksum = "xxh3";
constexpr int64_t kMostElements = int64_t{1} << 34;
constexpr std::pair<Input, const char*> kInputs[] = {
    {Input::kPicture, "picture"}, {Input::kRow, "row"}, {Input::kText, "text"}, {Input::kTensor, "tensor"}};

double deviation_value(const JsonFields& fields, double value, const char* key) {
  if (!(value > 0)) fields.refuse("expected a number above 0 in \"", key, "\", found ", value);
  return value;
}

Json to_json(const DataColumn& column) {
  if (!column.is_category) return {{"name", column.name}, {"kind", "number"}, {"mean", column.mean}, {"deviation", column.deviation}};
  return {{"name", column.name}, {"kind", "category"}, {"one_hot", column.one_hot}, {"values", column.values}};
}

DataColumn column_of(const Json& json, const std::string& where) {
  const JsonFields fields(json, where);
  DataColumn column;
  column.name = fields.text("name");
  const std::string& kind = fields.text("kind");
  column.is_category = kind == "category";
  if (column.is_category) {
    column.one_hot = fields.flag("one_hot");
    column.values = fields.texts("values", kMostNames);
    if (column.values.empty()) fields.refuse("a category has no values");
  } else if (kind == "number") {
    column.mean = fields.number("mean");
    column.deviation = deviation_value(fields, fields.number("deviation"), "deviation");
  } else {
    fields.refuse("expected number or category in \"kind\", found ", quote_text(kind));
  }
  return column;
}

Input input_of(const JsonFields& fields) {
  const std::string& name = fields.text("input");
  for (const auto& [input, known] : kInputs)
    if (name == known) return input;
  fields.refuse("expected picture, row, text or tensor in \"input\", found ", quote_text(name));
}

/// Checks that all parts agree about sizes.
void check_sizes(const DataDescription& made, const JsonFields& fields) {
  int64_t elements = 1;
  for (const int64_t size : made.shape) {
    if (size < 1 || size > kMostElements / elements) fields.refuse("\"shape\" does not have a size from 1 to ", kMostElements);
    elements *= size;
  }
  if (made.shape.empty()) fields.refuse("\"shape\" is empty");
  if (made.num_outputs < 1) fields.refuse("\"outputs\" is 0");
  if (!made.class_names.empty() && std::ssize(made.class_names) != made.num_outputs)
    fields.refuse(made.class_names.size(), " \"classes\" and ", made.num_outputs, " \"outputs\"");
  if (made.labels && made.input == Input::kText) fields.refuse("text has no labels");
  if (made.regression && std::ssize(made.targets) != made.num_outputs)
    fields.refuse(made.targets.size(), " \"targets\" and ", made.num_outputs, " \"outputs\"");
  if (made.mean.size() != made.deviation.size()) fields.refuse("\"mean\" and \"deviation\" differ in length");
  if (made.input == Input::kPicture && made.shape.size() != 3) fields.refuse("a picture's \"shape\" has ", made.shape.size(), " sizes");
  if (made.mean.size() > 1 && std::ssize(made.mean) != made.shape.front())
    fields.refuse(made.mean.size(), " numbers in \"mean\" for ", made.shape.front(), " channels");
  int64_t width = 0;
  for (const DataColumn& column : made.columns) width += column.width();
  if (made.input == Input::kRow && (made.shape.size() != 1 || width != made.shape.front()))
    fields.refuse("\"columns\" make ", width, " numbers, not the ", made.shape.front(), " of \"shape\"");
}

/// Checksum of all other members, independent of white space.
std::string checksum_of(Json json) {
  json.erase(kChecksum);
  ValueHash hash;
  hash.add(json.dump());
  return hash.text();
}

}  // namespace

Json to_json(const DataDescription& description) {
  Json json;
  for (const auto& [input, name] : kInputs)
    if (input == description.input) json["input"] = name;
  json["shape"] = description.shape;
  json["task"] = description.regression ? "regression" : description.labels ? "labels" : "classification";
  json["outputs"] = description.num_outputs;
  json["classes"] = description.class_names;
  json["targets"] = Json::array();
  for (const DataTarget& target : description.targets)
    json["targets"].push_back({{"name", target.name}, {"mean", target.mean}, {"deviation", target.deviation}});
  json["mean"] = description.mean;
  json["deviation"] = description.deviation;
  json["resized"] = description.resized;
  json["columns"] = Json::array();
  for (const DataColumn& column : description.columns) json["columns"].push_back(to_json(column));
  if (description.vocabulary)
    for (const Vocabulary::Merge& merge : description.vocabulary->merges()) json["vocabulary"].push_back({merge.first, merge.second});
  return json;
}

/// Null if the text is bytes.
std::shared_ptr<const Vocabulary> vocabulary_of(const JsonFields& fields, const std::string& what) {
  if (!fields.has("vocabulary")) return nullptr;
  std::vector<Vocabulary::Merge> merges;
  for (const Json& item : fields.array("vocabulary", static_cast<size_t>(kMostTokens))) {
    const auto is_token = [&](size_t place) { return item[place].is_number_unsigned() && item[place].get<uint64_t>() < kMostTokens; };
    if (!item.is_array() || item.size() != 2 || !is_token(0) || !is_token(1)) fields.refuse("expected pairs of pieces in \"vocabulary\"");
    merges.emplace_back(item[0].get<Token>(), item[1].get<Token>());
  }
  return std::make_shared<const Vocabulary>(std::move(merges), what + ": \"vocabulary\"");
}

DataDescription description_from_json(const Json& json, const std::string& what) {
  const JsonFields fields(json, what);
  DataDescription made;
  made.input = input_of(fields);
  made.shape = fields.naturals("shape", kMostDimensions);
  const std::string& task = fields.text("task");
  made.regression = task == "regression";
  made.labels = task == "labels";
  if (!made.regression && !made.labels && task != "classification")
    fields.refuse("expected classification, regression or labels in \"task\", found ", quote_text(task));
  made.num_outputs = fields.natural("outputs");
  made.class_names = fields.texts("classes", kMostNames);
  for (const Json& item : fields.array("targets", kMostNames)) {
    const JsonFields target(item, what);
    made.targets.push_back({target.text("name"), target.number("mean"), deviation_value(target, target.number("deviation"), "deviation")});
  }
  made.mean = fields.numbers("mean", kMostNames);
  for (const double value : fields.numbers("deviation", kMostNames)) made.deviation.push_back(deviation_value(fields, value, "deviation"));
  made.resized = fields.flag("resized");
  for (const Json& item : fields.array("columns", kMostNames)) made.columns.push_back(column_of(item, what));
  made.vocabulary = vocabulary_of(fields, what);
  if (made.vocabulary && (made.input != Input::kText || made.vocabulary->size() != made.num_outputs))
    fields.refuse("a \"vocabulary\" of ", made.vocabulary->size(), " pieces and ", made.num_outputs, " \"outputs\"");
  check_sizes(made, fields);
  return made;
}

std::string description_file_text(const DataDescription& description) {
  Json json = to_json(description);
  json[kChecksum] = checksum_of(json);
  return json.dump(1) + "\n";
}

DataDescription read_description(const std::string& path) {
  try {
    const Json json = parse_strict_ordered_json(read_small_file(path, kMostFileBytes), {.path = path});
    DataDescription description = description_from_json(json, path);
    if (json.contains(kChecksum) && json[kChecksum] != checksum_of(json))
      fail(ErrorCode::kBadInput, path, ": its content has another checksum than its \"", kChecksum,
           "\": it was damaged, or changed by hand");
    return description;
  } catch (const Error& error) {
    fail(error.code(), error.what(),
         "; put a whole copy back, or remove it: then the data are read for what it says, and going on with the run writes it anew");
  }
}

namespace {

constexpr size_t kMostNamed = 8;

/// The first names, and the number of further ones.
std::string listed(std::vector<std::string> names) {
  const size_t count = names.size();
  if (count > kMostNamed) names.resize(kMostNamed);
  return concat(" (", join(names, ", "), count > kMostNamed ? concat(", and ", count - kMostNamed, " more") : "", ")");
}

}  // namespace

std::string columns_text(const DataDescription& description) {
  std::vector<std::string> numbers, categories;
  for (const DataColumn& column : description.columns)
    if (!column.is_category) numbers.push_back(printable(column.name));
    else categories.push_back(concat(printable(column.name), ": ", column.values.size(), column.values.size() == 1 ? " value" : " values"));
  if (numbers.empty() && categories.empty()) return "";
  std::string text;
  if (!numbers.empty()) text = concat(numbers.size(), numbers.size() == 1 ? " column" : " columns", " of numbers", listed(numbers));
  if (!categories.empty())
    text += concat(text.empty() ? "" : ", ", categories.size(), text.empty() ? (categories.size() == 1 ? " column" : " columns") : "",
                   " of categories", listed(categories));
  return text;
}

}  // namespace cohort
