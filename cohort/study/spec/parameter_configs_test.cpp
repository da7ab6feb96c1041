#include "cohort/study/spec/parameter_configs.h"

#include <doctest/doctest.h>

#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/study/archive/archive.h"
#include "tests/support/archives.h"
#include "tests/support/made_up_study.h"

namespace cohort::study {
namespace {

TEST_CASE("archive: an optimizer has the authors' name in files and ours in memory, and other names stay") {
  const TemporaryFolder folder;
  StudyData study = made_up::make_study(400, 100, 1, 2, 1);
  study.batches.resize(3);
  study.optimizer = "nesterov";
  const std::string batch = export_archive(study, folder.path()) + "/8";
  CHECK(Json::parse(read_small_file(batch + "/study.json", 1 << 20))["optimizer"] == "nesterov_momentum");
  study.optimizer = "momentum";
  CHECK(export_archive(study, folder.path()) == folder / "made-up/none/momentum");
  // Archives of earlier versions have our own name in them.
  std::string own = read_small_file(batch + "/study.json", 1 << 20);
  write_file_atomically(batch + "/study.json", own.replace(own.find("nesterov_momentum"), 17, "nesterov"));
  const std::vector<StudyData> read = import_archive(folder.path());  // The workload's other batch sizes have theirs.
  REQUIRE(read.size() == 2);
  CHECK(read[0].optimizer == "momentum");
  CHECK(read[1].optimizer == "nesterov");
  CHECK(read[1].batches.size() == 3);
}

TEST_CASE("archive: names there and back") {
  CHECK(archive_parameter("decay_steps") == "learning_rate_decay_steps");
  CHECK(our_parameter("end_learning_rate_factor") == "end_factor");
  CHECK(our_optimizer("nesterov_momentum") == "nesterov");
  for (const char* name : {"learning_rate", "momentum", "decay_steps", "end_factor"}) CHECK(our_parameter(archive_parameter(name)) == name);
  for (const char* name : {"sgd", "momentum", "nesterov", "adamw"}) CHECK(our_optimizer(archive_optimizer(name)) == name);
}

}  // namespace
}  // namespace cohort::study
