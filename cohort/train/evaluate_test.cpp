#include "cohort/train/evaluate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "cohort/comm/thread_ranks.h"
#include "cohort/data/source.h"
#include "cohort/models/registry.h"

namespace cohort {

TEST_CASE("a chunk has the size of a step, within limits") {
  CHECK(evaluation_batch_size(64, 1) == 64);
  CHECK(evaluation_batch_size(1, 1) == 8);
  CHECK(evaluation_batch_size(4096, 1) == 250);
  CHECK(evaluation_batch_size(4096, 32) == 128);
}

TEST_CASE("chunks of any size, on any number of ranks, count every sample once") {
  const DataSet data = open_data("synthetic:1x8x8,classes=4,samples=300,noise=3");
  const int64_t num_samples = data.validation->num_samples();
  REQUIRE(num_samples > 20);
  const auto model = build_model("fc:hidden=10", data.train->shape(), 1);
  Group alone;
  const Evaluation whole = evaluate(*model, *data.validation, alone, {.batch_size = num_samples, .with_confusion = true});
  CHECK(whole.num_targets == num_samples);
  for (const int64_t size : {int64_t{1}, int64_t{7}, num_samples - 1, num_samples + 1}) {
    std::vector<int64_t> seen;
    EvaluationOptions options{.batch_size = size, .with_confusion = true};
    options.forward = [&](int64_t, const std::function<at::Tensor()>& input) {
      seen.push_back(input().size(0));
      return model->forward(input());
    };
    const Evaluation parts = evaluate(*model, *data.validation, alone, options);
    CHECK(*std::max_element(seen.begin(), seen.end()) == std::min(size, num_samples));
    CHECK(std::accumulate(seen.begin(), seen.end(), int64_t{0}) == num_samples);
    CHECK(parts.loss == doctest::Approx(whole.loss).epsilon(1e-6));
    CHECK(parts.error == whole.error);
    CHECK(parts.confusion == whole.confusion);
  }
  // More ranks than chunks, too.
  run_thread_ranks(3, [&](Group& group) {
    const auto own = build_model("fc:hidden=10", data.train->shape(), 1);
    for (const int64_t size : {int64_t{7}, num_samples - 1}) {
      const Evaluation shared = evaluate(*own, *data.validation, group,
                                         {.batch_size = size, .with_confusion = true, .index = group.rank(), .count = group.size()});
      if (shared.num_targets != num_samples || shared.confusion != whole.confusion || shared.error != whole.error)
        throw std::runtime_error("ranks counted other samples than one does");
    }
  });
}

}  // namespace cohort
