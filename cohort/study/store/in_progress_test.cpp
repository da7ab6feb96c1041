#include "cohort/study/store/in_progress.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"

using namespace cohort;
using namespace cohort::study;

namespace {

Trial some_trial(int64_t id) {
  Trial trial;
  trial.id = id;
  trial.status = TrialStatus::kCensored;
  trial.steps = 77;
  trial.seconds = 0.1 + 0.2;
  trial.parameters = {{"learning_rate", 1.0 / 3}, {"momentum", std::nextafter(0.9, 1.0)}};
  for (int64_t step : {0, 1, 77}) {
    Measurement one;
    one.step = step;
    one.values[kValLoss] = 1 / (1.7 + static_cast<double>(step));
    one.values[kValError] = std::numeric_limits<double>::infinity();
    trial.measurements.push_back(one);
  }
  return trial;
}

}  // namespace

TEST_CASE("a trial survives its line bit for bit") {
  const Trial trial = some_trial(5);
  const Trial back = trial_from_json(Json::parse(to_json(trial).dump()), "test");
  CHECK(back.id == 5);
  CHECK(back.status == trial.status);
  CHECK(back.steps == 77);
  CHECK(back.seconds == trial.seconds);
  CHECK(back.parameters == trial.parameters);
  REQUIRE(back.measurements.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(back.measurements[i].step == trial.measurements[i].step);
    CHECK(std::bit_cast<uint64_t>(back.measurements[i].values[kValLoss]) ==
          std::bit_cast<uint64_t>(trial.measurements[i].values[kValLoss]));
    CHECK(std::isnan(back.measurements[i].values[kValError]));
  }
}

TEST_CASE("orders and bounds survive, with the largest numbers") {
  const TrialOrder order{512, 9, INT64_C(1) << 40, {{"learning_rate", 1e-300}}, ~uint64_t{0}, "DIR/\"quoted\"\n.snapshot"};
  const TrialOrder back = order_from_json(Json::parse(to_json(order).dump()), "test");
  CHECK(back.batch_size == 512);
  CHECK(back.train_steps == order.train_steps);
  CHECK(back.parameters == order.parameters);
  CHECK(back.seed == order.seed);
  CHECK(back.snapshot == order.snapshot);
  const TrialBound bound{kNever, {3, kNever}};
  CHECK(bound_from_json(Json::parse(to_json(bound).dump()), "test") == bound);
}

TEST_CASE("what is damaged is refused by name") {
  for (const char* text : {"{}", "[]", "3", R"({"id":1,"status":"COMPLETE","steps":1,"seconds":0,"parameters":{},"measurements":[[1,2]]})",
                           R"({"id":"x","status":"COMPLETE","steps":1,"seconds":0,"parameters":{},"measurements":[]})",
                           R"({"id":1,"status":"WHAT","steps":1,"seconds":0,"parameters":{},"measurements":[]})"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(trial_from_json(Json::parse(text), "this"), Error);
  }
  CHECK_THROWS_AS(order_from_json(Json::parse("{}"), "this"), Error);
  CHECK_THROWS_AS(bound_from_json(Json::parse("[]"), "this"), Error);
}

TEST_CASE("files of trials that ended: kept, read, and removed when no one wants them") {
  const TemporaryFolder folder;
  InProgress files(folder.path());
  files.keep(8, 100, some_trial(3));
  files.keep(8, 100, some_trial(4));
  files.keep(64, 200, some_trial(3));
  write_file_atomically(files.snapshot(8, 5, 100), "state");
  write_file_atomically(files.snapshot(8, 6, 100), "state");
  write_file_atomically(folder / "in_progress/8_5_100.snapshot.tmp.0123456789abcdef", "half");
  CHECK(files.read(8, 4, 100).id == 4);
  std::set<std::pair<int64_t, int64_t>> kept;
  files.restore([](int64_t batch_size, int64_t id, int64_t train_steps) { return batch_size == 8 && id != 6 && train_steps == 100; },
                [&](int64_t batch_size, const Trial& trial) { kept.insert({batch_size, trial.id}); });
  CHECK(kept == std::set<std::pair<int64_t, int64_t>>{{8, 3}, {8, 4}});
  CHECK(std::filesystem::exists(files.snapshot(8, 5, 100)));
  CHECK_FALSE(std::filesystem::exists(files.snapshot(8, 6, 100)));
  CHECK_FALSE(std::filesystem::exists(folder / "in_progress/64_3_200.trial"));
  CHECK_FALSE(std::filesystem::exists(folder / "in_progress/8_5_100.snapshot.tmp.0123456789abcdef"));
  files.remove(8, 3, 100);
  CHECK_THROWS_AS(files.read(8, 3, 100), Error);
  write_file_atomically(folder / "in_progress/8_9_100.trial", "{\"id\":");
  kept.clear();
  files.restore([](int64_t, int64_t, int64_t) { return true; },
                [&](int64_t batch_size, const Trial& trial) { kept.insert({batch_size, trial.id}); });
  CHECK(kept == std::set<std::pair<int64_t, int64_t>>{{8, 4}});
  CHECK_FALSE(std::filesystem::exists(folder / "in_progress/8_9_100.trial"));
  files.remove_all();
  CHECK_FALSE(std::filesystem::exists(folder / "in_progress"));
}
