#include "cohort/world/job_token.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"

namespace cohort {
namespace {

/// Sets or, with "", unsets both variables; as they were afterwards.
class TokenVariables {
 public:
  TokenVariables(const std::string& token, const std::string& file) {
    set("COHORT_TOKEN", token);
    set("COHORT_TOKEN_FILE", file);
  }
  ~TokenVariables() {
    set("COHORT_TOKEN", token_before_);
    set("COHORT_TOKEN_FILE", file_before_);
  }

 private:
  static std::string get(const char* name) { return std::getenv(name) ? std::getenv(name) : ""; }
  static void set(const char* name, const std::string& value) { value.empty() ? ::unsetenv(name) : ::setenv(name, value.c_str(), 1); }
  const std::string token_before_ = get("COHORT_TOKEN"), file_before_ = get("COHORT_TOKEN_FILE");
};

std::string refusal(const std::string& token, const std::string& file) {
  const TokenVariables variables(token, file);
  try {
    job_token();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kEnvironment);
    return error.what();
  }
  return "accepted";
}

TEST_CASE("the job's token: from a variable or a private file") {
  const TemporaryFolder folder;
  const std::string path = folder / "token";
  std::ofstream(path) << "0123456789abcdef0123\n";
  ::chmod(path.c_str(), 0600);
  {
    const TokenVariables variables("", "");
    CHECK(job_token().empty());
  }
  {
    const TokenVariables variables("a secret of many characters", "");
    CHECK(job_token() == "a secret of many characters");
  }
  {
    const TokenVariables variables("", path);
    CHECK(job_token() == "0123456789abcdef0123");
  }
  CHECK(refusal("0123456789abcdef", path).find("both set") != std::string::npos);
  CHECK(refusal("short", "").find("COHORT_TOKEN has 5 characters") != std::string::npos);
  CHECK(refusal("", folder / "none").find("cannot be read") != std::string::npos);
  for (const int mode : {0640, 0604, 0620}) {
    ::chmod(path.c_str(), static_cast<mode_t>(mode));
    CHECK(refusal("", path).find("chmod 600") != std::string::npos);
  }
  ::chmod(path.c_str(), 0600);
  std::ofstream(path) << "123\n";
  CHECK(refusal("", path).find("has 3 characters") != std::string::npos);
}

}  // namespace
}  // namespace cohort
