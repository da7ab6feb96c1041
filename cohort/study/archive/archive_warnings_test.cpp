#include <doctest/doctest.h>

#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/study/archive/archive.h"
#include "tests/support/archives.h"
#include "tests/support/errors.h"

namespace cohort::study {
namespace {

Json json_in(const std::string& path) { return Json::parse(read_small_file(path, 1 << 20)); }

TEST_CASE("archive: warnings of any batch size are those of the study, each once") {
  const TemporaryFolder folder;
  StudyData study{.dataset = "d", .model = "m", .optimizer = "o"};
  for (const int64_t size : {8, 64}) study.batches.push_back({.batch_size = size, .num_trials = 1, .train_steps = 2});
  // Without any it is written as it was before there were warnings.
  CHECK_FALSE(json_in(export_archive(study, folder / "plain") + "/8/study.json")["cohort"].contains("warnings"));

  study.warnings = {"it is biased", "\xc3\xa4 \"quoted\""};
  const std::string workload = export_archive(study, folder / "warned"), path = workload + "/64/study.json";
  CHECK(import_archive(folder / "warned").at(0).warnings == study.warnings);
  CHECK(import_batch(workload + "/8").warnings == study.warnings);
  Json json = json_in(path);
  json["cohort"]["warnings"] = {"it is biased", "another"};
  write_file_atomically(path, json.dump());
  study.warnings.push_back("another");
  CHECK(import_archive(folder / "warned").at(0).warnings == study.warnings);

  for (const Json& bad : {Json("text"), Json::array({1}), Json()}) {
    json["cohort"]["warnings"] = bad;
    write_file_atomically(path, json.dump());
    CHECK(error_of([&] { import_archive(folder / "warned"); }).rfind(path + ": ", 0) == 0);
  }
}

}  // namespace
}  // namespace cohort::study
