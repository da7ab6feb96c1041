#include "cohort/train/evaluate.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "cohort/base/fail.h"
#include "cohort/data/source.h"
#include "cohort/models/registry.h"
#include "cohort/testing/thread_ranks.h"
#include "cohort/train/batch_tensors.h"

namespace cohort {

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

TEST_CASE("a loss of the model's own is the mean over the samples, chunks of any size; without scores there is no error") {
  const DataSet data = open_data("synthetic:1x8x8,classes=4,samples=300,noise=3");
  const int64_t num_samples = data.validation->num_samples();
  Group alone;
  const auto model = build_model("fc:hidden=10", data.train->shape(), 1);
  const Evaluation plain = evaluate(*model, *data.validation, alone, {.batch_size = 7});
  model->set_loss([](const at::Tensor& output, const at::Tensor& target) { return cross_entropy(output, target) * 3; });
  for (const int64_t size : {int64_t{1}, int64_t{7}, num_samples}) {
    const Evaluation own = evaluate(*model, *data.validation, alone, {.batch_size = size, .with_confusion = true});
    CHECK(own.loss == doctest::Approx(3 * plain.loss).epsilon(1e-5));
    CHECK(own.error == plain.error);
    CHECK(own.confusion.size() == 4);
  }
  // Numbers, not scores; on ranks without a chunk too.
  model->set_loss([](const at::Tensor& output, const at::Tensor&) { return output.sum() * 0 + 5; });
  run_thread_ranks(3, [&](Group& group) {
    EvaluationOptions options{.batch_size = num_samples - 1, .with_confusion = true, .index = group.rank(), .count = group.size()};
    options.forward = [&](int64_t, const std::function<at::Tensor()>& input) { return input().flatten(1).sum(1); };
    const Evaluation numbers = evaluate(*model, *data.validation, group, options);
    if (numbers.loss != 5 || numbers.has_error() || !numbers.confusion.empty())
      throw std::runtime_error("an error where there are no scores");
  });
}

TEST_CASE("a loss of the model's own is one number") {
  const auto model = std::make_shared<LayerGraph>();
  const at::Tensor output = at::ones({3, 2}), target = at::zeros({3}, at::kLong);
  const auto refusal = [&](const LayerGraph::Loss& loss) -> std::string {
    model->set_loss(loss);
    try {
      mean_loss(*model, output, target);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kBadInput);
      return error.what();
    }
    return "";
  };
  CHECK(refusal([](const at::Tensor& o, const at::Tensor&) { return o.sum(); }) == "");
  CHECK(refusal([](const at::Tensor& o, const at::Tensor&) { return o.sum().reshape({1, 1}); }) == "");
  CHECK(refusal([](const at::Tensor& o, const at::Tensor&) { return o; }).find("gives 6 numbers of type Float") != std::string::npos);
  CHECK(refusal([](const at::Tensor&, const at::Tensor& t) { return t.sum(); }).find("of type Long") != std::string::npos);
  CHECK(refusal([](const at::Tensor&, const at::Tensor&) { return at::Tensor(); }).find("gives no tensor") != std::string::npos);
}

}  // namespace cohort
