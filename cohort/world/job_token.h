#pragma once
// The secret shared by the ranks of one job, so that nobody else joins it.

#include <string>

namespace cohort {

/// COHORT_TOKEN, or the content of the file named by COHORT_TOKEN_FILE without the line end; "" if neither is set. Error(kEnvironment) if
/// the token is shorter than kShortestToken, both are set, or the file is not private to this user.
std::string job_token();

/// Advice for a missing token, to end an error message.
std::string token_instructions();

/// 16 hexadecimal digits are 64 bits.
inline constexpr size_t kShortestToken = 16;

/// "" if it is not set.
std::string environment_variable(const char* name);

}  // namespace cohort
