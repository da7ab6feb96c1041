#include "cohort/base/text/base64.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstdint>

namespace cohort {

std::string to_base64(std::string_view bytes) {
  std::string out((bytes.size() + 2) / 3 * 4 + 1, '\0');  // EVP_EncodeBlock writes a zero behind the text.
  out.resize(static_cast<size_t>(EVP_EncodeBlock(reinterpret_cast<uint8_t*>(out.data()), reinterpret_cast<const uint8_t*>(bytes.data()),
                                                 static_cast<int>(bytes.size()))));
  return out;
}

std::optional<std::string> from_base64(std::string_view text) {
  std::string out(text.size() / 4 * 3 + 3, '\0');
  const int size =
      EVP_DecodeBlock(reinterpret_cast<uint8_t*>(out.data()), reinterpret_cast<const uint8_t*>(text.data()), static_cast<int>(text.size()));
  const auto padding = std::count(text.end() - std::min<std::ptrdiff_t>(2, std::ssize(text)), text.end(), '=');
  if (size < padding) return std::nullopt;
  out.resize(static_cast<size_t>(size - padding));  // EVP_DecodeBlock counts a byte for each '='.
  if (to_base64(out) != text) return std::nullopt;  // It also takes blanks around the text, and bits that belong to no byte.
  return out;
}

}  // namespace cohort
