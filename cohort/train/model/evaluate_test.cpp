#include "cohort/train/model/evaluate.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/data/source/source.h"
#include "cohort/models/metric/metrics.h"
#include "cohort/models/registry.h"
#include "cohort/train/model/batch_tensors.h"
#include "tests/support/thread_ranks.h"

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

TEST_CASE("mistakes: the surest first, the same for chunks of any size on any number of ranks") {
  const DataSet data = open_data("synthetic:1x8x8,classes=4,samples=300,noise=3");
  const int64_t num_samples = data.validation->num_samples();
  const auto model = build_model("fc:hidden=10", data.train->shape(), 1);
  Group alone;
  const Evaluation all = evaluate(*model, *data.validation, alone,
                                  {.batch_size = num_samples, .with_confusion = true, .num_mistakes = static_cast<int>(num_samples)});
  CHECK(static_cast<double>(all.mistakes.size()) == doctest::Approx(all.error * static_cast<double>(num_samples)));
  REQUIRE(all.mistakes.size() > 6);
  // What they say is so.
  std::vector<std::vector<int64_t>> counts(4, std::vector<int64_t>(4));
  for (size_t i = 0; i < all.mistakes.size(); ++i) {
    const Mistake& each = all.mistakes[i];
    if (i > 0) CHECK(all.mistakes[i - 1].probability >= each.probability);
    Batch batch;
    data.validation->read({&each.sample, 1}, batch);
    CHECK(batch.targets[0] == each.label);
    const BatchTensors tensors = as_tensors(batch, data.validation->shape());
    const at::Tensor odds = model->forward(tensors.input).softmax(-1, at::kDouble);
    CHECK(odds.argmax().item<int64_t>() == each.predicted);
    CHECK(odds.max().item<double>() == doctest::Approx(each.probability).epsilon(1e-4));
    ++counts[static_cast<size_t>(each.label)][static_cast<size_t>(each.predicted)];
  }
  for (size_t label = 0; label < 4; ++label) counts[label][label] = all.confusion[label][label];
  CHECK(counts == all.confusion);
  const auto samples_of = [](const Evaluation& evaluation) {
    std::vector<int64_t> samples;
    for (const Mistake& each : evaluation.mistakes) samples.push_back(each.sample);
    return samples;
  };
  std::vector<int64_t> first = samples_of(all);
  first.resize(5);
  CHECK(samples_of(evaluate(*model, *data.validation, alone, {.batch_size = 7, .num_mistakes = 5})) == first);
  CHECK(evaluate(*model, *data.validation, alone, {.batch_size = 7}).mistakes.empty());
  run_thread_ranks(3, [&](Group& group) {
    const auto own = build_model("fc:hidden=10", data.train->shape(), 1);
    const Evaluation shared =
        evaluate(*own, *data.validation, group, {.batch_size = 4, .num_mistakes = 5, .index = group.rank(), .count = group.size()});
    if (samples_of(shared) != first || shared.error != all.error) throw std::runtime_error("ranks found other mistakes than one does");
  });
}

TEST_CASE("a regression: the loss is the mean squared error, the error its root, chunks of any size, on any number of ranks") {
  const TemporaryFolder folder;
  std::string text = "a,b,y\n";
  for (int i = 0; i < 60; ++i) text += concat(i, ",", i * i % 17, ",", 3 * i - 5, "\n");
  write_file_atomically(folder / "t.csv", text);
  const DataSet data = open_data("csv:" + (folder / "t.csv") + ",target=y,task=regression", {.validation_samples = 25});
  const auto model = build_model("fc:hidden=10", data.train->shape(), 1);
  CHECK(model->loss_name() == "mse");
  // By hand, one sample after the other.
  double squares = 0;
  for (int64_t i = 0; i < 25; ++i) {
    Batch batch;
    data.validation->read({&i, 1}, batch);
    const BatchTensors tensors = as_tensors(batch, data.train->shape());
    CHECK(tensors.target.sizes() == at::IntArrayRef({1, 1}));
    squares += std::pow(model->forward(tensors.input).item<double>() - static_cast<double>(batch.numbers[0]), 2);
  }
  for (const int64_t size : {int64_t{1}, int64_t{7}, int64_t{25}}) {
    run_thread_ranks(2, [&](Group& group) {
      const auto own = build_model("fc:hidden=10", data.train->shape(), 1);
      const Evaluation found = evaluate(*own, *data.validation, group,
                                        {.batch_size = size, .with_confusion = true, .index = group.rank(), .count = group.size()});
      if (std::abs(found.loss - squares / 25) > 1e-5 || std::abs(found.error - std::sqrt(squares / 25)) > 1e-5 || !found.confusion.empty())
        throw std::runtime_error(concat("loss ", found.loss, ", error ", found.error, ", by hand ", squares / 25));
    });
  }
  CHECK(gives_scores(*model, *data.validation));
  const auto wide = build_model("fc:hidden=10", DataShape{DataShape::Kind::kImage, {2}, 3, {}, true}, 1);
  Group alone;
  CHECK_THROWS_WITH_AS(evaluate(*wide, *data.validation, alone, {}),
                       doctest::Contains("as many numbers for a sample as the data has to predict"), Error);
}

TEST_CASE("labels: loss, wrong decisions and average precision, the same for chunks of any size on any number of ranks") {
  const DataSet data = open_data("synthetic:1x8x8,labels=3,samples=300,noise=3");
  const int64_t num_samples = data.validation->num_samples();
  const auto model = build_model("fc:hidden=10", data.train->shape(), 1);
  CHECK(model->loss_name() == "binary");
  // By hand: scores of all samples, then each label's average precision.
  std::vector<std::vector<float>> scores(3), targets(3);
  double loss = 0, wrong = 0;
  for (int64_t i = 0; i < num_samples; ++i) {
    Batch batch;
    data.validation->read({&i, 1}, batch);
    const BatchTensors tensors = as_tensors(batch, data.train->shape());
    CHECK(tensors.target.sizes() == at::IntArrayRef({1, 3}));
    const at::Tensor output = model->forward(tensors.input);
    for (size_t k = 0; k < 3; ++k) {
      const float score = output[0][static_cast<int64_t>(k)].item<float>(), target = batch.numbers[k];
      scores[k].push_back(score), targets[k].push_back(target);
      wrong += (score > 0) != (target == 1);
      loss += std::log1p(std::exp(static_cast<double>(target == 1 ? -score : score)));
    }
  }
  double precision = 0;
  for (size_t k = 0; k < 3; ++k) precision += average_precision(scores[k], targets[k]).value() / 3;
  const auto count = static_cast<double>(3 * num_samples);
  for (const int64_t size : {int64_t{1}, int64_t{7}, num_samples + 1}) {
    run_thread_ranks(3, [&](Group& group) {
      const auto own = build_model("fc:hidden=10", data.train->shape(), 1);
      const Evaluation found =
          evaluate(*own, *data.validation, group,
                   {.batch_size = size, .with_confusion = true, .num_mistakes = 4, .index = group.rank(), .count = group.size()});
      if (std::abs(found.loss - loss / count) > 1e-5 || found.error != wrong / count || std::abs(found.precision - precision) > 1e-9 ||
          !found.confusion.empty() || !found.mistakes.empty() || found.num_targets != 3 * num_samples)
        throw std::runtime_error(concat("loss ", found.loss, ", error ", found.error, ", precision ", found.precision, ", by hand ",
                                        loss / count, ", ", wrong / count, ", ", precision));
    });
  }
  // Of a loss of the model's own on something else nothing but the loss is known.
  const auto wide = build_model("fc:hidden=10", DataShape{.input = {1, 8, 8}, .num_classes = 4}, 1);
  wide->set_loss([](const at::Tensor& output, const at::Tensor&) { return output.mean(); });
  Group alone;
  const Evaluation unknown = evaluate(*wide, *data.validation, alone, {});
  CHECK(!unknown.has_error());
  CHECK(!unknown.has_precision());
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
