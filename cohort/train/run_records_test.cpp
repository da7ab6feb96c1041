#include "cohort/train/run_records.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "cohort/base/files/file.h"
#include "cohort/base/setting_name.h"

namespace cohort {

namespace fs = std::filesystem;

namespace {

void write(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path) << text;
}

const std::string kCommit = "0123456789abcdef0123456789abcdef01234567", kOther = "fedcba9876543210fedcba9876543210fedcba98";

}  // namespace

TEST_CASE("origin: the commit of the working tree around a folder, however git keeps it") {
  const TemporaryFolder folder;
  CHECK(commit_of(folder / "").empty());
  write(folder / "tree/.git/HEAD", "ref: refs/heads/main\n");
  fs::create_directories(folder / "tree/deep/below");
  CHECK(commit_of(folder / "tree/deep/below").empty());  // Before the first commit.
  write(folder / "tree/.git/packed-refs", "# pack-refs\n" + kOther + " refs/heads/other-main\n" + kOther + " refs/heads/main\n");
  CHECK(commit_of(folder / "tree/deep/below") == kOther);
  write(folder / "tree/.git/refs/heads/main", kCommit + "\n");
  CHECK(commit_of(folder / "tree") == kCommit);
  write(folder / "tree/.git/worktrees/side/HEAD", "ref: refs/heads/main\n");
  write(folder / "tree/.git/worktrees/side/commondir", "../..\n");
  write(folder / "side/.git", "gitdir: " + (folder / "tree/.git/worktrees/side") + "\n");
  CHECK(commit_of(folder / "side") == kCommit);
  write(folder / "tree/.git/HEAD", kOther + "\n");
  CHECK(commit_of(folder / "tree") == kOther);
  for (const std::string bad : {"", "ref: ../../etc/passwd", "x", "ref: refs/heads/none"}) {
    write(folder / "tree/.git/HEAD", bad);
    CHECK(commit_of(folder / "tree").empty());
  }
}

TEST_CASE("origin: commands have the program's own name, and a folder is one word") {
  CHECK(!command_of_process().empty());
  settings_are_options();
  const std::string command = resume_command("runs/two words");
  CHECK(command.find("_tests") != std::string::npos);
  CHECK(command.ends_with(" train 'runs/two words/config.toml' --resume"));
  CHECK(reproduce_command("runs/x").ends_with(" train runs/x/config.toml --run runs/x-again"));
  settings_are_options(false);
  CHECK(resume_command("runs/x") == "the same program with resume = true and run = \"runs/x\"");
  CHECK(reproduce_command("runs/x").empty());
}

}  // namespace cohort
