#pragma once
// The secret that the ranks of one job share, so that nobody else joins it.

#include <string>

namespace cohort {

/// COHORT_TOKEN, or the content of the file that COHORT_TOKEN_FILE names, without the line's end; "" where neither is set.
/// Error(kEnvironment) where the token is shorter than kShortestToken, both are set, or others than the file's owner, this user, may read
/// or write it.
std::string job_token();

/// What to do where a token is missing: ends a message.
std::string how_to_give_a_token();

/// 16 hexadecimal digits are 64 bits.
inline constexpr size_t kShortestToken = 16;

}  // namespace cohort
