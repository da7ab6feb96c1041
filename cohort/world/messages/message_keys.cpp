#include "cohort/world/messages/message_keys.h"

#include <zmq.h>

#include "cohort/base/fail.h"
#include "cohort/base/secrets.h"
#include "cohort/world/job_token.h"

namespace cohort {
namespace {

constexpr size_t kTextBytes = 41;  // With the 0 at its end.

/// X25519 takes any 32 bytes for a secret key.
std::string secret_key(std::string_view secret, std::string_view use) {
  const std::string bytes = derived_key(secret, use);
  std::string text(kTextBytes, '\0');
  zmq_z85_encode(text.data(), reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  text.pop_back();
  return text;
}

std::string public_key(const std::string& secret_text) {
  std::string text(kTextBytes, '\0');
  if (zmq_curve_public(text.data(), secret_text.c_str()) != 0)
    fail(ErrorCode::kEnvironment, "libzmq was built without CURVE, which keeps others out; install one that has it (Debian: libzmq5)");
  text.pop_back();
  return text;
}

}  // namespace

MessageKeys message_keys(std::string_view secret) {
  if (secret.size() < kShortestToken)
    fail(ErrorCode::kEnvironment, "messages need a secret of ", kShortestToken, " characters or more; ", how_to_give_a_token());
  MessageKeys keys{.server_secret = secret_key(secret, "messages: server"), .client_secret = secret_key(secret, "messages: client")};
  keys.server_public = public_key(keys.server_secret);
  keys.client_public = public_key(keys.client_secret);
  return keys;
}

}  // namespace cohort
