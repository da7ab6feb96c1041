#include "bench/program/peer.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

struct Printed {
  std::string text;      ///< Standard output, up to kMostBytes.
  bool is_late = false;  ///< It did not end in time, and was killed.
};

/// Runs a program in `folder`, in a separate process group and with stderr discarded. It receives SIGTERM if this process exits.
Printed run_limited(const std::vector<std::string>& command, const std::string& folder, double limit_seconds) {
  constexpr size_t kMostBytes = size_t{1} << 20;
  constexpr double kGraceSeconds = 10;  // torchrun needs it to end its workers.
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail(ErrorCode::kEnvironment, "cannot make a pipe: ", std::strerror(errno));
  const pid_t child = ::fork();
  if (child < 0) fail(ErrorCode::kEnvironment, "cannot start ", command.front(), ": ", std::strerror(errno));
  if (child == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    ::setenv("OMP_NUM_THREADS", "1", 1);  // As many threads as our ranks have.
    const int nothing = ::open("/dev/null", O_RDWR);
    ::dup2(nothing, STDIN_FILENO), ::dup2(ends[1], STDOUT_FILENO), ::dup2(nothing, STDERR_FILENO);
    if (::chdir(folder.c_str()) == 0) ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  ::setpgid(child, child);
  ::close(ends[1]);
  Printed printed;
  const double begun = steady_seconds();
  // Its children may hold the pipe open, so the deadline counts as well as the end of the pipe.
  for (double left = limit_seconds;; left = begun + limit_seconds + (printed.is_late ? kGraceSeconds : 0) - steady_seconds()) {
    if (left <= 0 && printed.is_late) break;
    if (left <= 0) {
      printed.is_late = true;
      ::kill(-child, SIGTERM);
      continue;
    }
    pollfd readable{ends[0], POLLIN, 0};
    if (::poll(&readable, 1, static_cast<int>(std::min(left, 1.0) * 1e3) + 1) <= 0) continue;
    std::array<char, 4096> part;
    const ssize_t count = ::read(ends[0], part.data(), part.size());
    if (count == 0) break;
    if (count > 0 && printed.text.size() < kMostBytes) printed.text.append(part.data(), static_cast<size_t>(count));
  }
  ::close(ends[0]);
  ::kill(-child, SIGKILL);
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return printed;
}

}  // namespace

std::string peers_folder(const Arguments& arguments, const std::string& script) {
  const std::string folder = arguments.option("peers", "bench/peers");
  for (const char* unread : {"fsdp", "python"})
    if (folder == "none" && arguments.options.contains(unread))
      fail(ErrorCode::kBadInput, "--", unread, " is about the peers, and --peers none leaves them out; give one of the two");
  if (folder == "none") return "";
  if (std::filesystem::exists(folder + "/" + script)) return folder;
  if (arguments.options.contains("peers")) fail(ErrorCode::kBadInput, "--peers ", folder, ": no ", script, " there");
  log_info("no bench/peers here: PyTorch is not measured beside (--peers DIR names the folder)");
  return "";
}

std::string peers_python(const Arguments& arguments) {
  return arguments.option("python", std::filesystem::exists(".venv/bin/python") ? ".venv/bin/python" : "python3");
}

PeerStep peer_step(const std::string& folder, const std::string& python, int workers, const std::string& script,
                   const std::vector<std::string>& words, double expected_seconds) {
  const auto limit_seconds = static_cast<int64_t>(std::ceil(60 + 30 * expected_seconds));
  const std::string program = python.find('/') == std::string::npos ? python : std::filesystem::absolute(python).string();
  std::vector<std::string> command = {program, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", concat(workers), script};
  command.insert(command.end(), words.begin(), words.end());
  const Printed printed = run_limited(command, folder, static_cast<double>(limit_seconds));
  if (printed.is_late) return {.failure = concat("did not end within ", limit_seconds, " s")};
  for (const std::string& line : split(printed.text, '\n')) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("step_ms")) continue;
    const double seconds = json["step_ms"].is_number() ? json["step_ms"].get<double>() / 1e3 : 0;
    if (std::isfinite(seconds) && seconds > 0 && (!json.contains("ranks") || json["ranks"] == workers)) return {.seconds = seconds};
    return {.failure = "printed " + printable(line)};
  }
  return {.failure = "did not run with " + python};
}

}  // namespace cohort
