// A scanner for the few forms that our own charts use (schedule/timeline.cpp): `<name a="b" ...>`, `<name a="b" .../>`, `</name>` and text.
// All other forms are refused, so that it does not depend on the parsing of browsers.

#include "cohort/report/draw/plain_svg.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

namespace cohort::report {
namespace {

constexpr std::array<std::string_view, 5> kElements = {"svg", "g", "rect", "text", "title"};
constexpr std::array<std::string_view, 16> kAttributes = {
    "xmlns", "viewBox", "width", "height",       "font-family", "font-size", "role",         "aria-label",
    "x",     "y",       "fill",  "fill-opacity", "text-anchor", "stroke",    "stroke-width", "class"};

template <size_t N>
bool is_one_of(const std::array<std::string_view, N>& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-'; }

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool is_plain() {
    do {
      if (!tag()) return false;
      for (; at_ < text_.size() && text_[at_] != '<'; ++at_)
        if (text_[at_] == '>' || (open_.empty() && text_[at_] != '\n')) return false;
    } while (!open_.empty());
    return at_ == text_.size();
  }

 private:
  bool take(char c) {
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::string_view name() {
    const size_t begin = at_;
    while (at_ < text_.size() && is_letter(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  /// Values must not contain markup characters or escapes.
  bool attribute() {
    if (!is_one_of(kAttributes, name()) || !take('=') || !take('"')) return false;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_)
      if (std::string_view("<>&(\\").find(text_[at_]) != std::string_view::npos) return false;
    return take('"');
  }

  bool tag() {
    if (!take('<')) return false;
    const bool closes = take('/');
    const std::string_view element = name();
    if (!is_one_of(kElements, element) || (element == "svg") != (open_.size() == (closes ? 1U : 0U))) return false;
    if (closes) {
      if (open_.empty() || open_.back() != element) return false;
      open_.pop_back();
      return take('>');
    }
    while (take(' '))
      if (!attribute()) return false;
    if (take('/')) return take('>');
    open_.push_back(element);
    return take('>');
  }

  std::string_view text_;
  size_t at_ = 0;
  std::vector<std::string_view> open_;
};

}  // namespace

bool is_plain_svg(const std::string& text) { return text.starts_with("<svg ") && Scanner(text).is_plain(); }

}  // namespace cohort::report
