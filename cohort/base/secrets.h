#pragma once
// Encryption and authentication between the processes of a job, by OpenSSL's libcrypto: HKDF with SHA-256 (RFC 5869), ChaCha20-Poly1305
// (RFC 8439) and HMAC-SHA-256 (RFC 2104). Error(kEnvironment) where the library fails. Thread-safe.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace cohort {

inline constexpr size_t kSealBytes = 12 + 16;  ///< Nonce and tag, added to each text.

/// A key of 32 bytes for one `use` of a secret, which reveals neither the secret nor the keys of other uses.
std::string derived_key(std::string_view secret, std::string_view use);
/// Encrypts and authenticates `text` and authenticates `name` with `key` (32 bytes). Nonces are random, so a key serves for 2^32 texts.
std::string seal(std::string_view key, std::string_view name, std::string_view text);
/// Nullopt where `sealed` was not made by seal() with this key and name.
std::optional<std::string> unseal(std::string_view key, std::string_view name, std::string_view sealed);
/// The HMAC of `message`, 32 bytes.
std::string hmac_sha256(std::string_view key, std::string_view message);

/// Two digits a byte.
std::string hexadecimal(std::string_view bytes);
/// Compares in constant time.
bool equal_secrets(std::string_view a, std::string_view b);
/// Random bytes from the kernel. Error(kEnvironment) where it has none.
std::string secret_bytes(size_t count);

}  // namespace cohort
