#include "cohort/train/metrics.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "tests/support/text.h"

namespace cohort {

namespace {

std::string of_events(const std::string& run) {
  std::string all;
  for (const auto& entry : std::filesystem::directory_iterator(run + "/events")) all += read_small_file(entry.path().string(), 1 << 20);
  return all;
}

}  // namespace

TEST_CASE("metrics: a run that ends again has each line of its end once, in every file") {
  const TemporaryFolder folder;
  const std::string run = folder.path();
  const auto end = [&](const ResumedAt& resumed) {
    Metrics metrics(run, resumed, /*to_stdout=*/false, /*has_labels=*/false);
    if (resumed.step == 0)
      for (int64_t step = 1; step <= 3; ++step) metrics.step({.step = step, .loss = 1.5});
    metrics.evaluation({.step = 3, .val_loss = 0.5, .val_error = 0.25});
    metrics.event(AdviceRecord{.sentence = "none"});
    metrics.event(WasteRecord{.sentence = "none"});
    metrics.event(SyncAdviceRecord{.sentence = "none"});
    metrics.finish();
  };
  end({});
  // The process was killed here; nothing is left to train.
  end({.step = 3, .evaluates_again = true});
  end({.step = 3, .evaluates_again = true});
  const std::string lines = read_small_file(run + "/metrics.jsonl", 1 << 20);
  for (const char* const event : {"eval", "exchange_advice", "waste", "sync_advice"})
    CHECK(count(lines, concat("\"event\":\"", event, "\"")) == 1);
  CHECK(count(lines, "\"event\":\"step\"") == 3);
  CHECK(count(read_small_file(run + "/metrics.csv", 1 << 20), "\n3,") == 2);  // The step, and its evaluation.
  CHECK(count(of_events(run), "validation/loss") == 1);
  // A run that trains on keeps its evaluation, and loses what came after.
  Metrics(run, {.step = 2}, false, false).finish();
  const std::string cut = read_small_file(run + "/metrics.jsonl", 1 << 20);
  CHECK(count(cut, "\"event\":\"step\"") == 2);
  CHECK(count(cut, "\"event\":\"eval\"") == 0);
}

}  // namespace cohort
