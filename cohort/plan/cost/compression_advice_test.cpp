#include "cohort/plan/cost/compression_advice.h"

#include <doctest/doctest.h>

#include <vector>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

/// 12.9 MB of gradients, 2 ranks.
std::vector<CompressionCost> costs() {
  return {{"none", 0, {12900000, 2}},   {"fp16", 8e-3, {6450000, 2}},     {"bf16", 3e-3, {6450000, 2}},
          {"int8", 2e-3, {3280000, 2}}, {"topk:0.01", 4e-3, {258000, 2}}, {"powersgd:4", 7e-3, {130000, 4}}};
}

double predicted(const AdviceRecord& advice, const std::string& compress) {
  for (const AdviceRecord::Row& row : advice.rows)
    if (row.compress == compress) return row.predicted_step_seconds;
  FAIL(compress);
  return 0;
}

TEST_CASE("advice: on a slow link compression pays") {
  // 12.5 MB/s: 1.032 s of exchange and 1 ms for each of the two buckets; all but 0.05 s of it shows.
  const LinkEstimate link{1e-3, 12.5e6};
  const AdviceRecord advice = advise({1.40, 0.984}, link, costs());
  CHECK(advice.rows.size() == 6);
  CHECK(predicted(advice, "none") == doctest::Approx(1.40));
  CHECK(predicted(advice, "int8") == doctest::Approx(0.416 + 0.002 + (0.2624 + 0.002 - 0.05)));
  CHECK(predicted(advice, "topk:0.01") == doctest::Approx(0.416 + 0.004));  // What is left of the exchange hides.
  CHECK(advice.rows[3].sent_bytes == 3280000);
  CHECK(advice.sentence ==
        "compress=int8 would pay on this link (100 Mbit/s): predicted step 632.4 ms against 1.4 s now; topk:0.01 420.0 ms, at some loss of "
        "convergence speed");
}

TEST_CASE("advice: in shared memory it does not") {
  const AdviceRecord advice = advise({32e-3, 0.4e-3}, {1e-6, 15e9}, costs());
  CHECK(predicted(advice, "none") == doctest::Approx(32e-3));
  CHECK(predicted(advice, "int8") > 33e-3);
  CHECK(advice.sentence ==
        "compression does not pay here: the exchange shows for 400.0 us of 32.0 ms, and compressing 12.3 MiB to 3.1 MiB with int8 alone "
        "would take 2.0 ms");
}

TEST_CASE("advice: waiting for slower ranks is not the link's and stays") {
  // The link needs 12.9 ms, the step waits 100 ms.
  const AdviceRecord advice = advise({0.3, 0.1}, {0, 1e9}, costs());
  CHECK(predicted(advice, "topk:0.01") == doctest::Approx(0.3 - 0.0129 + 0.004 + 0.000258));
  CHECK(advice.sentence.find("does not pay") != std::string::npos);
}

TEST_CASE("advice: of a compression in use, what the step would take without it") {
  // The step of the first case with int8: what was predicted there, taken for a measurement, leads back to the step without.
  const LinkEstimate link{1e-3, 12.5e6};
  const double with_int8 = 0.416 + 0.002 + (0.2624 + 0.002 - 0.05);
  const AdviceRecord pays = advise({with_int8, with_int8 - 0.416, "int8"}, link, costs());
  CHECK(predicted(pays, "int8") == with_int8);
  CHECK(predicted(pays, "none") == doctest::Approx(1.40));
  CHECK(pays.sentence == "compress=int8 pays on this link (100 Mbit/s): 632.4 ms a step, against a predicted 1.4 s without it");
  const AdviceRecord not_here = advise({20e-3, 4e-3, "int8"}, {1e-6, 15e9}, costs());
  CHECK(predicted(not_here, "none") == doctest::Approx(20e-3 - 4e-3 + 2e-3 - 2.2e-4 - 2e-6 + 8.6e-4 + 2e-6).epsilon(1e-3));
  CHECK(not_here.sentence.starts_with("compress=int8 does not pay on this link (120 Gbit/s): predicted step 18"));
  CHECK(advise({32e-3, 2e-3, "int8"}, {1e-3, 8e9}, costs()).sentence.starts_with("compress=int8 changes little"));
  CHECK_THROWS_AS(advise({1, 0.5, "topk:0.5"}, link, costs()), Error);
}

TEST_CASE("advice: where only strong compression pays, that is said; one rank needs none") {
  const std::vector<CompressionCost> slow_int8 = {{"none", 0, {1000000, 1}}, {"int8", 1.0, {250000, 1}}, {"powersgd:4", 0.1, {1000, 2}}};
  CHECK(advise({1.5, 1.0}, {0, 1e6}, slow_int8).sentence ==
        "compress=powersgd:4 would pay on this link (8 Mbit/s): predicted step 601.0 ms against 1.5 s now, at some loss of convergence "
        "speed");
  CHECK(advise({1, 0}, {}, costs()).sentence == "compression does not pay here: one rank exchanges nothing");
  CHECK(advise({2, 1}, {0, 1e6}, {{"none", 0, {1000000, 1}}}).sentence ==
        "compression does not pay here: the exchange shows for 1.0 s of 2.0 s");
  CHECK_THROWS_AS(advise({1, 0}, {}, {}), Error);
}

}  // namespace
}  // namespace cohort
