#include "cohort/parallel/watch/weight_watch.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <set>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

torch::Tensor parameter(double value) { return torch::full({3, 5}, value).set_requires_grad(true); }

TEST_CASE("writes in place and other memory are told apart; restore() points back") {
  torch::NoGradGuard no_grad;
  torch::Tensor a = parameter(1), b = parameter(2), loose = torch::ones({4});
  WeightWatch watch("The test");
  watch.add({"a", a});
  watch.add({"b", b});
  watch.add({"loose", loose}, /*is_placed=*/false);
  const auto state = [&] {
    std::string text;
    for (size_t i = 0; i < 3; ++i) text += watch.is_written(i) ? "w" : watch.is_replaced(i) ? "r" : "-";
    return text;
  };
  watch.check();
  CHECK(state() == "---");
  CHECK(watch.first_written() == -1);
  b.view({-1}).narrow(0, 2, 3).mul_(2);  // Views share the counter.
  CHECK(state() == "-w-");
  CHECK(watch.first_written() == 1);
  watch.remember();
  CHECK(state() == "---");
  a.set_data(torch::full({3, 5}, 7.0));
  loose.set_data(torch::zeros({4}));
  CHECK(state() == "r-w");  // What is not placed may lie anywhere; it has other values.
  CHECK(watch.any_replaced());
  const void* const memory = watch.place(0).data_ptr();
  watch.take_over();
  CHECK(a.data_ptr() == memory);
  CHECK(a.eq(7).all().item<bool>());
  watch.remember();
  a.set_(torch::full({3, 5}, 8.0));  // As torch::load() does.
  CHECK(watch.is_replaced(0));
  CHECK(watch.first_written() == -1);
  CHECK(watch.restore(0).eq(8).all().item<bool>());
  CHECK(a.data_ptr() == memory);
  CHECK(a.eq(7).all().item<bool>());
  CHECK(state() == "---");
}

TEST_CASE("values that overlap their location are taken over whole") {
  torch::NoGradGuard no_grad;
  torch::Tensor square = torch::arange(16, torch::kFloat).view({4, 4}).clone();
  const torch::Tensor turned = square.t().clone();
  WeightWatch watch("The test");
  watch.add({"square", square});
  square.set_data(square.t());
  watch.check();
  CHECK(watch.is_replaced(0));
  watch.take_over();
  CHECK(torch::equal(square, turned));
  CHECK(square.is_contiguous());
}

TEST_CASE("another type or shape, and memory that is another parameter's, are refused by name") {
  const auto refusal = [](auto&& change) {
    torch::Tensor a = parameter(1), b = parameter(2);
    WeightWatch watch("The test");
    watch.add({"a", a});
    watch.add({"b", b});
    change(a, b);
    CHECK_THROWS_AS(watch.check(), Error);
    try {
      watch.check();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refusal([](torch::Tensor&, torch::Tensor& b) { b.set_data(b.to(torch::kDouble)); }) ==
        "parameter b is Double [3, 5] on cpu now and was Float [3, 5] on cpu when The test took the model; convert a model (module->to(), "
        "set_data()) before it is wrapped");
  CHECK(refusal([](torch::Tensor& a, torch::Tensor&) { a.set_data(torch::ones({15})); }).find("Float [15] on cpu now") !=
        std::string::npos);
  const std::string tied = "parameters a and b share memory since The test took the model";
  CHECK(refusal([](torch::Tensor& a, torch::Tensor& b) { b.set_data(a); }).find(tied) != std::string::npos);
  CHECK(refusal([](torch::Tensor& a, torch::Tensor& b) {
          const torch::Tensor both = torch::ones({3, 5});
          a.set_data(both);
          b.set_data(both);
        }).find("share memory") != std::string::npos);
}

TEST_CASE("a checksum sees every bit and position") {
  std::set<int64_t> seen;
  size_t num_seen = 0;
  const auto add = [&](const torch::Tensor& tensor) {
    CHECK(checksum(tensor) == checksum(tensor.clone()));
    CHECK(checksum(tensor) != 0);
    seen.insert(checksum(tensor));
    CHECK(seen.size() == ++num_seen);
  };
  for (const int64_t size : {0, 1, 7, 8, 9, 33}) add(torch::zeros({size}));
  for (int64_t at = 0; at < 33; ++at) {
    torch::Tensor one = torch::zeros({33});
    one[at] = 1;
    add(one);
    one[at] = -1.0;
    add(one);
  }
  add(torch::arange(33, torch::kFloat));
  add(torch::arange(33, torch::kFloat).flip(0));
  add(torch::ones({5}, torch::kByte));
}

}  // namespace
}  // namespace cohort
