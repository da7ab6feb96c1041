#include "cohort/bench/peer.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

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

double peer_step_seconds(const std::string& folder, const std::string& python, int workers, const std::string& script,
                         const std::vector<std::string>& words) {
  const std::string program = python.find('/') == std::string::npos ? python : std::filesystem::absolute(python).string();
  std::string command = concat("cd ", shell_quoted(folder), " && OMP_NUM_THREADS=1 ", shell_quoted(program),
                               " -m torch.distributed.run --standalone --nproc-per-node ", workers, " ", script);
  for (const std::string& word : words) command += " " + shell_quoted(word);
  command += " 2>/dev/null";
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  if (!pipe) return -1;
  std::array<char, 4096> line;
  while (std::fgets(line.data(), line.size(), pipe.get())) {
    const Json json = Json::parse(line.data(), nullptr, false);
    if (json.is_object() && json.contains("step_ms")) return json["step_ms"].get<double>() / 1e3;
  }
  return -1;
}

}  // namespace cohort
