#pragma once
// The CURVE keys of both ends, made from the secret that they share: each end knows both pairs, so each can tell that the other has the
// secret, and nobody else can. As text in Z85, 40 characters.

#include <string>
#include <string_view>

namespace cohort {

struct MessageKeys {
  std::string server_secret, server_public, client_secret, client_public;
};
/// The same for the same secret. Error(kEnvironment) where it is shorter than kShortestToken, or libzmq was built without CURVE.
MessageKeys message_keys(std::string_view secret);

}  // namespace cohort
