#include "cohort/train/run_folder.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/checkpoint_files.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

namespace fs = std::filesystem;

Config config_of(const std::string& run, bool resume, bool resume_auto) {
  Config config;
  config.run = run;
  config.resume = resume;
  config.resume_auto = resume_auto;
  return config;
}

/// "begins" or "goes on", or why not.
std::string outcome(const std::string& run, bool resume = false, bool resume_auto = false) {
  try {
    return RunFolder(config_of(run, resume, resume_auto)).goes_on() ? "goes on" : "begins";
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kBadInput);
    return error.what();
  }
}
std::string outcome_of_auto(const std::string& run) { return outcome(run, false, true); }

void put(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

/// Of a run that a kill ended before its first checkpoint.
void begin(const std::string& run) {
  fs::create_directories(run + "/checkpoints/step-000000003.tmp.n");
  fs::create_directories(run + "/events");
  put(run + "/config.toml", whole_toml(Config()));
  put(run + "/metrics.jsonl", "{\"event\":\"step\",\"step\":1,\"loss\":2.5}\n");
  put(run + "/data.json.tmp.0000000000000000", "half");
}

}  // namespace

TEST_CASE("RunFolder: what is a checkpoint stays, whatever names it") {
  const TemporaryFolder space;
  // How the folder came to have no `latest`: never had, a link to nothing, a copy that left it out, or the checkpoint itself has its name.
  for (const std::string how : {"none", "dangling", "set aside", "copy alone"}) {
    CAPTURE(how);
    const std::string run = space / how, folder = run + "/checkpoints";
    begin(run);
    save(folder, 10, 1000, "n");
    fs::remove(folder + "/latest");
    if (how == "dangling") fs::create_directory_symlink("step-000000099", folder + "/latest");
    if (how == "set aside") fs::rename(folder + "/step-000000010", folder + "/step-000000010.old.n");
    if (how == "copy alone") fs::rename(folder + "/step-000000010", folder + "/latest");
    CHECK(contains(outcome(run), "already holds a run; add --resume"));
    CHECK(outcome_of_auto(run) == "goes on");
    CHECK(outcome(run, true) == "goes on");
    if (how != "copy alone") CHECK(latest_mark(folder) == 1000);
    CHECK(holds_run(run));
  }
  // Gone, and said to have been there.
  const std::string run = space / "not mounted";
  begin(run);
  put(run + "/metrics.jsonl", "{\"event\":\"checkpoint\",\"step\":7,\"path\":\"x\",\"seconds\":0.5}\n");
  CHECK(contains(outcome_of_auto(run), "saved a checkpoint of step 7, and there is none in"));
  CHECK(fs::exists(run + "/metrics.jsonl"));
}

TEST_CASE("RunFolder: --resume=auto begins, begins anew what had saved nothing, and takes nobody else's files") {
  const TemporaryFolder space;
  CHECK(outcome_of_auto(space / "new/a/b") == "begins");
  CHECK(!fs::exists(space / "new"));  // Nothing was put into it.
  const std::string run = space / "killed";
  begin(run);
  CHECK(contains(outcome(run), "saved no checkpoint, so it can not go on; remove it"));
  CHECK(contains(outcome(run), "--resume=auto"));
  put(run + "/notes.txt", "mine");
  CHECK(contains(outcome_of_auto(run), "\"notes.txt\", which is not the run's"));
  CHECK(fs::exists(run + "/metrics.jsonl"));
  fs::remove(run + "/notes.txt");
  CHECK(outcome_of_auto(run) == "begins");
  CHECK(fs::is_empty(run));
  // Killed earlier still; or a user's own file.
  put(run + "/plan.json.tmp.0123456789abcdef", "half");
  CHECK(outcome_of_auto(run) == "begins");
  put(run + "/.cohort-vPz6AG", "");  // Of another process that looks whether it may write here.
  CHECK(outcome_of_auto(run) == "begins");
  put(run + "/config.toml", whole_toml(Config()));
  CHECK(outcome_of_auto(run) == "begins");
  put(run + "/config.toml", "model = \"cnn\"\n");
  CHECK(contains(outcome_of_auto(run), "other files (config.toml)"));
  CHECK(fs::exists(run + "/config.toml"));
}

TEST_CASE("WatchedFolder: knows where the folder is now") {
  const TemporaryFolder space;
  const std::string run = space / "run";
  fs::create_directory(run);
  const WatchedFolder folder(run);
  CHECK(!folder.moved_to());
  fs::rename(run, space / "other");
  CHECK(folder.moved_to() == fs::canonical(space / "other").string());
  fs::create_directory(run);  // Another one of its name.
  CHECK(folder.moved_to() == fs::canonical(space / "other").string());
  fs::remove(space / "other");
  CHECK(folder.moved_to() == "");
}
