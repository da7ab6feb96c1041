#include "cohort/world/uncaught.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "cohort/base/text/log.h"

namespace cohort {
namespace {

/// What ranks of one host print that end with these errors, at once.
std::string printed(const std::vector<std::string>& texts, const std::string& launcher = "openmpi") {
  std::array<int, 2> pipe{};
  REQUIRE(::pipe(pipe.data()) == 0);
  const int size = static_cast<int>(texts.size());
  for (int rank = 0; rank < size; ++rank)
    if (::fork() == 0) {
      ::dup2(pipe[1], STDERR_FILENO);
      const std::string& text = texts[static_cast<size_t>(rank)];
      print_once({.rank = rank, .size = size, .local_rank = rank, .local_size = size, .launcher = launcher}, text,
                 [&] { log_failure(2, text); });
      ::_exit(0);
    }
  ::close(pipe[1]);
  std::string out;
  std::array<char, 256> some{};
  for (ssize_t got = 0; (got = ::read(pipe[0], some.data(), some.size())) > 0;) out.append(some.data(), static_cast<size_t>(got));
  ::close(pipe[0]);
  for (int rank = 0; rank < size; ++rank) ::wait(nullptr);
  return out;
}

TEST_CASE("said once: the same error of all ranks of a host is one line, another one is printed too") {
  CHECK(printed({"bad --lr", "bad --lr", "bad --lr"}) == "cohort: error: bad --lr\n");
  const std::string both = printed({"bad --lr", "no file here"});
  CHECK(both.find("cohort: error: bad --lr\n") != std::string::npos);
  CHECK(both.find("cohort[1]: error: no file here\n") != std::string::npos);
  const std::string alone = printed({"x", "x"}, "none");  // Processes that know nothing of each other.
  CHECK(std::count(alone.begin(), alone.end(), '\n') == 2);
}

}  // namespace
}  // namespace cohort
