#include "cohort/checkpoint/chosen.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "cohort/checkpoint/test_support.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

namespace fs = std::filesystem;

TEST_CASE("chosen: the newest, the best, or a step, of a run, its checkpoints or a link") {
  TemporaryFolder space("cohort", memory_folder());
  fs::create_directory(space / "run");
  const std::string folder = space / "run/checkpoints";
  for (const int step : {10, 20, 30}) save(folder, step, step * 100, "n", nullptr, 3, 20);
  for (const std::string& path : {space / "run", folder}) {
    CHECK(open_chosen(path, "latest").step() == 30);
    CHECK(open_chosen(path, "best").step() == 20);
    CHECK(open_chosen(path, "10").step() == 10);
  }
  CHECK(open_chosen(folder + "/best", "latest").step() == 20);
  CHECK(open_chosen(folder + "/step-000000010", "latest").step() == 10);
  CHECK(contains(error_text([&] { open_chosen(folder + "/step-000000010", "best"); }), "is one checkpoint already"));
  CHECK(contains(error_text([&] { open_chosen(folder, "15"); }), "has no checkpoint of step 15; there are steps 30, 20, 10"));
  CHECK(contains(error_text([&] { open_chosen(folder, "lates"); }), "did you mean 'latest'"));
  CHECK(contains(error_text([&] { open_chosen(folder, "-3"); }), "expected best, latest or the number of a step"));
  CHECK(contains(error_text([&] { open_chosen(space / "none", "latest"); }), "does not exist"));
}

TEST_CASE("chosen: one checkpoint of a run is not taken for another, and none for a damaged one") {
  TemporaryFolder space("cohort", memory_folder());
  save(space.path(), 10, 1000, "n");
  CHECK(contains(error_text([&] { open_chosen(space.path(), "best"); }), "none of its checkpoints was evaluated; there are steps 10"));
  CHECK(contains(error_text([&] { open_chosen(space.path(), "best"); }), "10"));
  CHECK(open_chosen(space.path(), "latest").step() == 10);
  save(space.path(), 20, 2000, "n");
  damage(space / "step-000000020/rank-00001.safetensors");
  const std::string refused = error_text([&] { open_chosen(space.path(), "latest"); });
  CHECK(contains(refused, "step-000000020 is damaged"));
  CHECK(contains(refused, "step 10 is the newest that is whole"));
  damage(space / "step-000000010/manifest.json");
  CHECK(contains(error_text([&] { open_chosen(space.path(), "latest"); }), "no other one of the run is whole"));
}

}  // namespace
