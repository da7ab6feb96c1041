// Damaged metrics: a report or a refusal of one line, never anything else.

#include <doctest/doctest.h>

#include <fstream>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/report/run_reader.h"
#include "tests/support/mutation.h"

namespace cohort::report {
namespace {

constexpr char kMetrics[] =
    R"({"event":"start","world_size":2,"layout":{"dp":2,"pp":1,"sync":"step","zero":1},"parameters":7,"train_samples":60000}
{"event":"forecast","source":"p","predicted_step_seconds":0.5,"interval":[0.4,0.6],"workers":[{"ranks":[0,1],"forward_seconds":0.1,"memory_bytes":{"total":7}}]}
{"event":"step","step":1,"loss":1.5,"step_seconds":0.5,"samples_per_second":256,"data_seconds":0.1,"gradient_norm":null}
{"event":"step","step":2,"loss":1.25,"step_seconds":0.5,"samples_per_second":256}
{"event":"eval","step":2,"val_loss":0.4,"val_error":0.1}
{"event":"checkpoint","step":2,"path":"checkpoints/step-000000002"}
{"event":"ranks","ranks":[{"rank":1,"host":"h","pid":12,"samples":256,"compute_seconds":0.3,"peak_memory_bytes":5}]}
{"event":"confusion","step":2,"classes":["a","b"],"counts":[[1,2],[3,4]]}
{"event":"done","step":2,"loss":null,"val_loss":0.4,"val_error":0.1,"seconds":9,"predicted_step_seconds":null,"measured_step_seconds":0.5,"peak_memory_bytes":[5,6],"run":"r"}
)";

TEST_CASE("mutation: metrics") {
  const TemporaryFolder folder;
  int read = 0, refused = 0;
  const auto take = [&](const std::string& text) {
    std::ofstream(folder / "metrics.jsonl", std::ios::binary | std::ios::trunc) << text;
    try {
      read_run(folder.path());
      ++read;
    } catch (const Error& error) {
      const std::string what = error.what();
      REQUIRE_MESSAGE(error.code() == ErrorCode::kBadInput, what);
      REQUIRE_MESSAGE(what.find('\n') == std::string::npos, what);
      ++refused;
    }
  };
  const std::string whole = kMetrics;
  for (uint64_t seed = 1; seed <= 3000; ++seed) take(mutated(whole, seed));
  for (uint64_t seed = 1; seed <= 500; ++seed) take(whole + mutated(whole, seed));  // A run that went on.
  take("{\"event\":\"start\",\"layout\":" + std::string(100'000, '['));
  take(R"({"event":"confusion","step":2,"classes":["a"],"counts":[[1e400]]})");
  take(R"({"event":"step","step":99999999999999999999,"loss":1})");
  CHECK(read > 100);
  CHECK(refused > 500);
}

}  // namespace
}  // namespace cohort::report
