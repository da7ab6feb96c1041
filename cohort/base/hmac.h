#pragma once
// Message authentication for what processes of one job tell each other through others' hands: SHA-256 (FIPS 180-4) and HMAC (RFC 2104).

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cohort {

using Digest = std::array<uint8_t, 32>;

Digest sha256(std::string_view message);
/// What nobody can make, or tell from random bytes, without `key`.
Digest hmac_sha256(std::string_view key, std::string_view message);

inline std::string_view bytes_of(const Digest& digest) { return {reinterpret_cast<const char*>(digest.data()), digest.size()}; }
/// Two digits a byte.
std::string hexadecimal(std::string_view bytes);
/// Takes as long for different texts as for equal ones of one length.
bool equal_secrets(std::string_view a, std::string_view b);
/// From the kernel. Error(kEnvironment) where it gives none.
std::string secret_bytes(size_t count);

}  // namespace cohort
