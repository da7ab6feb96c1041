// Buffers, several models, ranks that drift apart, and the life of a DataParallel.
#include <numeric>
#include <thread>

#include "cohort/base/fail.h"
#include "cohort/parallel/common/parameters.h"
#include "tests/support/torture_models.h"

namespace cohort {
namespace {

using namespace torture;  // NOLINT

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A layer with one buffer, and what a test does to it in forward.
struct BufferedImpl : nn::Module {
  nn::Linear layer{nullptr};
  Tensor buffer;
  explicit BufferedImpl(const Tensor& values) {
    layer = register_module("layer", nn::Linear(6, 2));
    layer->to(at::kDouble);
    fill(*layer, 1);
    buffer = register_buffer("buffer", values.clone());
  }
};
TORCH_MODULE(Buffered);

/// What the buffer is after each of three steps in which `change` was made on the ranks.
template <typename Change>
void check_buffer(Group& group, const Tensor& begin, BufferPolicy policy, const Change& change,
                  const std::function<Tensor(int step)>& expected) {
  Buffered net(begin);
  DataParallelOptions options = small_buckets();
  options.buffers = policy;
  DataParallel parallel(*net, group, options);
  for (int step = 0; step < 3; ++step) {
    net->zero_grad();
    change(net->buffer, step);
    net->layer(rows_of(group, inputs(step))).square().mean().backward();
    const Tensor values = expected(step);
    expect(net->buffer.scalar_type() == values.scalar_type() && net->buffer.equal(values), concat("buffer after step ", step));
  }
}

nn::Sequential normed(uint64_t seed) {
  nn::Sequential net(nn::Linear(6, 5), nn::BatchNorm1d(5), nn::Linear(5, 2));
  net->to(at::kDouble);
  fill(*net, seed);
  return net;
}

nn::BatchNorm1dImpl& norm_of(nn::Sequential& net) { return *net[1]->as<nn::BatchNorm1dImpl>(); }

/// Running statistics are the average by the ranks' shares of those that each rank alone would have.
void check_running_statistics(Group& group, const std::vector<int64_t>& counts) {
  nn::Sequential mine = normed(3);
  DataParallel parallel(*mine, group, small_buckets(GradientMean::kSamples));
  const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  for (int step = 0; step < 3; ++step) {
    mine->zero_grad();
    const int64_t counted = norm_of(mine).num_batches_tracked.item<int64_t>();
    Tensor mean = at::zeros({5}, at::kDouble), variance = at::zeros({5}, at::kDouble);
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      if (counts[rank] == 0) continue;
      nn::Sequential one = normed(3);
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < one->parameters().size(); ++i) one->parameters()[i].copy_(mine->parameters()[i]);
      for (size_t i = 0; i < one->buffers().size(); ++i) one->buffers()[i].copy_(mine->buffers()[i]);
      one->forward(draw({counts[rank], 6}, 10 * step + rank));
      const double share = static_cast<double>(counts[rank]) / static_cast<double>(all);
      mean += norm_of(one).running_mean * share, variance += norm_of(one).running_var * share;
    }
    const auto rank = static_cast<size_t>(group.rank());
    parallel.set_local_samples(counts[rank]);
    if (counts[rank] == 0) parallel.exchange_without_backward();
    else mine->forward(draw({counts[rank], 6}, 10 * step + rank)).square().mean().backward();
    expect_equal(norm_of(mine).running_mean, mean, concat("mean of step ", step));
    expect_equal(norm_of(mine).running_var, variance, concat("variance of step ", step));
    expect(norm_of(mine).num_batches_tracked.item<int64_t>() == counted + 1, concat("batches after step ", step));
    const at::NoGradGuard no_grad;
    for (Tensor& parameter : mine->parameters()) parameter.sub_(parameter.grad(), 0.1);
  }
}

std::vector<Case> cases_of_buffers() {
  const auto unchanged = [](const Tensor& values) {
    return
        [values](Group& group) { check_buffer(group, values, BufferPolicy::kAverage, [](Tensor&, int) {}, [&](int) { return values; }); };
  };
  const Tensor mask = at::full({300, 300}, -kInfinity).triu(1), digits = draw({7}, 5).div(3);
  const auto changed = [digits](BufferPolicy policy, bool on_one, const std::function<Tensor(int)>& expected) {
    return [=](Group& group) {
      check_buffer(
          group, digits, policy,
          [&](Tensor& buffer, int step) {
            if (!on_one || group.rank() == 1) buffer.copy_(digits * (step + 1) * (group.rank() + 1));
          },
          expected);
    };
  };
  return {
      {"huge constant mask with infinities", unchanged(mask)},
      {"constant double buffer keeps its digits", unchanged(digits), "", 3},
      {"constant half buffer", unchanged(digits.to(at::kHalf))},
      {"constant buffer of NaN",
       [](Group& group) {
         Buffered net(at::full({5}, std::nan("")));
         DataParallel parallel(*net, group, small_buckets());
         net->layer(inputs(0)).sum().backward();
         expect(net->buffer.isnan().all().item<bool>(), "NaN");
         expect(parallel.statistics().buffer_bytes <= 8, "the buffer was sent");
       }},
      {"constant buffers of whole numbers and truth values", unchanged(at::arange(6).to(at::kBool))},
      {"changed double buffer", changed(BufferPolicy::kAverage, false,
                                        [digits](int step) {
                                          const Tensor values = digits * (step + 1);
                                          return values * 0.5 + values * 2 * 0.5;
                                        })},
      {"buffer changed on one rank alone",
       [digits](Group& group) {
         Tensor before = digits;
         check_buffer(
             group, digits, BufferPolicy::kAverage,
             [&](Tensor& buffer, int step) {
               if (group.rank() == 1) buffer.copy_(digits * (step + 7));
             },
             [&](int step) { return before = before * 0.5 + digits * (step + 7) * 0.5; });
       }},
      {"policy broadcast", changed(BufferPolicy::kBroadcast, false, [digits](int step) { return digits * (step + 1) * 1; })},
      {"policy broadcast, changed on rank 1 alone", changed(BufferPolicy::kBroadcast, true, [digits](int) { return digits; })},
      {"policy none",
       [digits](Group& group) {
         check_buffer(
             group, digits, BufferPolicy::kNone, [&](Tensor& buffer, int step) { buffer.copy_(digits * (step + group.rank())); },
             [&](int step) { return digits * (step + group.rank()); });
       }},
      {"half buffer changed",
       [](Group& group) {
         check_buffer(
             group, at::zeros({4}, at::kHalf), BufferPolicy::kAverage,
             [&](Tensor& buffer, int step) { buffer.fill_(step + 2 * group.rank()); },
             [](int step) { return at::full({4}, step + 1, at::kHalf); });
       }},
      {"counter that one rank alone moves on",
       [](Group& group) {
         check_buffer(
             group, at::zeros({}, at::kLong), BufferPolicy::kAverage,
             [&](Tensor& buffer, int) {
               if (group.rank() == 0) buffer.add_(1);
             },
             [](int step) { return at::full({}, step + 1, at::kLong); });
       }},
      {"NaN in the buffers of a rank whose share is 0",
       [](Group& group) {
         Buffered net(at::zeros({3}, at::kDouble));
         DataParallel parallel(*net, group, small_buckets());
         for (int step = 0; step < 3; ++step) {
           parallel.set_buffer_share(group.rank() == 0 ? 1 : 0);
           net->buffer.fill_(group.rank() == 0 ? step + 1 : std::nan(""));
           net->layer(inputs(0)).sum().backward();
           expect(net->buffer.equal(at::full({3}, step + 1, at::kDouble)), "buffer");
         }
       }},
      {"buffer registered after construction", with_pair([](WrappedPair& pair) {
         pair.step(0);
         Tensor late = pair.mine->register_buffer("late", at::zeros({3}, at::kDouble));
         pair.step(1);
         for (int step = 2; step < 4; ++step) {
           late.fill_(pair.group.rank() + step);
           pair.step(step);
           expect_equal(late, at::full({3}, step + 0.5, at::kDouble), "late buffer");
         }
       })},
      {"buffer replaced after construction",
       [](Group& group) {
         Buffered net(at::zeros({3}, at::kDouble));
         DataParallel parallel(*net, group, small_buckets());
         net->layer(inputs(0)).sum().backward();
         net->named_buffers();
         net->buffer.set_data(at::zeros({8}, at::kDouble));
         for (int step = 0; step < 3; ++step) {
           net->buffer.fill_(group.rank() + step);
           net->layer(inputs(0)).sum().backward();
           expect_equal(net->buffer, at::full({8}, step + 0.5, at::kDouble), "buffer");
         }
       }},
      {"batch norm, equal shares", [](Group& group) { check_running_statistics(group, {6, 6}); }},
      {"batch norm, uneven shares and a rank without samples", [](Group& group) { check_running_statistics(group, {5, 0, 3}); }, "", 3},
      {"batch norm in eval mode",
       [](Group& group) {
         nn::Sequential mine = normed(3), whole = normed(3);
         mine->eval(), whole->eval();
         DataParallel parallel(*mine, group, small_buckets());
         for (int step = 0; step < 3; ++step) {
           mine->zero_grad(), whole->zero_grad();
           mine->forward(rows_of(group, inputs(step))).square().mean().backward();
           whole->forward(inputs(step)).square().mean().backward();
           expect_same(*mine, *whole, true, "eval");
           expect(norm_of(mine).running_mean.equal(norm_of(whole).running_mean), "running mean");
         }
       }},
  };
}

/// Two or three models of one shape; rank 1 may call their backwards in another order.
void several_models(Group& group, int count, bool swapped, bool named, bool made_swapped = false) {
  std::vector<std::unique_ptr<Pair>> pairs;
  std::vector<std::unique_ptr<DataParallel>> wrappers(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) pairs.push_back(std::make_unique<Pair>(group, 10 * i + 1));
  for (int i = 0; i < count; ++i) {
    const auto which = static_cast<size_t>(made_swapped && group.rank() == 1 ? count - 1 - i : i);
    DataParallelOptions options = small_buckets();
    if (named) options.name = concat("net ", which);
    wrappers[which] = std::make_unique<DataParallel>(*pairs[which]->mine, group, options);
  }
  for (int step = 0; step < 3; ++step)
    for (int i = 0; i < count; ++i) {
      const bool other = swapped && step == 1 && group.rank() == 1;
      Pair& pair = *pairs[static_cast<size_t>(other ? count - 1 - i : i)];
      pair.zero_grad();
      pair.backward(step);
      pair.check("pair");
      pair.apply();
    }
}

/// Steps until something is said; the weights or the rates of rank 1 are not the others'.
template <typename Spoil>
void drift(Group& group, const Spoil& spoil) {
  WrappedPair pair(group);
  for (int step = 0; step < 60; ++step) {
    if (group.rank() == 1) spoil(pair, step);
    pair.mine_optimizer->zero_grad();
    loss_of(pair.mine, rows_of(group, inputs(step))).backward();
    pair.mine_optimizer->step();
  }
}

template <typename Spoil>
void other_options(Group& group, const Spoil& spoil) {
  Pair pair(group);
  DataParallelOptions options = small_buckets();
  if (group.rank() == 1) spoil(options);
  DataParallel parallel(*pair.mine, group, options);
}

std::vector<Case> cases_of_ranks() {
  const std::string rates = "ranks disagree in the model's weights";
  const auto rate = [](Pair& pair) -> double& {
    return static_cast<torch::optim::SGDOptions&>(pair.mine_optimizer->param_groups()[0].options()).lr();
  };
  return {
      {"two models", [](Group& group) { several_models(group, 2, false, false); }},
      {"three models with names", [](Group& group) { several_models(group, 3, false, true); }, "", 3},
      {"two models in another order on one rank", [](Group& group) { several_models(group, 2, true, false); },
       "rank 1 has 'model 1' where the others have 'model 0'"},
      {"two models with names in another order on one rank", [](Group& group) { several_models(group, 2, true, true); },
       "rank 1 has 'net 1' where the others have 'net 0'"},
      {"three models in another order on one rank", [](Group& group) { several_models(group, 3, true, true); },
       "rank 1 has 'net 2' where the others have 'net 0'", 3},
      {"two models made in another order", [](Group& group) { several_models(group, 2, false, true, true); },
       "ranks disagree in the options of DataParallel"},
      {"other weights loaded on one rank",
       [](Group& group) {
         drift(group, [](Pair& pair, int step) {
           if (step == 3) fill(*pair.mine, 99);
         });
       },
       rates},
      {"another learning rate on one rank", [rate](Group& group) { drift(group, [&](Pair& pair, int) { rate(pair) = 0.1; }); }, rates},
      {"a plateau that one rank alone sees",
       [rate](Group& group) {
         drift(group, [&](Pair& pair, int step) {
           if (step == 5) rate(pair) *= 0.5;
         });
       },
       rates},
      {"a batch skipped on one rank",
       [](Group& group) {
         Net net;
         DataParallel parallel(*net, group, small_buckets());
         for (int step = 0; step < 4; ++step)
           if (step != 2 || group.rank() == 0) loss_of(net, rows_of(group, inputs(step))).backward();
         if (group.rank() == 1) throw std::runtime_error("rank 1 has ended");
       },
       "rank 1", 2, "", 2},
      {"another mean", [](Group& group) { other_options(group, [](DataParallelOptions& o) { o.mean = GradientMean::kSum; }); },
       "buckets of 256 and 512 bytes, compress=none, buffers average, check_weights 1' where the others have"},
      {"other buckets", [](Group& group) { other_options(group, [](DataParallelOptions& o) { o.bucket_bytes = 99; }); },
       "ranks disagree in the options of DataParallel"},
      {"another compression", [](Group& group) { other_options(group, [](DataParallelOptions& o) { o.compress = "bf16"; }); },
       "ranks disagree in the options of DataParallel"},
      {"another policy of buffers",
       [](Group& group) { other_options(group, [](DataParallelOptions& o) { o.buffers = BufferPolicy::kNone; }); },
       "ranks disagree in the options of DataParallel"},
      {"another name", [](Group& group) { other_options(group, [](DataParallelOptions& o) { o.name = "mine"; }); },
       "ranks disagree in the options of DataParallel"},
  };
}

std::vector<Case> cases_of_lives() {
  return {
      {"made anew on the same module",
       [](Group& group) {
         Pair pair(group);
         for (int round = 0; round < 3; ++round) {
           DataParallel parallel(*pair.mine, group, small_buckets());
           pair.step(2 * round), pair.step(2 * round + 1);
         }
         if (group.rank() == 0) pair.mine->zero_grad(), loss_of(pair.mine, inputs(0)).backward();  // Nobody exchanges any more.
       }},
      {"made anew while gradients of the old one are there",
       [](Group& group) {
         Pair pair(group);
         {
           DataParallel parallel(*pair.mine, group, small_buckets());
           pair.step(0);
         }
         DataParallel parallel(*pair.mine, group, small_buckets());
         pair.backward(1), pair.check("on top");
       }},
      {"two on one module",
       [](Group& group) {
         Pair pair(group);
         DataParallel first(*pair.mine, group, small_buckets());
         must_fail("already has a post-accumulate hook", [&] { DataParallel second(*pair.mine, group, small_buckets()); });
         pair.step(0), pair.step(1);
       }},
      {"one on a part of another one's module",
       [](Group& group) {
         Pair pair(group);
         DataParallel first(*pair.mine, group, small_buckets());
         must_fail("already has a post-accumulate hook", [&] { DataParallel second(*pair.mine->head, group, small_buckets()); });
         pair.step(0), pair.step(1);
       }},
      {"two on disjoint parts of one module",
       [](Group& group) {
         Pair pair(group);
         DataParallel first(*pair.mine->first, group), second(*pair.mine->second, group), third(*pair.mine->head, group);
         pair.step(0), pair.step(1), pair.step(2);
       }},
      {"a group of one rank does everything",
       [](Group&) {
         Group alone;
         WrappedPair pair(alone, small_buckets(GradientMean::kSamples));
         pair.step(0);
         pair.parallel.adopt_model(), pair.parallel.abandon_step(), pair.parallel.exchange_without_backward();
         pair.each([](Net& net) { net->add_extra(draw({8}, 4)); });
         pair.renew_optimizers();
         pair.step(1);
         expect(pair.parallel.statistics().num_exchanges == 0, "an exchange");
       }},
      {"made in another thread than backward()",
       [](Group& group) {
         Pair pair(group);
         std::unique_ptr<DataParallel> parallel;
         std::thread([&] { parallel = std::make_unique<DataParallel>(*pair.mine, group, small_buckets()); }).join();
         pair.step(0), pair.step(1);
         std::thread([&] { parallel.reset(); }).join();
       }},
      {"made in another thread, then the model changes",
       [](Group& group) {
         Pair pair(group);
         std::unique_ptr<DataParallel> parallel;
         std::thread([&] { parallel = std::make_unique<DataParallel>(*pair.mine, group, small_buckets()); }).join();
         pair.step(0);
         pair.each([](Net& net) {
           net->set_trained(*net, false);
           net->add_extra(draw({8}, 4));
         });
         pair.renew_optimizers();
         pair.step(1);
       }},
  };
}

TEST_CASE("buffers") { run_cases("buffers", cases_of_buffers()); }
TEST_CASE("several models, and ranks that differ") { run_cases("ranks that differ", cases_of_ranks()); }
TEST_CASE("the life of a DataParallel") { run_cases("lives", cases_of_lives()); }

}  // namespace
}  // namespace cohort
