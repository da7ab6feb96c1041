#include "cohort/world/job_token.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"

namespace cohort {
namespace {

/// As ssh requires for keys: the file must belong to this user and be unreadable for others.
void check_private(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) fail(ErrorCode::kEnvironment, "COHORT_TOKEN_FILE=", path, " cannot be read");
  if (status.st_uid != ::geteuid() || (status.st_mode & 077) != 0)
    fail(ErrorCode::kEnvironment, "COHORT_TOKEN_FILE=", path, " must be yours and closed to others: chmod 600 ", path);
}

}  // namespace

std::string environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

std::string job_token() {
  std::string token = environment_variable("COHORT_TOKEN");
  const std::string path = environment_variable("COHORT_TOKEN_FILE");
  if (token.empty() && path.empty()) return "";
  if (!token.empty() && !path.empty()) fail(ErrorCode::kEnvironment, "COHORT_TOKEN and COHORT_TOKEN_FILE are both set; unset one of them");
  if (token.empty()) {
    check_private(path);
    token = read_small_file(path, 4096);
    while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  }
  if (token.size() < kShortestToken)
    fail(ErrorCode::kEnvironment, path.empty() ? "COHORT_TOKEN" : "COHORT_TOKEN_FILE=" + path, " has ", token.size(),
         " characters, which can be guessed; give ", kShortestToken, " or more random ones: openssl rand -hex 16");
  return token;
}

std::string token_instructions() {
  return "give all ranks one secret, in the variable COHORT_TOKEN (export COHORT_TOKEN=$(openssl rand -hex 16); mpirun needs -x "
         "COHORT_TOKEN "
         "too) or in a file of mode 600 that COHORT_TOKEN_FILE names";
}

}  // namespace cohort
