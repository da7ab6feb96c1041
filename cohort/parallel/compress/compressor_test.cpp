#include "cohort/parallel/compress/compressor.h"

#include <ATen/Functions.h>
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "cohort/base/fail.h"
#include "tests/support/compressor_inputs.h"
#include "tests/support/thread_ranks.h"

namespace cohort {
namespace {

const std::vector<std::string> kSpecs = {"fp16", "bf16", "int8", "topk:0.05", "powersgd:2"};

/// The float tensors of all ranks, one row each.
at::Tensor rows_of_all(Group& group, const at::Tensor& mine) {
  at::Tensor all = at::empty({group.size(), mine.numel()}, at::kFloat);
  if (mine.numel() > 0) group.all_gather(all, mine.contiguous(), "test");
  return all;
}

at::Tensor residual_of(Compressor& compressor) { return compressor.state().at(0).second; }

/// Steps of one compressor on ranks as threads: what rank 0 applied, a row a step. Checks what holds for every compressor: equal bits on
/// all ranks, nothing lost (compressors.h), bytes as forecast.
at::Tensor run_steps(const std::string& spec, int num_ranks, int64_t count, int64_t num_steps, const std::string& backend = "auto") {
  at::Tensor results = at::zeros({num_steps, count}, at::kFloat);
  run_thread_ranks(num_ranks,
                   [&](Group& group) {
                     auto compressor = make_compressor(spec, test_buffer(count), count, 7);
                     at::Tensor applied = at::zeros({count}, at::kDouble), given = at::zeros({count}, at::kDouble);
                     double largest = 0;
                     for (int64_t step = 0; step < num_steps; ++step) {
                       at::Tensor flat = test_gradient(1, group.rank(), step, count);
                       for (int rank = 0; rank < group.size(); ++rank) given += test_gradient(1, rank, step, count);
                       compressor->all_reduce_sum(group, flat, "test");
                       if (compressor->sent_bytes() != compressor->cost(group.size()).sent_bytes)
                         FAIL(concat(spec, " sent ", compressor->sent_bytes()));
                       const at::Tensor all = rows_of_all(group, flat);
                       for (int rank = 1; rank < group.size(); ++rank)
                         if (!at::equal(all[0], all[rank])) FAIL(concat(spec, ": other bits on rank ", rank));
                       applied += flat;
                       if (count > 0) largest = std::max(largest, at::max(at::abs(all)).item<double>());
                       if (group.rank() == 0) results[step].copy_(flat);
                     }
                     if (count == 0) return;
                     const at::Tensor kept = at::sum(rows_of_all(group, residual_of(*compressor)).to(at::kDouble), 0);
                     const double lost = at::max(at::abs(applied + kept - given)).item<double>();
                     if (lost > 1e-5 * (largest + 1)) FAIL(concat(spec, ", ", num_ranks, " ranks, ", count, " elements: ", lost, " lost"));
                   },
                   {.backend = backend, .timeout_seconds = 20});
  return results;
}

TEST_CASE("compressors: equal bits on all ranks, repeatable, nothing lost, for awkward sizes") {
  for (const std::string& spec : kSpecs)
    for (const int num_ranks : {1, 2, 3, 4})
      for (const int64_t count : {0, 1, 7, 255, 256, 257, 1009}) {
        CAPTURE(spec);
        CAPTURE(num_ranks);
        CAPTURE(count);
        const at::Tensor first = run_steps(spec, num_ranks, count, 3);
        if (num_ranks == 3) CHECK(at::equal(first, run_steps(spec, num_ranks, count, 3)));
      }
}

TEST_CASE("compressors: large buffers in slices, over shared memory and sockets alike") {
  for (const std::string& spec : kSpecs)
    for (const int64_t count : {40000, 40961}) {
      CAPTURE(spec);
      CAPTURE(count);
      const at::Tensor shared = run_steps(spec, 3, count, 2);
      CHECK(at::equal(shared, run_steps(spec, 3, count, 2, "gloo")));
    }
}

TEST_CASE("compressors: the mean of what is applied goes to the constant gradient as 1/T") {
  constexpr int64_t kCount = 2000;
  for (const std::string& spec : kSpecs) {
    CAPTURE(spec);
    run_thread_ranks(2, [&](Group& group) {
      auto compressor = make_compressor(spec, test_buffer(kCount), kCount, 7);
      at::Tensor applied = at::zeros({kCount}, at::kDouble);
      const at::Tensor truth = (test_gradient(1, 0, 0, kCount).to(at::kDouble) + test_gradient(1, 1, 0, kCount));
      double early = 0, late = 0;  // Largest T |mean - g|: the size of what is still to come.
      for (int64_t step = 1; step <= 400; ++step) {
        at::Tensor flat = test_gradient(1, group.rank(), 0, kCount);
        compressor->all_reduce_sum(group, flat, "test");
        applied += flat;
        double& left = step <= 100 ? early : late;
        left = std::max(left, at::norm(applied - static_cast<double>(step) * truth).item<double>());
      }
      if (early == 0 || late > 1.5 * early) FAIL(concat(spec, ": T |mean - g| grew from ", early, " to ", late));
    });
  }
}

TEST_CASE("compressors: a state that is saved and restored half-way gives the same bits") {
  constexpr int64_t kCount = 3000;
  for (const std::string& spec : kSpecs)
    run_thread_ranks(3, [&](Group& group) {
      auto first = make_compressor(spec, test_buffer(kCount), kCount, 7), second = make_compressor(spec, test_buffer(kCount), kCount, 8);
      auto fresh = make_compressor(spec, test_buffer(kCount), kCount, 7);
      bool fresh_differs = false;
      for (int64_t step = 0; step < 6; ++step) {
        at::Tensor a = test_gradient(1, group.rank(), step, kCount), b = a.clone(), c = a.clone();
        first->all_reduce_sum(group, a, "test");
        if (step >= 3) {
          second->all_reduce_sum(group, b, "test");
          fresh->all_reduce_sum(group, c, "test");
          if (!at::equal(a, b)) FAIL(concat(spec, " differs in step ", step));
          fresh_differs |= !at::equal(a, c);
        }
        if (step == 2) {
          auto saved = first->state(), target = second->state();
          for (size_t i = 0; i < saved.size(); ++i) {
            if (saved[i].first != target[i].first) FAIL(target[i].first);
            target[i].second.copy_(saved[i].second.clone());
          }
        }
      }
      if (!fresh_differs) FAIL(concat(spec, ": the state made no difference"));
    });
}

TEST_CASE("compressors: what is not finite reaches all ranks and is forgotten afterwards") {
  constexpr int64_t kCount = 3000;
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const std::string& spec : kSpecs)
      for (const int64_t place : {5, 2999})
        run_thread_ranks(3, [&](Group& group) {
          auto compressor = make_compressor(spec, test_buffer(kCount), kCount, 7);
          for (int64_t step = 0; step < 3; ++step) {
            at::Tensor flat = test_gradient(1, group.rank(), step, kCount);
            if (step == 1 && group.rank() == 1) flat.data_ptr<float>()[place] = bad;
            compressor->all_reduce_sum(group, flat, "test");
            const bool finite = std::isfinite(flat.data_ptr<float>()[place]);
            if (finite != (step != 1)) FAIL(concat(spec, ": element ", place, " in step ", step, " is ", flat.data_ptr<float>()[place]));
            if (!at::isfinite(residual_of(*compressor)).all().item<bool>()) FAIL(concat(spec, ": the residual is not finite"));
          }
        });
}

/// Loss after training a network of one hidden layer on data that another such network labelled, with 2 ranks and `spec`.
double trained_loss(const std::string& spec) {
  constexpr int64_t kInput = 16, kHidden = 24, kSamples = 128, kCount = kHidden * kInput + kHidden;
  double loss = 0;
  run_thread_ranks(2, [&](Group& group) {
    const at::Tensor teacher = test_gradient(3, 0, 0, kInput).sign().view({kInput, 1});
    at::Tensor weights = test_gradient(2, 0, 0, kCount).mul(0.5);
    const at::Tensor inputs = test_gradient(4, group.rank(), 0, kSamples * kInput).view({kSamples, kInput}) * 4;
    const at::Tensor targets = at::tanh(at::mm(inputs, teacher));
    CompressedBuffer buffer{"net", {{0, {kHidden, kInput}}, {kHidden * kInput, {kHidden}}}};
    auto compressor = make_compressor(spec, buffer, kCount, 7);
    for (int step = 0; step < 300; ++step) {
      const at::Tensor hidden_weights = weights.narrow(0, 0, kHidden * kInput).view({kHidden, kInput});
      const at::Tensor output_weights = weights.narrow(0, kHidden * kInput, kHidden).view({kHidden, 1});
      const at::Tensor hidden = at::tanh(at::mm(inputs, hidden_weights.t())), error = at::mm(hidden, output_weights) - targets;
      // Of half the mean squared error over the samples of both ranks.
      const at::Tensor output_gradient = at::mm(hidden.t(), error), through = at::mm(error, output_weights.t()) * (1 - hidden * hidden);
      at::Tensor flat = at::cat({at::mm(through.t(), inputs).view({-1}), output_gradient.view({-1})}) / (2.0 * kSamples);
      if (compressor) compressor->all_reduce_sum(group, flat, "gradients");
      else group.all_reduce_sum(flat, "gradients");
      weights -= 0.5 * flat;
      at::Tensor sum = at::sum(error * error).div(2.0 * kSamples).view({1});
      group.all_reduce_sum(sum, "loss");
      if (group.rank() == 0) loss = sum.item<double>();
    }
  });
  return loss;
}

TEST_CASE("compressors: training ends near the loss without compression") {
  const double exact = trained_loss("none");
  CHECK(exact < 0.05);
  for (const auto& [spec, percent] :
       {std::pair<std::string, double>{"fp16", 1}, {"bf16", 2}, {"int8", 2}, {"topk:0.1", 10}, {"powersgd:2", 10}}) {
    CAPTURE(spec);
    const double loss = trained_loss(spec);
    CAPTURE(loss);
    CHECK(std::abs(loss - exact) <= percent / 100 * exact);
  }
}

TEST_CASE("compressors: sent bytes") {
  const auto sent = [](const std::string& spec, int64_t count, int num_ranks) {
    return make_compressor(spec, test_buffer(count), count, 7)->cost(num_ranks).sent_bytes;
  };
  CHECK(uncompressed_cost(1000, 2).sent_bytes == 4000);
  CHECK(uncompressed_cost(1001, 4).sent_bytes == 2 * 3 * 251 * 4);
  CHECK(sent("fp16", 1000, 1) == 0);
  CHECK(sent("fp16", 1000, 2) == 2000);
  CHECK(sent("bf16", 1000, 4) == 3 * 2000);             // Small: all codes to all.
  CHECK(sent("bf16", 100000, 4) == 2 * 3 * 2 * 25024);  // Slices of a multiple of 32.
  CHECK(sent("int8", 1000, 2) == 3 * 260 + 4 + 232);
  CHECK(sent("int8", 100000, 4) == 2 * 3 * 98 * 260);  // 391 blocks, 98 for each slice.
  CHECK(sent("topk:0.05", 1009, 3) == 2 * 50 * 8);
  CHECK(sent("topk:0.0001", 10, 2) == 8);
  // 50 x 20 and 50 x 12 in rank 2; 2000 - 1600 as they are. P: 2 (50 + 50) + 400; Q: 2 (20 + 12).
  CHECK(sent("powersgd:2", 2000, 2) == 4 * (200 + 400) + 4 * 64);
}

TEST_CASE("compressors: specs") {
  CHECK(make_compressor("none", {}, 10, 1) == nullptr);
  for (const char* good : {"none", "fp16", "bf16", "int8", "topk:1", "topk:0.001", "topk:1e-3", "powersgd:1", "powersgd:64"})
    check_compressor(good);
  const auto refusal = [](const std::string& spec) -> std::string {
    try {
      check_compressor(spec);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kBadInput);
      return error.what();
    }
    return "accepted";
  };
  for (const std::string bad : {"topk", "topk:", "topk:0", "topk:-1", "topk:2", "topk:nan", "topk:0.1x"}) {
    CAPTURE(bad);
    CHECK(refusal(bad).find("0 < F <= 1, e.g. topk:0.01") != std::string::npos);
  }
  for (const std::string bad : {"powersgd", "powersgd:0", "powersgd:-1", "powersgd:1.5", "powersgd:1e9"}) {
    CAPTURE(bad);
    CHECK(refusal(bad).find("a whole number from 1 to 1024") != std::string::npos);
  }
  CHECK(refusal("int7").find("did you mean 'int8'?") != std::string::npos);
  CHECK(refusal("").find("one of none, fp16, bf16, int8, topk:F, powersgd:R") != std::string::npos);
  CHECK(refusal("fp16:2").find("fp16 takes no number") != std::string::npos);
}

TEST_CASE("compressors: buffers of another type or size are refused") {
  Group alone;
  for (const std::string& spec : kSpecs) {
    auto compressor = make_compressor(spec, {}, 10, 1);
    CHECK_THROWS_WITH_AS(compressor->all_reduce_sum(alone, at::zeros({10}, at::kDouble), "bucket 3"),
                         doctest::Contains("compressed exchange of bucket 3"), Error);
    CHECK_THROWS_AS(compressor->all_reduce_sum(alone, at::zeros({11}), "bucket 3"), Error);
  }
}

}  // namespace
}  // namespace cohort
