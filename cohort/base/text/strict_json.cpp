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

template <typename Value>
Value parse(std::string_view text, const StrictJsonLimits& limits, size_t max_keys) {
  std::vector<std::set<std::string>> keys;  // One set for each object that is open.
  const auto check = [&](int depth, nlohmann::detail::parse_event_t event, Value& parsed) {
    using Event = nlohmann::detail::parse_event_t;
    if ((event == Event::object_start || event == Event::array_start) && depth >= limits.max_depth) {
      fail(ErrorCode::kBadInput, limits.path, ": JSON is nested deeper than ", limits.max_depth, " levels");
    }
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key) {
      const std::string& name = parsed.template get_ref<const std::string&>();
      if (!keys.back().insert(name).second)
        fail(ErrorCode::kBadInput, limits.path, ": key ", quote_text(name), " comes twice in one JSON object");
      if (keys.back().size() > max_keys) fail(ErrorCode::kBadInput, limits.path, ": a JSON object with more than ", max_keys, " keys");
    }
    return true;
  };
  try {
    return Value::parse(text.begin(), text.end(), check);
  } catch (const nlohmann::json::parse_error& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ...": the part after the position says what is wrong.
    std::string reason = error.what();
    if (const size_t colon = reason.find(": "); colon != std::string::npos) reason.erase(0, colon + 2);
    if (reason.size() > 160) reason = reason.substr(0, 160) + "...";
    fail(ErrorCode::kBadInput, limits.path, ": byte ", limits.first_byte + (error.byte > 0 ? error.byte - 1 : 0),
         ": not valid JSON: ", reason);
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::kBadInput, limits.path, ": not valid JSON: ", error.what());  // E.g. a number out of range.
  }
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
