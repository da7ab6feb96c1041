// Costs between and beyond the sizes that were measured.

#include "cohort/plan/profile/model_profile.h"

#include <doctest/doctest.h>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "tests/support/errors.h"

namespace cohort {
namespace {

/// Two layers, the second divides by 4.
ModelProfile two_layers() {
  ModelProfile profile{"m", "by hand", {}, {{-1, 0}, {0, 1}}, {}, {}};
  profile.layers = {{"a", "conv2d", 10, 3, 16, OutputKept::kByReaders, 1, 0}, {"b", "linear", 9, 0, 0, OutputKept::kNo, 4, 1}};
  return profile;
}

/// Costs of both layers: (forward, backward input, backward weight) = seconds x (1, 2, 3).
ProfilePoint point_of(const std::string& device, const std::string& precision, int tp, int64_t micro_batch, double a, double b,
                      int64_t stash_bytes, int64_t output_bytes) {
  return {device, precision, tp, micro_batch, {{a, 2 * a, 3 * a, 0.5, 2, stash_bytes, output_bytes}, {b, 2 * b, 3 * b, 1, 1, 0, 7}}};
}

TEST_CASE("profile_at: as measured, between two sizes, and beyond them") {
  ModelProfile profile = two_layers();
  profile.points = {point_of("", "fp32", 1, 2, 1.0, 5.0, 10, 100), point_of("", "fp32", 1, 4, 2.0, 4.0, 21, 200),
                    point_of("", "fp32", 1, 7, 8.0, 3.0, 20, 200)};
  const auto at = [&](int64_t micro_batch) { return profile_at(profile, {"any", "fp32", 1, micro_batch}); };
  CHECK(measured_micro_batches(profile, {"any", "fp32", 1, 1}) == std::vector<int64_t>{2, 4, 7});

  const Profile four = at(4);
  CHECK(four.model == "m");
  CHECK(four.micro_batch == 4);
  CHECK(four.edges == profile.edges);
  CHECK(four.layers[0].name == "a");
  CHECK(four.layers[1].kind == "linear");
  CHECK(four.layers[0].forward_seconds == 2);
  CHECK(four.layers[0].backward_input_seconds == 4);
  CHECK(four.layers[0].backward_weight_seconds == 6);
  CHECK(four.layers[0].stash_bytes == 21);
  CHECK(four.layers[0].output_kept == OutputKept::kByReaders);
  CHECK(four.layers[0].weight_bytes == 4 * 13);
  CHECK(four.layers[1].weight_bytes == 4 * 9);
  CHECK(four.layers[1].output_bytes == 7);
  CHECK(four.link_latency_seconds == 0);
  CHECK(four.link_bytes_per_second == 0);

  CHECK(at(3).layers[0].forward_seconds == 1.5);
  CHECK(at(3).layers[1].forward_seconds == 4.5);  // It fell: as measured.
  CHECK(at(3).layers[0].stash_bytes == 16);       // 15.5 rounded up,
  CHECK(at(5).layers[0].stash_bytes == 21);       // and 20.67, on a line that falls.
  CHECK(at(6).layers[0].stash_bytes == 21);
  CHECK(at(5).layers[0].forward_seconds == 4);
  CHECK(at(6).layers[0].backward_weight_seconds == 18);

  CHECK(at(1).layers[0].forward_seconds == 0.5);  // On the line, which goes through 0.
  CHECK(at(1).layers[0].stash_bytes == 5);        // 4.5 on the line; half of 10.
  CHECK(at(1).layers[0].output_bytes == 50);
  CHECK(at(1).layers[1].forward_seconds == 5);   // The line falls: level.
  CHECK(at(9).layers[0].forward_seconds == 12);  // 8 + 2 x 2.
  CHECK(at(9).layers[1].forward_seconds == 3);
  CHECK(at(9).layers[0].stash_bytes == 20);
  CHECK(at(9).layers[0].output_bytes == 200);

  profile.points.erase(profile.points.begin());
  CHECK(at(3).layers[0].forward_seconds == 1.5);  // The line has 0 at 3; in proportion to 4.
  CHECK(at(1).layers[0].forward_seconds == 0.5);
  profile.points.pop_back();  // One size: in proportion.
  CHECK(at(8).layers[0].forward_seconds == 4);
  CHECK(at(1).layers[1].backward_input_seconds == 2);
  CHECK(at(1).layers[0].stash_bytes == 6);  // 5.25 rounded up.
  CHECK(at(INT64_C(1) << 30).layers[0].output_bytes == 200 * (INT64_C(1) << 28));
  profile.points[0].layers[0].output_bytes = INT64_C(1) << 40;
  CHECK(at(INT64_C(1) << 30).layers[0].output_bytes == INT64_C(1) << 44);
  check_profile(at(INT64_C(1) << 30));
}

TEST_CASE("profile_at: beyond the sizes nothing is negative and nothing falls") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    ModelProfile profile = two_layers();
    int64_t micro_batch = 0;
    for (uint64_t i = 0; i < 1 + seed % 4; ++i) {
      micro_batch += 1 + static_cast<int64_t>(random_bits(seed, i) % 9);
      profile.points.push_back(point_of("", "fp32", 1, micro_batch, unit_interval(random_bits(seed, i, 1)),
                                        unit_interval(random_bits(seed, i, 2)), static_cast<int64_t>(random_bits(seed, i, 3) % 1000), 5));
    }
    const int64_t first = profile.points.front().micro_batch;
    Profile last;
    for (int64_t size = 1; size <= micro_batch + 20; ++size) {
      const Profile now = profile_at(profile, {"", "fp32", 1, size});
      check_profile(now);
      if (size > 1 && (size <= first || size > micro_batch)) {
        for (size_t i = 0; i < 2; ++i) {
          CHECK(now.layers[i].forward_seconds >= last.layers[i].forward_seconds);
          CHECK(now.layers[i].stash_bytes >= last.layers[i].stash_bytes);
          CHECK(now.layers[i].output_bytes >= last.layers[i].output_bytes);
        }
      }
      last = now;
    }
  }
}

TEST_CASE("points: by device, precision and tp; a device's own go before those of any") {
  ModelProfile profile = two_layers();
  profile.points = {point_of("", "bf16", 1, 1, 1, 1, 0, 0),     point_of("", "fp32", 1, 1, 2, 1, 0, 0),
                    point_of("", "fp32", 2, 1, 3, 1, 0, 0),     point_of("", "fp32", 4, 1, 4, 1, 0, 0),
                    point_of("fast", "fp32", 1, 1, 5, 1, 0, 0), point_of("fast", "fp32", 1, 8, 6, 1, 0, 0)};
  const auto first = [&](const ProfileKey& key) { return profile_at(profile, key).layers[0].forward_seconds; };
  CHECK(first({"", "bf16", 1, 1}) == 1);
  CHECK(first({"slow", "fp32", 1, 1}) == 2);
  CHECK(first({"slow", "fp32", 2, 1}) == 3);
  CHECK(first({"fast", "fp32", 1, 1}) == 5);
  CHECK(first({"fast", "fp32", 2, 1}) == 3);
  CHECK(first({"fast", "bf16", 1, 1}) == 1);
  CHECK(measured_micro_batches(profile, {"fast", "fp32", 1, 1}) == std::vector<int64_t>{1, 8});
  CHECK(measured_micro_batches(profile, {"fast", "fp16", 1, 1}).empty());
  CHECK(has_points(profile, {"fast", "fp32", 4, 1}));
  CHECK_FALSE(has_points(profile, {"fast", "fp32", 3, 1}));
  CHECK_FALSE(has_points(profile, {"", "fp16", 1, 1}));

  // Elements over tp where 4 parts divide by it.
  CHECK(profile_at(profile, {"", "fp32", 2, 1}).layers[0].weight_bytes == 4 * 13);
  CHECK(profile_at(profile, {"", "fp32", 2, 1}).layers[1].weight_bytes == 4 * 5);
  CHECK(profile_at(profile, {"", "fp32", 4, 1}).layers[1].weight_bytes == 4 * 3);
  CHECK(profile.num_trained() == 19);

  CHECK(error_or_none([&] { first({"fast", "fp16", 1, 1}); }) ==
        "profile: no costs for fp16, tp=1, device fast; it has them for: bf16, tp=1; fp32, tp=1; fp32, tp=1, device fast; fp32, tp=2; "
        "fp32, tp=4");
  CHECK(error_or_none([&] { first({"", "fp32", 1, 0}); }).find("micro-batch 0") != std::string::npos);
  profile.points[1].layers.pop_back();
  CHECK(error_or_none([&] { first({"", "fp32", 1, 1}); }).find("1 costs of 2 layers") != std::string::npos);
}

TEST_CASE("interval_at: seconds x low and seconds x high over seconds") {
  ModelProfile profile = two_layers();
  profile.points = {point_of("", "fp32", 1, 1, 1, 3, 0, 0), point_of("", "fp32", 1, 3, 2, 2, 0, 0)};
  profile.points[1].layers[0].low = 0.9, profile.points[1].layers[0].high = 1;
  const auto at = [&](int64_t micro_batch) { return interval_at(profile, {"", "fp32", 1, micro_batch}); };
  CHECK(at(1).first == doctest::Approx((0.5 * 6 + 18) / 24));
  CHECK(at(1).second == doctest::Approx((2.0 * 6 + 18) / 24));
  CHECK(at(2).first == doctest::Approx((0.7 * 9 + 15) / 24));  // Halfway: 1.5 x 6 and 2.5 x 6 seconds.
  CHECK(at(2).second == doctest::Approx((1.5 * 9 + 15) / 24));
  CHECK(at(5).first == doctest::Approx((0.9 * 18 + 12) / 30));
  CHECK(at(5).second == 1);
  for (ProfilePoint& point : profile.points)
    for (LayerCost& layer : point.layers) layer.forward_seconds = layer.backward_input_seconds = layer.backward_weight_seconds = 0;
  CHECK(at(1) == std::pair(1.0, 1.0));
}

}  // namespace
}  // namespace cohort
