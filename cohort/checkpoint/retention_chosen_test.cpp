#include "cohort/checkpoint/retention.h"

#include <doctest/doctest.h>
#include <fcntl.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cohort/checkpoint/names.h"
#include "tests/support/checkpoint_files.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

namespace fs = std::filesystem;

TEST_CASE("chosen: the newest, the best, or a step, of a run, its checkpoints or a link") {
  MemoryFolder space;
  fs::create_directory(space / "run");
  const std::string folder = space / "run/checkpoints";
  for (const int step : {10, 20, 30}) save(folder, step, step * 100, "n", nullptr, 3, 20);
  for (const std::string& path : {space / "run", folder}) {
    CHECK(open_selected_checkpoint(path, "latest").step() == 30);
    CHECK(open_selected_checkpoint(path, "best").step() == 20);
    CHECK(open_selected_checkpoint(path, "10").step() == 10);
  }
  CHECK(open_selected_checkpoint(folder + "/best", "latest").step() == 20);
  CHECK(open_selected_checkpoint(folder + "/step-000000010", "latest").step() == 10);
  CHECK(contains(error_or_none([&] { open_selected_checkpoint(folder + "/step-000000010", "best"); }), "is one checkpoint already"));
  CHECK(
      contains(error_or_none([&] { open_selected_checkpoint(folder, "15"); }), "has no checkpoint of step 15; there are steps 30, 20, 10"));
  CHECK(contains(error_or_none([&] { open_selected_checkpoint(folder, "lates"); }), "did you mean 'latest'"));
  CHECK(contains(error_or_none([&] { open_selected_checkpoint(folder, "-3"); }), "expected best, latest or the number of a step"));
  CHECK(contains(error_or_none([&] { open_selected_checkpoint(space / "none", "latest"); }), "does not exist"));
}

TEST_CASE("chosen: folders of before have symbolic links, and copies of these have folders; saves move on from both") {
  MemoryFolder space;
  for (const bool is_copy : {false, true}) {
    CAPTURE(is_copy);
    const std::string folder = space / (is_copy ? "copied" : "linked");
    for (const int step : {10, 20, 30}) save(folder, step, step * 100, "n", nullptr, 3, 20);
    const auto replace = [&](const std::string& name, const std::string& target) {
      fs::remove(folder + "/" + name);
      if (is_copy) fs::copy(folder + "/" + target, folder + "/" + name);
      else fs::create_directory_symlink(target, folder + "/" + name);
    };
    replace("latest", "step-000000020");  // 30 came after it was copied.
    replace("best", "step-000000010");
    CHECK(open_selected_checkpoint(folder, "latest").step() == 30);
    CHECK(open_selected_checkpoint(folder + "/latest", "latest").step() == (is_copy ? 30 : 20));
    CHECK(open_selected_checkpoint(folder, "best").step() == 10);
    CHECK(open_selected_checkpoint(folder + "/best", "latest").step() == 10);
    CHECK(save(folder, 40, 4000, "m", nullptr, 2, 30).empty());
    CHECK(list_checkpoints(folder) == std::vector<std::string>{"step-000000040", "step-000000030"});
    CHECK(read_pointer(folder + "/latest") == "step-000000040");
    CHECK(read_pointer(folder + "/best") == "step-000000030");
    CHECK(!is_exported_file(folder + "/latest"));
  }
  // The only copy of a step stays one, and a folder that is none stays where it is.
  const std::string folder = space / "alone";
  save(folder, 10, 1000, "n");
  fs::remove(folder + "/latest");
  fs::rename(folder + "/step-000000010", folder + "/latest");
  CHECK(holds_checkpoint(folder));
  CHECK(open_selected_checkpoint(folder + "/latest", "latest").step() == 10);
  CHECK(save(folder, 20, 2000, "n").empty());
  CHECK(list_checkpoints(folder) == std::vector<std::string>{"step-000000020", "step-000000010.old.latest"});
  fs::create_directory(folder + "/best");
  CHECK(contains(save(folder, 30, 3000, "n", nullptr, 2, 30).front(), "best is a folder that holds no whole checkpoint"));
}

TEST_CASE("chosen: what a folder holds is found by looking, whatever its pointers say") {
  MemoryFolder space;
  const std::string folder = space / "checkpoints";
  CHECK(!holds_checkpoint(folder));
  fs::create_directories(folder + "/step-000000005.tmp.killed");
  CHECK(!holds_checkpoint(folder));
  for (const int step : {10, 20}) save(folder, step, step * 100, "n", nullptr, 3, 20);
  fs::remove(folder + "/latest");
  CHECK(holds_checkpoint(folder));
  CHECK(open_selected_checkpoint(folder, "latest").step() == 20);
  const UniqueDescriptor file = open_file(folder + "/latest", O_WRONLY | O_CREAT);
  write_all(file.get(), "step-000000099\n", 15, "latest");
  CHECK(open_selected_checkpoint(folder + "/latest", "latest").step() == 20);
  for (const char* const damaged : {"", "step-0000", "../../model"}) {
    CAPTURE(damaged);
    write_file_atomically(folder + "/latest", damaged);
    CHECK(!is_exported_file(folder + "/latest"));
    CHECK(open_selected_checkpoint(folder + "/latest", "latest").step() == 20);
  }
  fs::remove_all(folder + "/step-000000020");
  CHECK(contains(error_or_none([&] { open_selected_checkpoint(folder + "/best", "latest"); }),
                 "best names step-000000020, which is not there"));
  CHECK(contains(error_or_none([&] { open_selected_checkpoint(folder + "/latest", "best"); }), "is one checkpoint already"));
  write_file_atomically(folder + "/best", "step-0");
  CHECK(contains(error_or_none([&] { open_selected_checkpoint(folder + "/best", "latest"); }),
                 "best does not hold the name of a checkpoint: it is damaged"));
  write_file_atomically(space / "latest", "an exported model");
  CHECK(is_exported_file(space / "latest"));
  fs::create_directory_symlink(space / "not mounted", space / "gone");
  CHECK(contains(error_or_none([&] { holds_checkpoint(space / "gone"); }), "gone: No such file"));
}

TEST_CASE("chosen: one checkpoint of a run is not taken for another, and none for a damaged one") {
  MemoryFolder space;
  save(space.path(), 10, 1000, "n");
  CHECK(contains(error_or_none([&] { open_selected_checkpoint(space.path(), "best"); }),
                 "none of its checkpoints was evaluated; there are steps 10"));
  CHECK(contains(error_or_none([&] { open_selected_checkpoint(space.path(), "best"); }), "10"));
  CHECK(open_selected_checkpoint(space.path(), "latest").step() == 10);
  save(space.path(), 20, 2000, "n");
  damage(space / "step-000000020/rank-00001.safetensors");
  const std::string refused = error_or_none([&] { open_selected_checkpoint(space.path(), "latest"); });
  CHECK(contains(refused, "step-000000020 is damaged"));
  CHECK(contains(refused, "step 10 is the newest that is whole"));
  damage(space / "step-000000010/manifest.json");
  CHECK(contains(error_or_none([&] { open_selected_checkpoint(space.path(), "latest"); }), "no other one of the run is whole"));
}

}  // namespace
