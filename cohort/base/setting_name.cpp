#include "cohort/base/setting_name.h"

#include <algorithm>
#include <atomic>
#include <cstddef>

namespace cohort {
namespace {

constinit std::atomic<bool> are_options_here{false};

bool is_in_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_'; }

/// Length of the option that begins at `at`; 0: none.
size_t length_of_option(std::string_view text, size_t at) {
  if (!text.substr(at).starts_with("--") || (at > 0 && is_in_word(text[at - 1]))) return 0;
  if (at + 2 == text.size() || text[at + 2] < 'a' || text[at + 2] > 'z') return 0;
  const auto* const end = std::find_if_not(text.begin() + at, text.end(), is_in_word);
  return static_cast<size_t>(end - text.begin()) - at;
}

/// The number of ranks is an option of the launcher, not a member of Config.
std::string member_of(std::string_view option) {
  if (option == "--workers") return std::string(option);
  if (option == "--virtual") return "virtual_time";  // `virtual` is a keyword of C++.
  std::string member(option.substr(2));
  std::replace(member.begin(), member.end(), '-', '_');
  return member;
}

}  // namespace

std::string name_settings(std::string_view text) {
  if (are_options_here) return std::string(text);
  std::string out;
  bool in_command = false;
  for (size_t at = 0; at < text.size();) {
    const size_t length = in_command ? 0 : length_of_option(text, at);
    if (length > 0) {
      out += member_of(text.substr(at, length));
      at += length;
      continue;
    }
    if (text[at] == '`') in_command = !in_command;
    out += text[at++];
  }
  return out;
}

void settings_are_options(bool are_options) { are_options_here = are_options; }

}  // namespace cohort
