#include "cohort/base/hmac.h"

#include <sys/random.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "cohort/base/error.h"

namespace cohort {
namespace {

constexpr size_t kBlockBytes = 64;

constexpr std::array<uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using Words = std::array<uint32_t, 8>;

/// One block of 64 bytes; names as in FIPS 180-4, section 6.2.2.
void compress(Words& hash, const uint8_t* block) {
  std::array<uint32_t, 64> w;
  for (size_t t = 0; t < 16; ++t)
    w[t] = uint32_t{block[4 * t]} << 24 | uint32_t{block[4 * t + 1]} << 16 | uint32_t{block[4 * t + 2]} << 8 | block[4 * t + 3];
  for (size_t t = 16; t < 64; ++t) {
    const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = hash;
  for (size_t t = 0; t < 64; ++t) {
    const uint32_t big1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25), choice = (e & f) ^ (~e & g);
    const uint32_t t1 = h + big1 + choice + kRoundConstants[t] + w[t];
    const uint32_t big0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22), majority = (a & b) ^ (a & c) ^ (b & c);
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + big0 + majority;
  }
  const Words added = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < hash.size(); ++i) hash[i] += added[i];
}

}  // namespace

Digest sha256(std::string_view message) {
  Words hash = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  // The message, a one bit, zeros, and the message's length in bits as the last 8 bytes of a block.
  std::string padded(message);
  padded += static_cast<char>(0x80);
  while (padded.size() % kBlockBytes != kBlockBytes - 8) padded += '\0';
  for (int shift = 56; shift >= 0; shift -= 8) padded += static_cast<char>(uint64_t{message.size()} * 8 >> shift & 0xff);
  for (size_t at = 0; at < padded.size(); at += kBlockBytes) compress(hash, reinterpret_cast<const uint8_t*>(padded.data()) + at);
  Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) digest[i] = static_cast<uint8_t>(hash[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

Digest hmac_sha256(std::string_view key, std::string_view message) {
  std::string block(key.size() > kBlockBytes ? std::string(bytes_of(sha256(key))) : std::string(key));
  block.resize(kBlockBytes, '\0');
  std::string inner = block, outer = block;
  for (char& byte : inner) byte = static_cast<char>(byte ^ 0x36);
  for (char& byte : outer) byte = static_cast<char>(byte ^ 0x5c);
  inner += message;
  outer += bytes_of(sha256(inner));
  return sha256(outer);
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
  if (a.size() != b.size()) return false;
  int differences = 0;
  for (size_t i = 0; i < a.size(); ++i) differences |= a[i] ^ b[i];
  return differences == 0;
}

std::string secret_bytes(size_t count) {
  std::string bytes(count, '\0');
  if (::getrandom(bytes.data(), count, 0) != static_cast<ssize_t>(count))  // Up to 256 bytes come at once.
    fail(ErrorCode::kEnvironment, "the kernel gives no random bytes: ", std::strerror(errno));
  return bytes;
}

}  // namespace cohort
