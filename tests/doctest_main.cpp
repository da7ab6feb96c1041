// The main of unit tests: doctest's, and
//   - no test case that fits what was asked for is a failure (a file that was renamed would pass for ever);
//   - a file of which a part cannot run here says so with exit code 77, by which ctest knows a skipped test; with CI=true that is a
//   failure.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "cohort/base/setting_name.h"
#include "tests/support/skip.h"

namespace {

constexpr int kSkipped = 77;

struct Skip {
  std::string reason;
  bool also_in_ci;
  bool operator==(const Skip&) const = default;
};
std::vector<Skip>& skips() {
  static std::vector<Skip> all;
  return all;
}

unsigned num_cases = 0;  // That fitted, so that they were run.

/// Counts; prints nothing.
struct Counter : doctest::IReporter {
  explicit Counter(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override { num_cases = 1; }  // --list-test-cases and the like run none.
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& stats) override { num_cases = stats.numTestCasesPassingFilters; }
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};
DOCTEST_REGISTER_LISTENER("counter", 1, Counter);

}  // namespace

namespace cohort {

void skip_test(const std::string& reason, bool also_in_ci) {
  const Skip skip{reason, also_in_ci};
  if (std::find(skips().begin(), skips().end(), skip) == skips().end()) skips().push_back(skip);  // One reason of many cases is said once.
}

bool permissions_bind() {
  const std::string text = as_nobody([] { return std::string(); });
  if (!text.empty()) skip_test("permissions bind nobody here: root " + text);
  return text.empty();
}

std::string as_nobody(const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    std::string text;
    try {
      constexpr unsigned kNobody = 65534;
      text = ::geteuid() == 0 && (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) ? "cannot become another user" : body();
    } catch (const std::exception& error) {
      text = error.what();
    }
    for (size_t at = 0; at < text.size();) {
      const ssize_t written = ::write(ends[1], text.data() + at, text.size() - at);
      if (written <= 0) break;
      at += static_cast<size_t>(written);
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t length = 0; (length = ::read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(length));
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return text;
}

}  // namespace cohort

int main(int argc, char** argv) {
  ::setenv("XDG_CACHE_HOME", "/dev/null", 1);  // Where nothing is found and nothing kept: the user's own is no business of tests.
  for (const int signal : {SIGINT, SIGHUP}) ::signal(signal, SIG_DFL);  // Ignored where the tests were started in the background.
  cohort::settings_are_options();                                       // support/member_names.h is for what a program reads.
  const int code = doctest::Context(argc, argv).run();
  if (code != 0) return code;
  if (num_cases == 0) {
    std::fprintf(stderr, "no test case fits\n");
    return 1;
  }
  const char* const value = std::getenv("CI");
  const bool in_ci = value != nullptr && std::string(value) == "true";
  bool missing = false;
  for (const Skip& skip : skips()) {
    std::printf("skipped: %s\n", skip.reason.c_str());
    missing |= in_ci && !skip.also_in_ci;
  }
  if (missing) std::fprintf(stderr, "CI=true: what was skipped must run here\n");
  return missing ? 1 : skips().empty() ? 0 : kSkipped;
}
