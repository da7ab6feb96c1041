#pragma once
// What processes of one job need to talk through others' hands, from OpenSSL's libcrypto: HKDF with SHA-256 (RFC 5869), ChaCha20-Poly1305
// (RFC 8439) and HMAC-SHA-256 (RFC 2104). Error(kEnvironment) where the library does not do its part. Any thread.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace cohort {

inline constexpr size_t kSealBytes = 12 + 16;  ///< Nonce and tag: what a sealed text is longer than the text.

/// 32 bytes for one `use` of a secret; they tell nothing of the secret or of the key for another use.
std::string derived_key(std::string_view secret, std::string_view use);
/// `text` encrypted, so that only holders of `key` (32 bytes) read it and only they could have made it, for this `name`. Another result
/// each time; a key serves for 2^32 texts, as its nonces are drawn.
std::string seal(std::string_view key, std::string_view name, std::string_view text);
/// Nothing where `sealed` was not made by seal() with this key and this name.
std::optional<std::string> unseal(std::string_view key, std::string_view name, std::string_view sealed);
/// 32 bytes that nobody can make, or tell from random ones, without `key`.
std::string hmac_sha256(std::string_view key, std::string_view message);

/// Two digits a byte.
std::string hexadecimal(std::string_view bytes);
/// Takes as long for different texts as for equal ones of one length.
bool equal_secrets(std::string_view a, std::string_view b);
/// From the kernel. Error(kEnvironment) where it gives none.
std::string secret_bytes(size_t count);

}  // namespace cohort
