#include "cohort/parallel/prune/smallest_weights.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>
#include <random>

#include "cohort/base/fail.h"
#include "tests/support/thread_ranks.h"

namespace cohort {
namespace {

using Granularity = Pruning::Granularity;

/// By sorting, the plain way: magnitudes, then places.
at::Tensor by_sorting(const at::Tensor& weights, Granularity granularity, double sparsity) {
  const at::Tensor values = weights.to(at::kDouble).abs().contiguous();
  const double* const magnitudes = values.const_data_ptr<double>();
  const auto is_smaller = [&](int64_t a, int64_t b) { return magnitudes[a] != magnitudes[b] ? magnitudes[a] < magnitudes[b] : a < b; };
  std::vector<int64_t> order(static_cast<size_t>(values.numel()));
  std::iota(order.begin(), order.end(), 0);
  if (granularity == Granularity::kTwoOfFour) {
    std::vector<int64_t> candidates;
    for (size_t first = 0; first < order.size(); first += 4) {
      std::vector<int64_t> group(order.begin() + static_cast<std::ptrdiff_t>(first),
                                 order.begin() + static_cast<std::ptrdiff_t>(first) + 4);
      std::sort(group.begin(), group.end(), is_smaller);
      candidates.insert(candidates.end(), group.begin(), group.begin() + 2);
    }
    order = candidates;
  }
  std::sort(order.begin(), order.end(), is_smaller);
  const auto count = std::min<int64_t>(static_cast<int64_t>(order.size()), std::llround(sparsity * static_cast<double>(values.numel())));
  at::Tensor keep = at::ones({values.numel()}, at::kByte);
  for (int64_t i = 0; i < count; ++i) keep.data_ptr<uint8_t>()[order[static_cast<size_t>(i)]] = 0;
  return keep;
}

/// Many equal ones, zeros, numbers of every size.
std::vector<at::Tensor> some_weights(at::ScalarType type) {
  std::vector<at::Tensor> all = {at::randn({1000}, type),       at::randint(-3, 4, {996}, type),
                                 at::full({400}, 0.5, type),    at::zeros({64}, type),
                                 at::randn({8}, type),          at::randn({2000}, type) * at::randint(0, 2, {2000}, type),
                                 at::randn({512}, type) * 1e-39};
  all[0][17] = std::numeric_limits<double>::infinity();
  return all;
}

TEST_CASE("the smallest weights are those that sorting finds, ties by their position") {
  torch::manual_seed(5);
  for (const at::ScalarType type : {at::kFloat, at::kDouble})
    for (const Granularity granularity : {Granularity::kWeight, Granularity::kTwoOfFour})
      for (const double sparsity : {0.001, 0.3, 0.5, 0.9, 0.999}) {
        std::vector<DividedTensor> tensors;
        for (const at::Tensor& weights : some_weights(type)) tensors.push_back({"w", weights.numel(), weights, 0, sparsity});
        const std::vector<at::Tensor> keep = keep_all_but_smallest(tensors, granularity, nullptr);
        for (size_t i = 0; i < tensors.size(); ++i) {
          CAPTURE(i);
          CAPTURE(sparsity);
          CHECK(at::equal(keep[i], by_sorting(tensors[i].own, granularity, sparsity)));
        }
      }
}

TEST_CASE("ranks that divide tensors in any way find the same ones") {
  torch::manual_seed(6);
  std::mt19937 random(7);
  for (int round = 0; round < 12; ++round) {
    const int num_ranks = 2 + round % 4;
    const at::ScalarType type = round % 3 == 2 ? at::kDouble : at::kFloat;
    const Granularity granularity = round % 2 == 0 ? Granularity::kWeight : Granularity::kTwoOfFour;
    const double sparsity = round < 6 ? 0.5 : 0.27;
    const std::vector<at::Tensor> whole = some_weights(type);
    std::vector<std::vector<int64_t>> cuts;  // Also ranks with nothing, and with less than a group of four.
    for (const at::Tensor& weights : whole) {
      std::vector<int64_t> places = {0, weights.numel()};
      for (int i = 1; i < num_ranks; ++i)
        places.push_back(round % 5 == 0 ? std::min<int64_t>(weights.numel(), i)
                                        : static_cast<int64_t>(random() % static_cast<unsigned>(weights.numel() + 1)));
      std::sort(places.begin(), places.end());
      cuts.push_back(places);
    }
    std::vector<std::vector<at::Tensor>> found(static_cast<size_t>(num_ranks));
    run_thread_ranks(num_ranks, [&](Group& group) {
      std::vector<DividedTensor> mine;
      const auto rank = static_cast<size_t>(group.rank());
      for (size_t i = 0; i < whole.size(); ++i) {
        const int64_t begin = cuts[i][rank], count = cuts[i][rank + 1] - begin;
        mine.push_back({"w", whole[i].numel(), count > 0 ? whole[i].narrow(0, begin, count) : at::Tensor(), begin, sparsity});
      }
      found[rank] = keep_all_but_smallest(mine, granularity, &group);
    });
    for (size_t i = 0; i < whole.size(); ++i) {
      CAPTURE(round);
      CAPTURE(i);
      std::vector<at::Tensor> parts;
      for (const std::vector<at::Tensor>& of_rank : found)
        if (of_rank[i].defined()) parts.push_back(of_rank[i]);
      CHECK(at::equal(at::cat(parts), by_sorting(whole[i], granularity, sparsity)));
    }
  }
}

TEST_CASE("what is zero already is pruned first, and two of four leaves two of every four") {
  torch::manual_seed(8);
  const at::Tensor weights = at::randn({400}), before = by_sorting(weights, Granularity::kTwoOfFour, 0.3);
  const at::Tensor pruned = weights * before;
  const at::Tensor after = keep_all_but_smallest({{"w", 400, pruned, 0, 0.5}}, Granularity::kTwoOfFour, nullptr).front();
  CHECK((after <= before).all().item<bool>());
  CHECK(after.view({100, 4}).sum(1).eq(2).all().item<bool>());
}

}  // namespace
}  // namespace cohort
