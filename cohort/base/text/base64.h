#pragma once
// Bytes as text: RFC 4648, with padding.

#include <optional>
#include <string>
#include <string_view>

namespace cohort {

std::string to_base64(std::string_view bytes);
/// Nullopt for a text that to_base64() does not make.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace cohort
