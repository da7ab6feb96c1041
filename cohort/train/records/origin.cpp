#include "cohort/train/records/origin.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/setting_name.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostBytes = 1 << 20;

/// "" for a file that is not there.
std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, file.gcount())));
  return text;
}

std::vector<std::string> words_of_process() {
  std::string text = text_of("/proc/self/cmdline");
  if (!text.empty() && text.back() == '\0') text.pop_back();
  return split(text, '\0');
}

/// Whoever calls train() from a main of its own has settings that are members.
bool has_verbs() { return name_settings("--resume").starts_with('-'); }

std::string train_command(const std::string& run_folder, const std::string& rest) {
  const std::vector<std::string> words = words_of_process();
  const std::string program = words.empty() || words.front().empty() ? "cohort" : words.front();
  return shell_quoted(program) + " train " + shell_quoted(run_folder + "/config.toml") + rest;
}

bool is_commit(const std::string& text) {
  return (text.size() == 40 || text.size() == 64) &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c) != 0; });
}

/// Of a line "HASH refs/heads/main" of packed-refs.
std::string packed(const fs::path& git, const std::string& name) {
  for (const std::string& line : split(text_of(git / "packed-refs"), '\n'))
    if (line.ends_with(" " + name)) return line.substr(0, line.find(' '));
  return "";
}

}  // namespace

std::string command_of_process() {
  std::vector<std::string> words = words_of_process();
  for (std::string& word : words) word = shell_quoted(word);
  return join(words, " ");
}

std::string resume_command(const std::string& run_folder) {
  if (!has_verbs()) return concat("the same program with resume = true and run = \"", run_folder, "\"");
  return train_command(run_folder, name_settings(" --resume"));
}

std::string reproduce_command(const std::string& run_folder) {
  return has_verbs() ? train_command(run_folder, name_settings(" --run ") + shell_quoted(run_folder + "-again")) : "";
}

std::string commit_of(const std::string& folder) {
  std::error_code error;
  fs::path place = fs::absolute(folder, error);
  if (error) return "";
  while (!fs::exists(place / ".git", error)) {
    if (!place.has_relative_path()) return "";
    place = place.parent_path();
  }
  fs::path git = place / ".git";
  if (fs::is_regular_file(git, error)) {  // A work tree beside the first one, or a submodule, says where its folder is.
    const std::string link = trim(text_of(git));
    if (!link.starts_with("gitdir: ")) return "";
    git = place / link.substr(8);
  }
  const std::string head = trim(text_of(git / "HEAD"));
  if (is_commit(head)) return head;
  if (!head.starts_with("ref: ") || head.find("..") != std::string::npos) return "";
  const std::string name = head.substr(5), common = trim(text_of(git / "commondir"));
  const fs::path shared = common.empty() ? git : git / common;
  for (const fs::path& where : {git, shared})
    if (const std::string found = trim(text_of(where / name)); is_commit(found)) return found;
  const std::string found = packed(shared, name);
  return is_commit(found) ? found : "";
}

}  // namespace cohort
