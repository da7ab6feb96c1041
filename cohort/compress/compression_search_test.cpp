#include "cohort/compress/compression_search.h"

#include <doctest/doctest.h>

namespace cohort {
namespace {

TriedCompression tried(double error, int64_t bytes, double seconds = 1) {
  return {.model = "m", .way = "w", .measured = MeasuredModel{.error = error, .bytes = bytes, .seconds_batch_1 = seconds}, .reason = ""};
}

TEST_CASE("compression search: no model on the front is beaten in both") {
  std::vector<TriedCompression> all = {tried(0.10, 400), tried(0.12, 100), tried(0.11, 100),
                                       tried(0.10, 300), tried(0.30, 50),  tried(0.31, 60)};
  all.push_back({.model = "m", .way = "none", .measured = {}, .reason = "no such layer"});
  judge(all, {});
  const std::vector<bool> front = {false, false, true, true, true, false, false};
  for (size_t i = 0; i < all.size(); ++i) {
    CAPTURE(i);
    CHECK(all[i].is_on_front == front[i]);
  }
}

TEST_CASE("compression search: the smallest within an error, the best within bytes, none that fits neither") {
  std::vector<TriedCompression> all = {tried(0.10, 400), tried(0.12, 100, 2), tried(0.12, 100, 1), tried(0.30, 50)};
  CHECK(judge(all, {.max_error = 0.12}) == 2);  // The quicker of two alike.
  CHECK(all[1].fits);
  CHECK_FALSE(all[3].fits);
  CHECK(judge(all, {.max_error = {}, .max_bytes = 90}) == 3);
  CHECK(judge(all, {.max_error = {}, .max_bytes = 1000}) == 0);
  CHECK(judge(all, {.max_error = 0.2, .max_bytes = 90}) == std::nullopt);
  CHECK(judge(all, {.max_error = 0.2, .max_bytes = 100}) == 2);
  all[2].is_original = true;
  CHECK(judge(all, {.max_error = 0.2, .max_bytes = 100}) == 1);
}

}  // namespace

}  // namespace cohort
