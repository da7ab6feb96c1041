#include "cohort/train/distil/teacher.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>

#include "cohort/data/source/source.h"
#include "cohort/job/specs/small_specs.h"
#include "cohort/models/registry.h"
#include "cohort/parallel/common/parameters.h"
#include "tests/support/errors.h"

namespace cohort {
namespace {

TEST_CASE("layer taps: what the layers gave in the newest forward, once, and the model is as it was") {
  const DataSet data = open_data("synthetic:1x8x8,classes=4,samples=20");
  const auto model = build_model("cnn:conv1=2,conv2=3,hidden=4", data.train->shape(), 1),
             plain = build_model("cnn:conv1=2,conv2=3,hidden=4", data.train->shape(), 1);
  const LayerTaps taps(*model, {"conv2", "conv1"}, "--hint");
  CHECK(!taps.take()[0].defined());
  const at::Tensor input = at::randn({5, 1, 8, 8});
  CHECK(at::equal(model->forward(input), plain->forward(input)));
  const std::vector<at::Tensor> outputs = taps.take();
  CHECK(at::equal(outputs[1], plain->run_layer(0, {input})));
  CHECK(outputs[0].size(1) == 3);
  CHECK(outputs[0].requires_grad());
  CHECK(!taps.take()[1].defined());
  const std::string sentence = error_of([&] { LayerTaps(*model, {"conv3"}, "--hint"); });
  CHECK(sentence.find("--hint: ") == 0);
  CHECK(sentence.find("did you mean") != std::string::npos);
}

TEST_CASE("layer taps: a layer behind one that works in place does not change what was seen") {
  LayerGraph model;
  model.add("twice", "other", [](const LayerGraph::Inputs& in) { return in[0] * 2; });
  model.add("relu", "relu", [](const LayerGraph::Inputs& in) { return in[0].relu_(); });
  const LayerTaps taps(model, {"twice"}, "--hint");
  const at::Tensor input = at::randn({5, 4}).requires_grad_(true);
  model.forward(input).sum().backward();
  CHECK(at::equal(taps.take()[0], input * 2));
}

TEST_CASE("student hints: outputs that cannot be compared are refused, and looking changes nothing") {
  const DataSet data = open_data("synthetic:1x8x8,classes=4,samples=20");
  const auto model =
      build_model("vgg11:width=2,hidden=4,norm=batch", open_data("synthetic:1x32x32,classes=4,samples=20").train->shape(), 1);
  const DataSet large = open_data("synthetic:1x32x32,classes=4,samples=20");
  const auto before = [&] {
    std::vector<at::Tensor> out;
    for (const NamedTensor& buffer : distinct_buffers(*model)) out.push_back(buffer.tensor.clone());
    return out;
  };
  const std::vector<at::Tensor> statistics = before();
  const std::string first = model->layers()[0].name;
  const StudentHints hints(*model, parse_hints(first + ":other"), *large.train);
  CHECK(model->is_training());
  const std::vector<at::Tensor> after = before();
  for (size_t i = 0; i < after.size(); ++i) CHECK(at::equal(after[i], statistics[i]));
  CHECK(hints.teacher_layers() == std::vector<std::string>{"other"});
  hints.check({at::randn({1, 7, 9, 9})});
  CHECK(error_of([&] { hints.check({at::randn({1, 7})}); }).find("--hint " + first + ":other: outputs for one sample") == 0);
  const auto flat = build_model("fc:hidden=6", data.train->shape(), 1);
  const StudentHints of_units(*flat, parse_hints(flat->layers().back().name + ":x"), *data.train);
  CHECK(error_of([&] { of_units.check({at::randn({1, 7})}); }).find("both must have positions") != std::string::npos);
}

}  // namespace

}  // namespace cohort
