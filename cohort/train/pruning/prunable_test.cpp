#include "cohort/train/pruning/prunable.h"

#include <doctest/doctest.h>

#include <set>

#include "cohort/models/registry.h"
#include "tests/support/errors.h"

namespace cohort {
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
