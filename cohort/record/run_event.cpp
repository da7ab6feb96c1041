// The writer and the reader of records: both go through describe() (fields.h).

#include "cohort/record/run_event.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/json_fields.h"

namespace cohort {
namespace {

class FieldWriter {
 public:
  explicit FieldWriter(Json& object) : object_(object) {}

  void count(const char* key, int64_t value) { object_[key] = value; }
  void count(const char* key, const std::optional<int64_t>& value) {
    if (value) object_[key] = *value;
  }
  void number(const char* key, double value) { object_[key] = finite_json(value); }
  void number(const char* key, const std::optional<double>& value) {
    if (value) number(key, *value);
  }
  void number_if_known(const char* key, double value) {
    if (!std::isnan(value)) number(key, value);
  }
  void numbers(const char* key, const std::vector<double>& values) { object_[key] = values; }
  void named_numbers_if_any(const char* key, const std::map<std::string, double>& values) {
    for (const auto& [name, value] : values) object_[key][name] = finite_json(value);
  }
  void text(const char* key, const std::string& value) { object_[key] = value; }
  void text_if_any(const char* key, const std::string& value) {
    if (!value.empty()) object_[key] = value;
  }
  void texts(const char* key, const std::vector<std::string>& values) { object_[key] = values; }
  void texts_if_any(const char* key, const std::vector<std::string>& values) {
    if (!values.empty()) object_[key] = values;
  }
  void counts(const char* key, const std::vector<int64_t>& values) { object_[key] = values; }
  void counts_if_any(const char* key, const std::vector<int64_t>& values) {
    if (!values.empty()) object_[key] = values;
  }
  void count_rows(const char* key, const std::vector<std::vector<int64_t>>& rows) { object_[key] = rows; }
  void json(const char* key, const std::string& value) {
    if (!value.empty()) object_[key] = Json::parse(value);
  }
  template <typename Record>
  void object(const char* key, std::optional<Record>& record) {
    if (record) object_[key] = object_of(*record);
  }
  template <typename Record>
  void list(const char* key, std::vector<Record>& records) {
    Json& array = object_[key] = Json::array();
    for (Record& record : records) array.push_back(object_of(record));
  }
  template <typename Record>
  void required_list(const char* key, std::vector<Record>& records) {
    list(key, records);
  }

 private:
  template <typename Record>
  static Json object_of(Record& record) {
    Json object = Json::object();
    FieldWriter writer(object);
    record.describe(writer);
    return object;
  }

  Json& object_;
};

class FieldReader {
 public:
  explicit FieldReader(const JsonLine& line) : line_(line) {}

  void count(const char* key, int64_t& value) { value = line_.required_count(key); }
  void count(const char* key, std::optional<int64_t>& value) { value = line_.count(key); }
  void number(const char* key, double& value) { value = line_.number(key); }
  void number(const char* key, std::optional<double>& value) {
    value.reset();
    if (line_.has(key)) value = line_.number(key);
  }
  void number_if_known(const char* key, double& value) { number(key, value); }
  void numbers(const char* key, std::vector<double>& values) { values = line_.numbers(key); }
  void named_numbers_if_any(const char* key, std::map<std::string, double>& values) { values = line_.named_numbers(key); }
  void text(const char* key, std::string& value) { value = line_.text(key); }
  void text_if_any(const char* key, std::string& value) { text(key, value); }
  void texts(const char* key, std::vector<std::string>& values) { values = line_.texts(key); }
  void texts_if_any(const char* key, std::vector<std::string>& values) { texts(key, values); }
  void counts(const char* key, std::vector<int64_t>& values) { values = line_.counts(key); }
  void counts_if_any(const char* key, std::vector<int64_t>& values) { counts(key, values); }
  void count_rows(const char* key, std::vector<std::vector<int64_t>>& rows) { rows = line_.count_rows(key); }
  void json(const char* key, std::string& value) { value = line_.json(key); }
  template <typename Record>
  void object(const char* key, std::optional<Record>& record) {
    record.reset();
    if (const Json* const object = line_.object(key)) record = record_of<Record>(*object);
  }
  template <typename Record>
  void list(const char* key, std::vector<Record>& records) {
    records.clear();
    if (const Json* const array = line_.array(key))
      for (const Json& element : *array) records.push_back(record_of<Record>(element));
  }
  template <typename Record>
  void required_list(const char* key, std::vector<Record>& records) {
    line_.required_array(key);
    list(key, records);
  }

 private:
  template <typename Record>
  Record record_of(const Json& object) const {
    const JsonLine line(object, line_.where());
    FieldReader reader(line);
    Record record;
    record.describe(reader);
    return record;
  }

  const JsonLine& line_;
};

template <typename Record>
void check_read(const Record& /*record*/, const JsonLine& /*line*/) {}

void check_read(const ConfusionRecord& confusion, const JsonLine& line) {
  if (!line.array("classes") || !line.array("counts"))
    fail(ErrorCode::kBadInput, line.where(), ": a confusion matrix needs the lists 'classes' and 'counts'");
  const size_t size = confusion.classes.size();
  if (confusion.counts.size() != size)
    fail(ErrorCode::kBadInput, line.where(), ": 'counts' has ", confusion.counts.size(), " rows for ", size, " classes");
  for (const std::vector<int64_t>& row : confusion.counts)
    if (row.size() != size)
      fail(ErrorCode::kBadInput, line.where(), ": a row of 'counts' has ", row.size(), " columns for ", size, " classes");
}

template <typename Record>
Record read_record(const JsonLine& line) {
  FieldReader reader(line);
  Record record;
  record.describe(reader);
  check_read(record, line);
  return record;
}

/// Reads the record whose event name it is.
template <typename... Records>
std::optional<RunEvent> read_one_of(const std::string& event, const JsonLine& line, const std::variant<Records...>* /*all*/) {
  std::optional<RunEvent> found;
  ((event == Records::kEvent && (found = read_record<Records>(line))) || ...);
  return found;
}

}  // namespace

Json to_json(const RunEvent& event) {
  // By value: describe() also serves the reader and takes non-const references.
  return std::visit(
      [](auto record) {
        Json object{{"event", record.kEvent}};
        FieldWriter writer(object);
        record.describe(writer);
        return object;
      },
      event);
}

std::string to_line(const RunEvent& event) { return to_json(event).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

std::optional<RunEvent> read_event(const Json& object, const std::string& where) {
  const JsonLine line(object, where);
  return read_one_of(line.required_text("event"), line, static_cast<const RunEvent*>(nullptr));
}

}  // namespace cohort
