#include "cohort/base/text/strict_json.h"

#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"

namespace cohort {
namespace {

constexpr size_t kMaxOrderedKeys = 10'000;

/// Builds the value from SAX events: nlohmann's parser with a callback revisits all members of an array at the end of each object in it,
/// which took seconds for 65,536 objects.
template <typename Value>
class Builder {
 public:
  Builder(const StrictJsonLimits& limits, size_t max_keys) : limits_(limits), max_keys_(max_keys) {}

  Value take() { return std::move(root_); }

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(typename Value::number_integer_t value) { return put(value); }
  bool number_unsigned(typename Value::number_unsigned_t value) { return put(value); }
  bool number_float(typename Value::number_float_t value, const std::string& /*text*/) { return put(value); }
  bool string(std::string& value) { return put(std::move(value)); }
  bool binary(typename Value::binary_t& value) { return put(std::move(value)); }

  bool start_object(size_t /*length*/) {
    keys_.emplace_back();
    return open(Value::object());
  }
  bool start_array(size_t /*length*/) { return open(Value::array()); }
  bool end_object() {
    keys_.pop_back();
    return end_array();
  }
  bool end_array() {
    open_.pop_back();
    return true;
  }

  bool key(std::string& name) {
    if (!keys_.back().insert(name).second)
      fail(ErrorCode::kBadInput, limits_.path, ": key ", quote_text(name), " comes twice in one JSON object");
    if (keys_.back().size() > max_keys_) fail(ErrorCode::kBadInput, limits_.path, ": a JSON object with more than ", max_keys_, " keys");
    member_ = &(*open_.back())[name];
    return true;
  }

  bool parse_error(size_t position, const std::string& /*token*/, const nlohmann::json::exception& error) {
    std::string reason = error.what();
    if (dynamic_cast<const nlohmann::json::parse_error*>(&error) == nullptr)
      fail(ErrorCode::kBadInput, limits_.path, ": not valid JSON: ", reason);  // E.g. a number out of range.
    // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ...": the part after the position says what is wrong.
    if (const size_t colon = reason.find(": "); colon != std::string::npos) reason.erase(0, colon + 2);
    if (reason.size() > 160) reason = reason.substr(0, 160) + "...";
    fail(ErrorCode::kBadInput, limits_.path, ": byte ", limits_.first_byte + (position > 0 ? position - 1 : 0),
         ": not valid JSON: ", reason);
  }

 private:
  bool put(Value value) {
    place(std::move(value));
    return true;
  }

  bool open(Value value) {
    if (open_.size() >= static_cast<size_t>(limits_.max_depth))
      fail(ErrorCode::kBadInput, limits_.path, ": JSON is nested deeper than ", limits_.max_depth, " levels");
    open_.push_back(place(std::move(value)));
    return true;
  }

  /// Pointers to open values stay valid: only the innermost object or array grows.
  Value* place(Value value) {
    if (!open_.empty() && open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    Value* at = open_.empty() ? &root_ : member_;
    *at = std::move(value);
    return at;
  }

  const StrictJsonLimits& limits_;
  size_t max_keys_;
  Value root_;
  std::vector<Value*> open_;
  Value* member_ = nullptr;                  // Of the innermost object, the value of its last key.
  std::vector<std::set<std::string>> keys_;  // One set for each object that is open.
};

template <typename Value>
Value parse(std::string_view text, const StrictJsonLimits& limits, size_t max_keys) {
  Builder<Value> builder(limits, max_keys);
  Value::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace

nlohmann::json parse_strict_json(std::string_view text, const StrictJsonLimits& limits) {
  return parse<nlohmann::json>(text, limits, text.size());
}

Json parse_strict_ordered_json(std::string_view text, const StrictJsonLimits& limits) { return parse<Json>(text, limits, kMaxOrderedKeys); }

std::string quote_text(std::string_view text) {
  constexpr size_t kMaxShown = 100;
  std::string out = "\"";
  for (const char character : text.substr(0, kMaxShown)) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte >= 32 && byte < 127) {
      out += character;
    } else {
      char escaped[5];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
      out += escaped;
    }
  }
  return out + (text.size() > kMaxShown ? "...\"" : "\"");
}

}  // namespace cohort
