#include "cohort/bench/peer.h"

#include <sys/wait.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "cohort/base/fail.h"
#include "cohort/base/log.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/shell_text.h"

namespace cohort {

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
  constexpr int kTimedOut = 124, kKilled = 137;  // Of timeout(1).
  const auto limit_seconds = static_cast<int64_t>(std::ceil(60 + 30 * expected_seconds));
  const std::string program = python.find('/') == std::string::npos ? python : std::filesystem::absolute(python).string();
  std::string command =
      concat("cd ", shell_quoted(folder), " && OMP_NUM_THREADS=1 timeout --foreground --kill-after=10 ", limit_seconds, " ",
             shell_quoted(program), " -m torch.distributed.run --standalone --nproc-per-node ", workers, " ", script);
  for (const std::string& word : words) command += " " + shell_quoted(word);
  command += " 2>/dev/null";
  PeerStep step{.seconds = -1, .failure = "did not run with " + python};
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (!pipe) return step;
  std::array<char, 4096> line;
  while (std::fgets(line.data(), line.size(), pipe)) {
    const Json json = Json::parse(line.data(), nullptr, false);
    if (json.is_object() && json.contains("step_ms")) step.seconds = json["step_ms"].get<double>() / 1e3;
  }
  const int status = ::pclose(pipe);
  if (WIFEXITED(status) && (WEXITSTATUS(status) == kTimedOut || WEXITSTATUS(status) == kKilled))
    step.failure = concat("did not end within ", limit_seconds, " s");
  return step;
}

}  // namespace cohort
