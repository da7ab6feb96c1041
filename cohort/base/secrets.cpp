#include "cohort/base/secrets.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

constexpr size_t kKeyBytes = 32, kNonceBytes = 12, kTagBytes = 16;
static_assert(kSealBytes == kNonceBytes + kTagBytes);

using Cipher = std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)>;
using KeyDerivation = std::unique_ptr<EVP_PKEY_CTX, decltype(&EVP_PKEY_CTX_free)>;

uint8_t* bytes_of(std::string& text) { return reinterpret_cast<uint8_t*>(text.data()); }
const uint8_t* bytes_of(std::string_view text) { return reinterpret_cast<const uint8_t*>(text.data()); }
int length_of(std::string_view text) { return static_cast<int>(text.size()); }

void demand(bool done, const char* what) {
  if (!done) fail(ErrorCode::kEnvironment, "OpenSSL's libcrypto does not ", what);
}

Cipher new_cipher(std::string_view key) {
  Cipher cipher(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free);
  demand(cipher && key.size() == kKeyBytes, "set up a cipher");
  return cipher;
}

}  // namespace

std::string derived_key(std::string_view secret, std::string_view use) {
  const KeyDerivation context(EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr), EVP_PKEY_CTX_free);
  std::string key(kKeyBytes, '\0');
  size_t size = key.size();
  demand(context && EVP_PKEY_derive_init(context.get()) == 1 && EVP_PKEY_CTX_set_hkdf_md(context.get(), EVP_sha256()) == 1 &&
             EVP_PKEY_CTX_set1_hkdf_key(context.get(), bytes_of(secret), length_of(secret)) == 1 &&
             EVP_PKEY_CTX_add1_hkdf_info(context.get(), bytes_of(use), length_of(use)) == 1 &&
             EVP_PKEY_derive(context.get(), bytes_of(key), &size) == 1 && size == kKeyBytes,
         "derive a key");
  return key;
}

std::string seal(std::string_view key, std::string_view name, std::string_view text) {
  const Cipher cipher = new_cipher(key);
  std::string sealed = secret_bytes(kNonceBytes);
  sealed.resize(text.size() + kSealBytes);
  uint8_t* const encrypted = bytes_of(sealed) + kNonceBytes;
  int count = 0;
  demand(EVP_EncryptInit_ex(cipher.get(), EVP_chacha20_poly1305(), nullptr, bytes_of(key), bytes_of(sealed)) == 1 &&
             EVP_EncryptUpdate(cipher.get(), nullptr, &count, bytes_of(name), length_of(name)) == 1 &&
             (text.empty() || EVP_EncryptUpdate(cipher.get(), encrypted, &count, bytes_of(text), length_of(text)) == 1) &&
             EVP_EncryptFinal_ex(cipher.get(), encrypted + text.size(), &count) == 1 &&
             EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes, encrypted + text.size()) == 1,
         "encrypt");
  return sealed;
}

std::optional<std::string> unseal(std::string_view key, std::string_view name, std::string_view sealed) {
  if (sealed.size() < kSealBytes) return {};
  const Cipher cipher = new_cipher(key);
  const std::string_view encrypted = sealed.substr(kNonceBytes, sealed.size() - kSealBytes);
  std::string tag(sealed.substr(sealed.size() - kTagBytes)), text(encrypted.size(), '\0');
  int count = 0;
  demand(EVP_DecryptInit_ex(cipher.get(), EVP_chacha20_poly1305(), nullptr, bytes_of(key), bytes_of(sealed)) == 1 &&
             EVP_DecryptUpdate(cipher.get(), nullptr, &count, bytes_of(name), length_of(name)) == 1 &&
             (text.empty() || EVP_DecryptUpdate(cipher.get(), bytes_of(text), &count, bytes_of(encrypted), length_of(encrypted)) == 1) &&
             EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_AEAD_SET_TAG, kTagBytes, tag.data()) == 1,
         "decrypt");
  if (EVP_DecryptFinal_ex(cipher.get(), bytes_of(text) + text.size(), &count) != 1) return {};  // The tag does not match.
  return text;
}

std::string hmac_sha256(std::string_view key, std::string_view message) {
  std::string digest(32, '\0');
  unsigned int size = 0;
  demand(
      HMAC(EVP_sha256(), key.data(), length_of(key), bytes_of(message), message.size(), bytes_of(digest), &size) && size == digest.size(),
      "make an HMAC");
  return digest;
}

std::string hexadecimal(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    text += "0123456789abcdef"[static_cast<uint8_t>(byte) >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

bool equal_secrets(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string secret_bytes(size_t count) {
  std::string bytes(count, '\0');
  if (::getrandom(bytes.data(), count, 0) != static_cast<ssize_t>(count))  // Up to 256 bytes come at once.
    fail(ErrorCode::kEnvironment, "the kernel gives no random bytes: ", std::strerror(errno));
  return bytes;
}

}  // namespace cohort
