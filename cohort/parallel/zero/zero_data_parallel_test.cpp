#include "cohort/parallel/zero/zero_data_parallel.h"

#include <ATen/autocast_mode.h>

#include "cohort/base/fail.h"
#include "tests/support/zero_checkpoint.h"
#include "tests/support/zero_model.h"

namespace cohort {
namespace {

using namespace zero_test;

std::vector<Scenario> scenarios() {
  std::vector<Scenario> all;
  for (const int stage : {1, 2, 3})
    for (const int num_ranks : {1, 2, 3, 4})
      for (const auto kind : {UpdateRule::Kind::kMomentum, UpdateRule::Kind::kAdamW})
        for (const bool uneven : {false, true}) {
          if (num_ranks == 1 && uneven) continue;
          all.push_back({.stage = stage, .num_ranks = num_ranks, .kind = kind, .num_micro_steps = uneven ? 2 : 1, .uneven = uneven});
        }
  for (const int stage : {1, 2, 3}) {
    all.push_back({.stage = stage, .num_micro_steps = 3, .clip_norm = 0.5});
    all.push_back({.stage = stage, .num_ranks = 4, .clip_norm = 0.5, .uneven = true, .bucket_bytes = 1});
    all.push_back({.stage = stage, .num_ranks = 3, .kind = UpdateRule::Kind::kAdamW, .clip_norm = 0.5, .bucket_bytes = 1 << 20});
  }
  return all;
}

TEST_CASE("an awkward model trained by any stage, optimizer, number of ranks and division of rows is that of one process") {
  for (const Scenario& s : scenarios()) {
    const Weights expected = reference(s);
    run_thread_ranks(s.num_ranks, [&](Group& group) {
      Awkward model(group.rank() == 0 ? 5 : 77 + group.rank());  // The others' values must not matter.
      ZeroDataParallel zero(*model, group, options_of(s));
      train(zero, model, group, s, 1, kSteps);
      zero.gather_weights();
      check_close(weights_of(*model), expected, concat(text_of(s), ", rank ", group.rank()));
    });
  }
}

TEST_CASE("two runs agree bitwise, and so do the stages") {
  Weights first;
  for (const int stage : {1, 2, 3, 3}) {
    const Scenario s{.stage = stage, .num_ranks = 3, .clip_norm = 0.5};
    Weights found;
    run_thread_ranks(s.num_ranks, [&](Group& group) {
      Awkward model(5);
      ZeroDataParallel zero(*model, group, options_of(s));
      train(zero, model, group, s, 1, kSteps);
      zero.gather_weights();
      if (group.rank() == 1) found = weights_of(*model);
    });
    if (first.empty()) first = found;
    for (const auto& [name, value] : first) CHECK_MESSAGE(torch::equal(found.at(name), value), concat("stage ", stage, ": ", name));
  }
}

TEST_CASE("what one stage saved on some ranks another goes on with on others") {
  for (const auto& [from, to, ranks_before, ranks_after] :
       {std::tuple{1, 3, 2, 3}, std::tuple{3, 2, 4, 2}, std::tuple{2, 1, 3, 4}, std::tuple{3, 3, 2, 1}}) {
    Scenario before{.stage = from, .num_ranks = ranks_before, .kind = UpdateRule::Kind::kAdamW};
    Scenario after{.stage = to, .num_ranks = ranks_after, .kind = UpdateRule::Kind::kAdamW, .bucket_bytes = 77};
    before.uneven = after.uneven = false;
    Saved saved;
    run_thread_ranks(ranks_before, [&](Group& group) {
      Awkward model(5);
      ZeroDataParallel zero(*model, group, options_of(before));
      train(zero, model, group, before, 1, 2);
      saved.save(zero.saved_pieces());
    });
    for (const auto& [name, counts] : saved.writes) CHECK_MESSAGE(counts == std::vector<int>(counts.size(), 1), name);
    CHECK(saved.writes.count("model/empty") == 1);
    CHECK(saved.writes.count("model/frozen_half") == 1);
    CHECK(saved.writes.count("optimizer/twice/exp_avg_sq") == 1);
    CHECK(saved.writes.count("optimizer/coarse/step") == 1);
    // Step 3 is the step in which ranks use the branch differently; the division of rows matters then, so the reference steps likewise.
    Weights expected;
    run_thread_ranks(1, [&](Group& group) {
      Awkward model(7);
      Scenario alone = after;
      alone.stage = 1;
      alone.num_ranks = 1;
      ZeroDataParallel zero(*model, group, options_of(alone));
      saved.load(zero.loaded_pieces());
      zero.loaded();
      train(zero, model, group, alone, 4, 4);
      expected = weights_of(*model);
    });
    run_thread_ranks(ranks_after, [&](Group& group) {
      Awkward model(99);
      ZeroDataParallel zero(*model, group, options_of(after));
      saved.load(zero.loaded_pieces());
      zero.loaded();
      train(zero, model, group, after, 4, 4);
      zero.gather_weights();
      check_close(weights_of(*model), expected, concat("stage ", from, " to ", to, ", rank ", group.rank()));
    });
  }
}

TEST_CASE("ranks may use units in different orders, and go on together afterwards") {
  const torch::Tensor input = torch::randn({4, 128});
  run_thread_ranks(3, [&](Group& group) {
    Deep model;
    ZeroDataParallel zero(*model, group, {.stage = 3, .bucket_bytes = 70 << 10});
    for (int step = 0; step < 4; ++step) {
      zero.zero_grad();
      torch::Tensor x = input;
      const size_t num_layers = model->layers.size();
      for (size_t i = 0; i < num_layers; ++i) {
        const bool backwards = step == 1 && group.rank() == 1;       // One rank goes through the layers from the end.
        if (step == 2 && group.rank() == 2 && i % 2 == 1) continue;  // One leaves every second one out.
        x = model->layer(backwards ? num_layers - 1 - i : i, x);
      }
      x.sum().backward();
      zero.finish_backward();
      zero.step({.learning_rate = 0.001});
    }
    zero.gather_weights();
    const torch::Tensor mine = nn::utils::parameters_to_vector(model->parameters()).detach();
    torch::Tensor all = torch::empty({3, mine.numel()});
    group.all_gather(all, mine, "weights");
    if (!torch::equal(all[0], all[1]) || !torch::equal(all[0], all[2])) FAIL("ranks hold different weights");
  });
}

/// Layers whose backward keeps other things than their weights: convolution, batch norm, LSTM, embedding, attention products.
struct MixedImpl : nn::Module {
  nn::Embedding embedding{nullptr};
  nn::Conv1d conv{nullptr};
  nn::BatchNorm1d norm{nullptr};
  nn::LSTM lstm{nullptr};
  nn::LayerNorm layer_norm{nullptr};
  MixedImpl() {
    const std::lock_guard<std::mutex> lock(generator_mutex());
    torch::manual_seed(11);
    embedding = register_module("embedding", nn::Embedding(16, 8));
    conv = register_module("conv", nn::Conv1d(nn::Conv1dOptions(8, 8, 3).padding(1)));
    norm = register_module("norm", nn::BatchNorm1d(8));
    lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(8, 8).num_layers(2).batch_first(true)));
    layer_norm = register_module("layer_norm", nn::LayerNorm(nn::LayerNormOptions({8})));
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    torch::Tensor h = torch::relu(norm(conv(embedding(ids).transpose(1, 2)))).transpose(1, 2);
    h = layer_norm(std::get<0>(lstm(h)) + h);
    return h.matmul(embedding->weight.t());  // Tied.
  }
};
TORCH_MODULE(Mixed);

TEST_CASE("convolution, recurrent, normalisation and embedding layers train under every stage as alone; buffers agree") {
  const torch::Tensor ids = torch::randint(0, 16, {4, 6}, torch::kLong);
  const auto run = [&](int num_ranks, int stage) {
    Weights result;
    run_thread_ranks(num_ranks, [&](Group& group) {
      torch::set_num_threads(1);  // Ranks share the cores.
      Mixed model;
      ZeroDataParallel zero(*model, group, {.stage = stage, .rule = {.kind = UpdateRule::Kind::kMomentum}, .bucket_bytes = 300});
      // Every rank has the same rows, so that batch statistics are those of one process.
      for (int step = 0; step < 3; ++step) {
        zero.zero_grad();
        (model->forward(ids).pow(2).mean() / num_ranks).backward();
        zero.finish_backward();
        zero.step({.learning_rate = 0.1});
      }
      zero.gather_weights();
      if (group.rank() + 1 < num_ranks) return;
      result = weights_of(*model);
      for (const NamedTensor& buffer : distinct_buffers(*model)) result[buffer.name] = buffer.tensor.to(torch::kFloat);
    });
    return result;
  };
  const Weights expected = run(1, 1);
  for (const int stage : {1, 2, 3})
    for (const auto& [name, value] : run(2, stage)) CHECK_MESSAGE(torch::allclose(value, expected.at(name), 1e-5, 1e-6), name);
}

TEST_CASE("under autocast gradients are those of whole weights") {
  const torch::Tensor input = torch::randn({4, 128});
  const auto gradients = [&](Deep& model) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const torch::Tensor loss = model->forward(input).to(torch::kFloat).pow(2).sum();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    loss.backward();
  };
  Deep whole;
  gradients(whole);
  run_thread_ranks(2, [&](Group& group) {
    Deep model;
    ZeroDataParallel zero(*model, group, {.stage = 3, .bucket_bytes = 70 << 10});
    gradients(model);
    zero.finish_backward();
    zero.step({.learning_rate = 1});  // w - 2 g
    zero.gather_weights();
    const auto expected = whole->parameters(), found = model->parameters(), start = Deep()->parameters();
    for (size_t i = 0; i < expected.size(); ++i)
      if (!torch::allclose(found[i], start[i] - 2 * expected[i].grad(), 1e-5, 1e-6)) FAIL(concat("parameter ", i));
  });
}

TEST_CASE("an infinite gradient of one rank skips the update on all, and the loss scale is taken out") {
  for (const int stage : {1, 2, 3}) {
    run_thread_ranks(2, [&](Group& group) {
      nn::Linear model(3, 2);
      ZeroDataParallel zero(*model, group, {.stage = stage});
      const auto weight = [&] {
        zero.gather_weights();
        torch::Tensor copy = model->weight.detach().clone();
        zero.release_weights();
        return copy;
      };
      const torch::Tensor before = weight();
      const auto step = [&](float scale) {
        zero.zero_grad();
        (model->forward(torch::ones({1, 3})) * scale).sum().backward();
        zero.finish_backward();
        zero.set_gradient_factor(1.0 / 1024);
        return zero.step({.learning_rate = 0.5, .check_finite = true});
      };
      if (!step(group.rank() == 1 ? INFINITY : 1.0f).skipped) FAIL("an infinite gradient was applied");
      if (!torch::equal(weight(), before)) FAIL("weights changed");
      if (step(1024.0f).skipped) FAIL("a finite gradient was skipped");
      if (!torch::allclose(weight(), before - 1.0f)) FAIL("the loss scale stayed in");  // Two ranks, 0.5 each.
    });
  }
}

std::string refusal(const std::function<void(Group&)>& body, int num_ranks = 2) {
  try {
    run_thread_ranks(num_ranks, body);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("what cannot be done is refused with a sentence") {
  CHECK(refusal([](Group& group) {
          nn::Linear model(2, 2);
          ZeroDataParallel zero(*model, group, {.stage = 4});
        }).find("not 4") != std::string::npos);
  CHECK(refusal([](Group& group) {
          nn::Linear model(2, group.rank() + 2);
          ZeroDataParallel zero(*model, group, {});
        }).find("weight") != std::string::npos);
  CHECK(refusal([](Group& group) {
          nn::Linear a(2, 2), b(2, 2);
          b->weight.set_data(a->weight);
          nn::Sequential model(a, b);
          ZeroDataParallel zero(*model, group, {});
        }).find("0.weight and 1.weight share memory") != std::string::npos);
  CHECK(refusal([](Group& group) {
          nn::Linear model(2, 2);
          ZeroDataParallel zero(*model, group, {});
          ZeroDataParallel second(*model, group, {});
        }).find("in one Parallel") != std::string::npos);
  CHECK(refusal([](Group& group) {
          nn::Linear model(2, 2);
          model->to(torch::kHalf);
          ZeroDataParallel zero(*model, group, {});
        }).find("type is Half") != std::string::npos);
  CHECK(refusal([](Group& group) {
          nn::Linear model(2, 2);
          ZeroDataParallel zero(*model, group, {.stage = 3});
          if (group.rank() == 0) zero.finish_evaluation();
          else zero.finish_backward();
        }).find("all ranks must train and evaluate in the same order") != std::string::npos);
}

TEST_CASE("a graph from before the step is refused, as in one process") {
  run_thread_ranks(2, [](Group& group) {
    nn::Sequential model(nn::Linear(2, 2), nn::Linear(2, 2));
    ZeroDataParallel zero(*model, group, {.stage = 3});
    const torch::Tensor x = torch::ones({1, 2}), old = model->forward(x).sum();
    model->forward(x).sum().backward();
    zero.step({.learning_rate = 0.1});
    bool refused = false;
    try {
      old.backward();
    } catch (const c10::Error&) {
      refused = true;
    }
    if (!refused) FAIL("a stale graph was accepted");
  });
}

}  // namespace
}  // namespace cohort
