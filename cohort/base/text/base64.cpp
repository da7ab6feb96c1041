#include "cohort/base/text/base64.h"

#include <cstddef>
#include <cstdint>

namespace cohort {
namespace {

constexpr std::string_view kBase64Letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](size_t at) { return at < bytes.size() ? static_cast<uint32_t>(static_cast<unsigned char>(bytes[at])) : 0U; };
    const uint32_t group = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    for (size_t letter = 0; letter < 4; ++letter) out += i + letter > bytes.size() ? '=' : kBase64Letters[group >> (18 - 6 * letter) & 63];
  }
  return out;
}

std::optional<std::string> from_base64(std::string_view text) {
  std::string_view letters = text;
  while (text.size() - letters.size() < 2 && letters.ends_with('=')) letters.remove_suffix(1);
  std::string out;
  out.reserve(text.size() / 4 * 3);
  uint32_t group = 0;
  for (size_t i = 0; i < letters.size(); ++i) {
    const size_t value = kBase64Letters.find(letters[i]);
    if (value == std::string_view::npos) return std::nullopt;
    group = group << 6 | static_cast<uint32_t>(value);
    if (i % 4 == 0) continue;
    out += static_cast<char>(group >> (6 - 2 * (i % 4)) & 0xff);
  }
  // What is left over of the last letter must be zero, and the length a multiple of four.
  if (to_base64(out) != text) return std::nullopt;
  return out;
}

}  // namespace cohort
