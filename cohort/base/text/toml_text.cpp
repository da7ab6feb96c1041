#include "cohort/base/text/toml_text.h"

#include <cstdint>
#include <cstdio>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\', out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string text_of_toml(std::string_view value) {
  if (value.size() < 2 || value.front() != '"') return std::string(value);
  std::string out;
  for (size_t i = 1; i + 1 < value.size(); ++i) {
    if (value[i] != '\\') {
      out += value[i];
    } else if (value[++i] == 'u') {
      out += static_cast<char>(std::stoi(std::string(value.substr(i + 1, 4)), nullptr, 16));
      i += 4;
    } else {
      out += value[i];
    }
  }
  return out;
}

std::string toml_number(double value) {
  char out[40];
  for (const int digits : {6, 9, 12, 15, 17}) {
    std::snprintf(out, sizeof out, "%.*g", digits, value);
    if (parse_number(out) == value) break;
  }
  std::string text = out;
  if (text.find_first_of(".en") == std::string::npos) text += ".0";  // "n": inf and nan.
  return text;
}

void check_toml_dots(std::string_view text, const std::string& path, int most_dots) {
  int num_dots = 0;
  int64_t line = 1;
  for (const char at : text) {
    if (at == '\n') num_dots = 0, ++line;
    if (at == '.' && ++num_dots > most_dots)
      fail(ErrorCode::kBadInput, path, ":", line, ": more than ", most_dots, " dots in one line; divide it");
  }
}

}  // namespace cohort
