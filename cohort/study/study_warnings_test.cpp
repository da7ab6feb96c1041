#include "cohort/study/study_warnings.h"

#include <doctest/doctest.h>

#include "cohort/base/file.h"

namespace cohort::study {
namespace {

TEST_CASE("study warnings: the note of successive halving, none without it or where it is no text") {
  const TemporaryFolder folder;
  StudyData study{.dataset = "d", .model = "m", .optimizer = "o"};
  study.batches.push_back({.batch_size = 8, .num_trials = 1, .train_steps = 2});
  Store::create(folder / "a", study);
  CHECK(warnings_of(folder / "a").empty());
  Store::open_existing(folder / "a").set_note("halving", "\"it is biased\"");
  CHECK(warnings_of(folder / "a") == std::vector<std::string>{"it is biased"});
  Store::open_existing(folder / "a").set_note("halving", "[1, 2]");
  CHECK(warnings_of(folder / "a").empty());
  CHECK(warnings_of(folder.path()).empty());  // No store: an archive's folder, or anything else.
}

}  // namespace
}  // namespace cohort::study
