#include "cohort/plan/cost/pipeline_forecast.h"

#include <doctest/doctest.h>

#include "cohort/base/text/json.h"
#include "cohort/record/run_event.h"

namespace cohort {
namespace {

/// Four layers a, b, c, d in a row, where d reads a too; each takes 1, 2 and 3 seconds and hands on 8 bytes.
struct Four {
  Profile profile;

  Four() {
    for (const char* name : {"a", "b", "c", "d"}) {
      LayerProfile one{name, "f", 1, 2, 3};
      one.output_bytes = 8;
      profile.layers.push_back(one);
    }
    profile.edges = {{-1, 0}, {0, 1}, {1, 2}, {0, 3}, {2, 3}};
  }
};

TEST_CASE("pipeline forecast: equal stages have the bubble of the formula") {
  const Four four;
  const PipelineRecord forecast = forecast_pipeline(four.profile, parse_layout("pp=2,microbatches=3", 2), {{0, 0, 1, 1}, {0, 1}}, {});
  CHECK(forecast.predicted_step_seconds == doctest::Approx((3 + 1) * 12));  // (m + p - 1) x (2 + 10) seconds of a stage.
  CHECK(forecast.predicted_bubble == doctest::Approx(1.0 / 4));
  REQUIRE(forecast.stages.size() == 2);
  CHECK(forecast.stages[1].layers == std::vector<std::string>{"c", "d"});
  CHECK(forecast.stages[1].worker == 1);
  CHECK(forecast.stages[1].forward_seconds == 2);
  CHECK(forecast.stages[1].backward_input_seconds == 4);
  CHECK(forecast.stages[1].backward_weight_seconds == 6);
  CHECK(describe(forecast) ==
        "stage 0 on worker 0: forward 2000.000 ms, backward 10000.000 ms; a b\n"
        "stage 1 on worker 1: forward 2000.000 ms, backward 10000.000 ms; c d\n");
}

TEST_CASE("pipeline forecast: hand-overs cost time both ways, all values of an edge") {
  Four four;
  four.profile.link_latency_seconds = 0.5;
  four.profile.link_bytes_per_second = 16;
  const PipelineRecord one = forecast_pipeline(four.profile, parse_layout("pp=2,microbatches=1", 2), {{0, 0, 1, 1}, {0, 1}}, {});
  CHECK(one.predicted_step_seconds == doctest::Approx(24 + 2 * (0.5 + 16.0 / 16)));  // a and b go over, and their gradients back.
}

TEST_CASE("pipeline forecast: recomputed layers run forward again; micro-batches go to replicas in turn") {
  const Four four;
  const PipelineRecord again =
      forecast_pipeline(four.profile, parse_layout("pp=2,microbatches=1", 2), {{0, 0, 1, 1}, {0, 1}}, {true, false, false, false});
  CHECK(again.predicted_step_seconds == doctest::Approx(25));
  const std::string stages = R"("stages":[{"layers":["a"]},{"layers":["b","c","d"],"dp":3}])";
  const PipelineRecord shared =
      forecast_pipeline(four.profile, parse_layout("{\"microbatches\":3," + stages + "}", 4), {{0, 1, 1, 1}, {0, 1}}, {});
  CHECK(shared.predicted_step_seconds < 3 * 18 + 6);  // What one rank for the second stage would take at least.
}

TEST_CASE("pipeline forecast: the event holds all of it") {
  const Four four;
  const PipelineRecord forecast =
      forecast_pipeline(four.profile, parse_layout("pp=2,schedule=zb-h1,microbatches=2", 2), {{0, 1, 1, 1}, {0, 1}}, {});
  const Json json = to_json(forecast);
  CHECK(json["event"] == "pipeline");
  CHECK(json["schedule"] == "zb-h1");
  CHECK(to_json(record_from<PipelineRecord>(json, "the plan")) == json);
}

}  // namespace
}  // namespace cohort
