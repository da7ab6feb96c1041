#include "cohort/parallel/watch/operator_watch.h"

#include <ATen/autocast_mode.h>
#include <doctest/doctest.h>
#include <torch/torch.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

namespace cohort {
namespace {

using Ids = std::vector<int>;

TEST_CASE("operators that touch a watched tensor are announced in forward and backward") {
  std::vector<Ids> calls;
  UseWatch watch([&](const Ids& ids, const Ids&) { calls.push_back(ids); });
  const torch::Tensor a = torch::randn({3, 3}, torch::requires_grad()), b = torch::randn({3, 3}, torch::requires_grad());
  watch.add(a, 1);
  watch.add(b, 2);
  const torch::Tensor y = torch::mm(a, b);
  CHECK(calls == std::vector<Ids>{{1, 2}});
  calls.clear();
  const torch::Tensor loss = y.exp().sum();
  CHECK(calls.empty());
  loss.backward();  // d a = g b', d b = a' g: both saved tensors are touched through views.
  Ids all;
  for (const Ids& ids : calls) all.insert(all.end(), ids.begin(), ids.end());
  CHECK(std::count(all.begin(), all.end(), 1) >= 1);
  CHECK(std::count(all.begin(), all.end(), 2) >= 1);
}

TEST_CASE("views, lists, optional tensors, autocast and evaluation are seen; other threads and ended watches are not") {
  int num_calls = 0;
  const torch::Tensor a = torch::randn({4, 4}), view = a.t();
  {
    UseWatch watch([&](const Ids&, const Ids&) { ++num_calls; });
    watch.add(a, 0);
    const auto count = [&](auto&& body) {
      num_calls = 0;
      body();
      return num_calls;
    };
    CHECK(count([&] { view.sum(); }) == 1);
    CHECK(count([&] { torch::cat({torch::ones({4, 4}), a}); }) == 1);
    CHECK(count([&] { torch::batch_norm(torch::ones({2, 4}), a[0], {}, {}, {}, true, 0.1, 1e-5, false); }) == 2);  // a[0], batch_norm.
    CHECK(count([&] {
            at::NoGradGuard no_grad;
            a.sum();
          }) == 1);
    CHECK(count([&] {
            c10::InferenceMode inference;
            a.sum();
          }) == 1);
    CHECK(count([&] {
            at::autocast::set_autocast_enabled(at::kCPU, true);
            torch::mm(a, a);
            at::autocast::set_autocast_enabled(at::kCPU, false);
            at::autocast::clear_cache();
          }) == 1);
    CHECK(count([&] { std::thread([&] { a.sum(); }).join(); }) == 0);
    CHECK(count([&] {
            const UnwatchedScope off;
            a.sum();
          }) == 0);
  }
  num_calls = 0;
  a.sum();
  CHECK(num_calls == 0);
}

TEST_CASE("the tensors that an operator writes to are told apart") {
  Ids seen, written;
  UseWatch watch([&](const Ids& ids, const Ids& of_them) {
    seen = ids;
    written = of_them;
  });
  const torch::Tensor a = torch::ones({2, 2}), b = torch::ones({2, 2});
  watch.add(a, 1);
  watch.add(b, 2);
  a.add_(b);
  CHECK(seen == Ids{1, 2});
  CHECK(written == Ids{1});
  a.add(b);
  CHECK(written.empty());
  b.t()[0].data().fill_(3);
  CHECK(written == Ids{2});
  torch::add_out(const_cast<torch::Tensor&>(a), b, b);
  CHECK(written == Ids{1});
  at::_foreach_mul_(std::vector<torch::Tensor>{a, b}, 2.0);
  CHECK(written == Ids{1, 2});
}

TEST_CASE("what the callback throws reaches the caller and the operator does not run") {
  const torch::Tensor a = torch::ones({2});
  UseWatch watch([](const Ids&, const Ids&) { throw std::runtime_error("peer lost"); });
  watch.add(a, 0);
  CHECK_THROWS_WITH(a.add_(1), "peer lost");
  const UnwatchedScope off;
  CHECK(a.sum().item<double>() == 2);
}

}  // namespace
}  // namespace cohort
