#include "cohort/train/model/pruner.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "cohort/models/registry.h"
#include "tests/support/errors.h"

namespace cohort {
namespace {

double elements(const std::vector<int64_t>& shape) {
  double product = 1;
  for (const int64_t n : shape) product *= static_cast<double>(n);
  return product;
}

TEST_CASE("layers share a sparsity so that all together have it, large matrices more of it, and none less as it rises") {
  const std::vector<std::vector<int64_t>> shapes = {{64, 32, 5, 5}, {1024, 3136}, {10, 1024}, {1, 1}, {3, 7}};
  std::vector<double> before(shapes.size(), 0.0);
  for (const double sparsity : {0.001, 0.1, 0.5, 0.9, 0.99, 0.999}) {
    CAPTURE(sparsity);
    const std::vector<double> found = layer_sparsities(shapes, sparsity);
    REQUIRE(found.size() == shapes.size());
    double zeros = 0, all = 0;
    for (size_t i = 0; i < shapes.size(); ++i) {
      CAPTURE(i);
      CHECK(found[i] >= before[i]);
      CHECK(found[i] < 1);
      zeros += found[i] * elements(shapes[i]);
      all += elements(shapes[i]);
    }
    CHECK(zeros / all == doctest::Approx(sparsity).epsilon(1e-9));
    before = found;
  }
  const std::vector<double> found = layer_sparsities(shapes, 0.9);
  CHECK(found[2] == 0);  // 10,240 numbers are dense by then.
  CHECK(found[1] > 0.9);
  CHECK(found[0] < 0.9);
  // By hand: e (64 + 32 + 5 + 5 + 1024 + 3136) numbers are kept of the two that are not dense.
  const double kept = 0.1 * (51200 + 3211264 + 10240 + 1 + 21) - 10240 - 1 - 21, e = kept / (106 + 4160);
  CHECK(found[0] == doctest::Approx(1 - e * 106 / 51200));
  CHECK(found[1] == doctest::Approx(1 - e * 4160 / 3211264));
}

TEST_CASE("layers of one shape have the sparsity that was asked for") {
  for (const double found : layer_sparsities({{8, 8}, {8, 8}, {8, 8}}, 0.75)) CHECK(found == doctest::Approx(0.75));
  CHECK(layer_sparsities({}, 0.5).empty());
}

}  // namespace

namespace {

using Granularity = Pruning::Granularity;

const DataShape kPictures{DataShape::Kind::kImage, {1, 12, 12}, 4, {}};
const DataShape kText{DataShape::Kind::kText, {8}, 256, {}};

std::set<std::string> names_of(const PrunableModel& model) {
  std::set<std::string> names;
  for (const PrunableTensor& tensor : model.tensors) names.insert(tensor.name);
  return names;
}

TEST_CASE("matrices and kernels are pruned, but for the first convolution, embeddings, norms and biases") {
  const auto found = [](const char* specification, const DataShape& data) {
    return names_of(prunable_tensors(*build_model(specification, data, 1), Granularity::kWeight));
  };
  using Names = std::set<std::string>;
  CHECK((found("cnn:conv1=4,conv2=8,hidden=16", kPictures) == Names{"conv2.weight", "hidden.weight", "output.weight"}));
  CHECK((found("fc:hidden=8", kPictures) == Names{"hidden1.weight", "output.weight"}));
  CHECK((found("lstm:width=8,hidden=16", kText) == Names{"lstm.weight_ih_l0", "lstm.weight_hh_l0", "output.weight"}));
  CHECK((found("transformer:layers=1,width=16", kText) ==
         Names{"block1.qkv.weight", "block1.out.weight", "block1.up.weight", "block1.down.weight", "output.weight"}));
  // An output layer that is an embedding's table too is one.
  CHECK((found("transformer:layers=1,width=16,tied=1", kText) ==
         Names{"block1.qkv.weight", "block1.out.weight", "block1.up.weight", "block1.down.weight"}));
  for (const std::string& name : found("vgg11:width=4,hidden=16,norm=batch", kPictures)) CHECK(name.find("norm") == std::string::npos);
}

TEST_CASE("what a training says of its pruning: what may become zero, and which matrix bears most and least of it") {
  const PrunableModel found = prunable_tensors(*build_model("cnn:conv1=4,conv2=8,hidden=16", kPictures, 1), Granularity::kWeight);
  const auto said = [&](const char* how) {
    const Pruning pruning = *parse_pruning(how);
    return describe_pruning(how, pruning, found, PruningSchedule(pruning, 0.7, false, 100));
  };
  const std::string shared = said("weight:0.9");
  CHECK(shared.find("prune weight:0.9: of 3 tensors with 2,016 of ") == 0);
  CHECK(shared.find("; by their shapes from ") != std::string::npos);
  CHECK(shared.find(" % of output.weight to ") != std::string::npos);
  CHECK(said("weight:0.9:uniform").find("by their shapes") == std::string::npos);
}

TEST_CASE("two of four leaves rows that do not divide, and says so; what is frozen is left") {
  const auto model = build_model("cnn:conv1=3,conv2=8,hidden=16", kPictures, 1);
  const PrunableModel found = prunable_tensors(*model, Granularity::kTwoOfFour);
  CHECK((names_of(found) == std::set<std::string>{"hidden.weight", "output.weight"}));
  CHECK(found.left == std::vector<std::string>{"conv1.weight (the first convolution)", "conv2.weight (75 columns, no multiple of 4)"});
  CHECK(found.num_elements() == 16 * 8 * 3 * 3 + 4 * 16);
  for (const auto& parameter : model->named_parameters())
    if (parameter.key().starts_with("hidden")) parameter.value().requires_grad_(false);
  CHECK((names_of(prunable_tensors(*model, Granularity::kTwoOfFour)) == std::set<std::string>{"output.weight"}));
  for (const at::Tensor& parameter : model->parameters()) parameter.requires_grad_(false);
  CHECK(error_of([&] { prunable_tensors(*model, Granularity::kWeight); }).find("no matrix to prune; left: ") != std::string::npos);
}

}  // namespace

}  // namespace cohort
