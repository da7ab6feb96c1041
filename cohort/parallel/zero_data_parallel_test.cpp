#include "cohort/parallel/zero_data_parallel.h"

#include <ATen/autocast_mode.h>
#include <doctest/doctest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>

#include "cohort/base/error.h"
#include "cohort/comm/thread_ranks.h"
#include "cohort/parallel/parameters.h"

namespace cohort {
namespace {

namespace nn = torch::nn;

using Weights = std::map<std::string, torch::Tensor>;

std::mutex& generator_mutex() {
  static std::mutex mutex;  // Ranks as threads share LibTorch's generator: whoever seeds and draws holds this.
  return mutex;
}

/// Everything awkward in one model: a tied weight, a parameter used twice, frozen ones (one of them half), an empty one, two trained types,
/// a module nobody uses and a branch that only some ranks use.
struct AwkwardImpl : nn::Module {
  nn::Linear first{nullptr}, second{nullptr}, branch{nullptr}, never{nullptr};
  torch::Tensor empty, frozen, twice, coarse, frozen_half;

  explicit AwkwardImpl(uint64_t seed) {
    const std::lock_guard<std::mutex> lock(generator_mutex());
    torch::manual_seed(seed);
    first = register_module("first", nn::Linear(6, 5));
    second = register_module("second", nn::Linear(5, 6));
    branch = register_module("branch", nn::Linear(5, 5));
    never = register_module("never", nn::Linear(3, 3));
    empty = register_parameter("empty", torch::empty({0, 4}));
    frozen = register_parameter("frozen", torch::randn({5}), /*requires_grad=*/false);
    twice = register_parameter("twice", torch::randn({5}));
    register_parameter("alias_of_twice", twice);
    to(torch::kDouble);  // Sums of divided rows differ by rounding: double keeps the comparison sharp.
    coarse = register_parameter("coarse", torch::randn({6}));
    frozen_half = register_parameter("frozen_half", torch::randn({6}).to(torch::kHalf), /*requires_grad=*/false);
  }
  torch::Tensor forward(const torch::Tensor& x, bool with_branch) {
    torch::Tensor h = torch::tanh(first(x) * twice + frozen);
    if (with_branch) h = h + branch(h);
    h = second(h * twice) + x.matmul(first->weight.t()).matmul(first->weight) + empty.sum();
    return h * coarse.to(torch::kDouble) + frozen_half.to(torch::kDouble);
  }
};
TORCH_MODULE(Awkward);

constexpr int64_t kRows = 12;
constexpr int kSteps = 4;

torch::Tensor samples(uint64_t seed) {
  const std::lock_guard<std::mutex> lock(generator_mutex());
  torch::manual_seed(seed);
  return torch::randn({kRows, 6}, torch::kDouble);
}

struct Scenario {
  int stage = 1, num_ranks = 2;
  UpdateRule::Kind kind = UpdateRule::Kind::kMomentum;
  int num_micro_steps = 1;
  double clip_norm = 0;
  bool uneven = false;
  int64_t bucket_bytes = 200;

  UpdateRule rule() const { return {.kind = kind, .momentum = 0.9, .weight_decay = 0.05}; }
};

std::string text_of(const Scenario& s) {
  return concat("stage ", s.stage, ", ", s.num_ranks, " ranks, rule ", static_cast<int>(s.kind), ", ", s.num_micro_steps,
                " micro-steps, clip ", s.clip_norm, s.uneven ? ", uneven" : "", ", units of ", s.bucket_bytes);
}

/// Rows of a rank: equal parts, or 7, 4, 1, 0.
std::pair<int64_t, int64_t> rows_of(int rank, const Scenario& s) {
  if (!s.uneven) return {kRows / s.num_ranks * rank, kRows / s.num_ranks};
  const int64_t counts[] = {7, 4, 1, 0};
  int64_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += counts[r];
  return {begin, rank + 1 == s.num_ranks && s.num_ranks < 4 ? kRows - begin : counts[rank]};
}

/// Nobody uses the branch in steps 1 and 4, all in step 2, rank 0 alone in step 3.
bool with_branch(int step, int rank) { return step == 2 || (step == 3 && rank == 0); }

torch::Tensor loss_of(Awkward& model, const torch::Tensor& rows, bool branch) {
  return model->forward(rows, branch).pow(2).mean(1).sum() / kRows;
}

Weights weights_of(const nn::Module& module) {
  Weights out;
  for (const NamedTensor& parameter : distinct_parameters(module)) out[parameter.name] = parameter.tensor.detach().clone();
  return out;
}

/// What one process makes of it, with LibTorch's optimizers.
Weights reference(const Scenario& s) {
  Awkward model(5);
  std::vector<torch::Tensor> trained;
  for (const NamedTensor& parameter : distinct_parameters(*model))
    if (parameter.tensor.requires_grad()) trained.push_back(parameter.tensor);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (s.kind == UpdateRule::Kind::kAdamW)
    optimizer = std::make_unique<torch::optim::AdamW>(trained, torch::optim::AdamWOptions(0.05).weight_decay(0.05));
  else optimizer = std::make_unique<torch::optim::SGD>(trained, torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.05));
  for (int step = 1; step <= kSteps; ++step) {
    optimizer->zero_grad();
    const torch::Tensor all = samples(static_cast<uint64_t>(step));
    for (int rank = 0; rank < s.num_ranks; ++rank) {
      const auto [begin, count] = rows_of(rank, s);
      if (count > 0) loss_of(model, all.narrow(0, begin, count), with_branch(step, rank)).backward();
    }
    double norm_squared = 0;
    for (const torch::Tensor& parameter : trained)
      if (parameter.grad().defined()) norm_squared += parameter.grad().to(torch::kDouble).pow(2).sum().item<double>();
    if (const double norm = std::sqrt(norm_squared); s.clip_norm > 0 && norm > s.clip_norm)
      for (const torch::Tensor& parameter : trained)
        if (parameter.grad().defined()) parameter.mutable_grad().mul_(s.clip_norm / norm);
    optimizer->step();
  }
  return weights_of(*model);
}

/// Steps [from, to] of a rank.
void train(ZeroDataParallel& zero, Awkward& model, Group& group, const Scenario& s, int from, int to) {
  for (int step = from; step <= to; ++step) {
    zero.zero_grad();
    const torch::Tensor all = samples(static_cast<uint64_t>(step));
    const auto [begin, count] = rows_of(group.rank(), s);
    zero.set_control(1, static_cast<float>(group.rank() + step));
    const int64_t piece = (count + s.num_micro_steps - 1) / s.num_micro_steps;
    if (count == 0) zero.exchange_without_backward();
    for (int64_t done = 0; done < count; done += piece) {
      zero.set_sync(done + piece >= count);
      const int64_t rows = std::min(piece, count - done);
      loss_of(model, all.narrow(0, begin + done, rows), with_branch(step, group.rank())).backward();
    }
    zero.set_sync(true);
    zero.finish_backward();
    if (zero.control_sum(1) != s.num_ranks * (s.num_ranks - 1) / 2 + s.num_ranks * step) FAIL("control_sum");
    const StepOutcome outcome = zero.step({.learning_rate = 0.05, .clip_norm = s.clip_norm});
    if ((outcome.gradient_norm > 0) != (s.clip_norm > 0)) FAIL("gradient_norm");
  }
}

ZeroOptions options_of(const Scenario& s) { return {.stage = s.stage, .rule = s.rule(), .bucket_bytes = s.bucket_bytes}; }

void check_close(const Weights& found, const Weights& expected, const std::string& where) {
  for (const auto& [name, value] : expected)
    if (!torch::allclose(found.at(name), value, 1e-6, value.scalar_type() == torch::kFloat ? 5e-6 : 1e-6))
      FAIL(concat(where, ": ", name, " differs by ", (found.at(name) - value).abs().max().item<double>()));
}

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

/// A checkpoint in memory: whole tensors by name.
void save(std::vector<FlatPiece> pieces, std::map<std::string, std::vector<double>>& store,
          std::map<std::string, std::vector<int>>& writes) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  for (const FlatPiece& piece : pieces) {
    int64_t count = 1;
    for (const int64_t size : piece.shape) count *= size;
    store[piece.name].resize(static_cast<size_t>(count));
    writes[piece.name].resize(static_cast<size_t>(count));
    const torch::Tensor values = piece.values.to(torch::kDouble);
    for (int64_t i = 0; i < values.numel(); ++i) {
      store[piece.name][static_cast<size_t>(piece.begin + i)] = values[i].item<double>();
      ++writes[piece.name][static_cast<size_t>(piece.begin + i)];
    }
  }
}

void load(std::vector<FlatPiece> pieces, const std::map<std::string, std::vector<double>>& store) {
  for (const FlatPiece& piece : pieces)
    for (int64_t i = 0; i < piece.values.numel(); ++i) piece.values[i].fill_(store.at(piece.name).at(static_cast<size_t>(piece.begin + i)));
}

TEST_CASE("what one stage saved on some ranks another goes on with on others") {
  for (const auto& [from, to, ranks_before, ranks_after] :
       {std::tuple{1, 3, 2, 3}, std::tuple{3, 2, 4, 2}, std::tuple{2, 1, 3, 4}, std::tuple{3, 3, 2, 1}}) {
    Scenario before{.stage = from, .num_ranks = ranks_before, .kind = UpdateRule::Kind::kAdamW};
    Scenario after{.stage = to, .num_ranks = ranks_after, .kind = UpdateRule::Kind::kAdamW, .bucket_bytes = 77};
    before.uneven = after.uneven = false;
    std::map<std::string, std::vector<double>> store;
    std::map<std::string, std::vector<int>> writes;
    run_thread_ranks(ranks_before, [&](Group& group) {
      Awkward model(5);
      ZeroDataParallel zero(*model, group, options_of(before));
      train(zero, model, group, before, 1, 2);
      save(zero.saved_pieces(), store, writes);
    });
    for (const auto& [name, counts] : writes) CHECK_MESSAGE(counts == std::vector<int>(counts.size(), 1), name);
    CHECK(writes.count("model/empty") == 1);
    CHECK(writes.count("model/frozen_half") == 1);
    CHECK(writes.count("optimizer/twice/exp_avg_sq") == 1);
    CHECK(writes.count("optimizer/coarse/step") == 1);
    // Step 3 is the step in which ranks use the branch differently; the division of rows matters then, so the reference steps likewise.
    Weights expected;
    run_thread_ranks(1, [&](Group& group) {
      Awkward model(7);
      Scenario alone = after;
      alone.stage = 1;
      alone.num_ranks = 1;
      ZeroDataParallel zero(*model, group, options_of(alone));
      load(zero.loaded_pieces(), store);
      zero.loaded();
      train(zero, model, group, alone, 4, 4);
      expected = weights_of(*model);
    });
    run_thread_ranks(ranks_after, [&](Group& group) {
      Awkward model(99);
      ZeroDataParallel zero(*model, group, options_of(after));
      load(zero.loaded_pieces(), store);
      zero.loaded();
      train(zero, model, group, after, 4, 4);
      zero.gather_weights();
      check_close(weights_of(*model), expected, concat("stage ", from, " to ", to, ", rank ", group.rank()));
    });
  }
}

/// Eight equal layers of 64 KiB and a little more.
struct DeepImpl : nn::Module {
  std::vector<nn::Linear> layers;
  DeepImpl() {
    const std::lock_guard<std::mutex> lock(generator_mutex());
    torch::manual_seed(3);
    for (int i = 0; i < 8; ++i) layers.push_back(register_module(concat("layer", i), nn::Linear(128, 128)));
  }
  torch::Tensor layer(size_t index, const torch::Tensor& x) { return torch::tanh(layers[index](x)); }
  torch::Tensor forward(torch::Tensor x) {
    for (size_t i = 0; i < layers.size(); ++i) x = layer(i, x);
    return x;
  }
};
TORCH_MODULE(Deep);

TEST_CASE("stage 3 holds slices and no more whole units than allowed, and is ahead of use once it knows the order") {
  const torch::Tensor input = torch::randn({4, 128});
  run_thread_ranks(2, [&](Group& group) {
    Deep model;
    ZeroDataParallel zero(*model, group, {.stage = 3, .rule = {.kind = UpdateRule::Kind::kAdam}, .bucket_bytes = 70 << 10});
    const int64_t unit = (128 * 128 + 128) * 4;  // A multiple of 128 bytes: no padding.
    if (zero.unit_bytes() != 0) FAIL("whole units after construction");
    for (const torch::Tensor& parameter : model->parameters()) {
      bool refused = false;
      try {
        parameter.data_ptr<float>();
      } catch (const c10::Error& error) {
        refused = std::string(error.what()).find("gather_weights()") != std::string::npos;
      }
      if (!refused) FAIL("a parameter has memory after construction");
    }
    int64_t unforeseen_before = 0;
    for (int step = 0; step < 4; ++step) {
      zero.zero_grad();
      const torch::Tensor loss = model->forward(input).sum();
      if (zero.unit_bytes() > 2 * unit) FAIL(concat("more than two units after forward: ", zero.unit_bytes(), " bytes of units of ", unit));
      unforeseen_before = zero.num_unforeseen_gathers();
      loss.backward();
      for (const torch::Tensor& parameter : model->parameters())
        if (parameter.grad().defined()) FAIL("a whole gradient is left after backward");
      zero.finish_backward();
      zero.step({.learning_rate = 0.01});
      if (zero.unit_bytes() != 0) FAIL("whole units after step()");
    }
    // Layers 8 ... 2 are foreseen in both directions; the first of a step is asked for.
    if (zero.num_unforeseen_gathers() != unforeseen_before) FAIL("gathers in backward were not foreseen");
    if (zero.peak_unit_bytes() > 4 * unit) FAIL(concat("peak of ", zero.peak_unit_bytes(), " bytes of units of ", unit));
    const MemoryForecast forecast = zero.memory_forecast();
    if (forecast.weight_bytes != 8 * unit / 2 + 2 * unit || forecast.gradient_bytes != 8 * unit / 2 + 4 * unit ||
        forecast.optimizer_bytes != 2 * 8 * unit / 2)
      FAIL("forecast");
    if (zero.peak_bytes() > forecast.weight_bytes + forecast.gradient_bytes + forecast.optimizer_bytes)
      FAIL("more than the forecast was held");
    if (zero.peak_bytes() < (4 + 4 + 8 + 2) * unit) FAIL("less than slices, state and two units cannot be");
  });
}

TEST_CASE("stages 1 and 2 forecast what they hold") {
  run_thread_ranks(2, [&](Group& group) {
    const int64_t unit = (128 * 128 + 128) * 4;
    for (const int stage : {1, 2}) {
      Deep model;
      ZeroDataParallel zero(*model, group, {.stage = stage, .rule = {.kind = UpdateRule::Kind::kMomentum}, .bucket_bytes = 70 << 10});
      const MemoryForecast forecast = zero.memory_forecast();
      if (forecast.weight_bytes != 8 * unit || forecast.optimizer_bytes != 4 * unit) FAIL("forecast");
      if (forecast.gradient_bytes != (stage == 1 ? 8 : 4 + 2) * unit) FAIL("forecast of gradients");
      model->forward(torch::ones({2, 128})).sum().backward();
      zero.finish_backward();
      if (stage == 2 && zero.peak_unit_bytes() > 2 * unit) FAIL("more than two units of gradients at once");
      for (const torch::Tensor& parameter : model->parameters())
        if (parameter.grad().defined() != (stage == 1)) FAIL("gradients after backward");
    }
  });
}

TEST_CASE("evaluation under stage 3: between steps, with other numbers of batches on each rank, without gradients or in inference mode") {
  const Scenario s{.stage = 3, .num_ranks = 3};
  run_thread_ranks(s.num_ranks, [&](Group& group) {
    Awkward model(5), whole(5);
    ZeroDataParallel zero(*model, group, options_of(s));
    for (int step = 1; step <= 3; ++step) {
      train(zero, model, group, s, step, step);
      zero.gather_weights();
      for (const NamedTensor& parameter : distinct_parameters(*whole)) {
        at::NoGradGuard no_grad;
        parameter.tensor.copy_(model->named_parameters()[parameter.name]);
      }
      zero.release_weights();
      if (zero.unit_bytes() != 0) FAIL("weights were not released");
      const torch::Tensor rows = samples(100);
      for (int batch = 0; batch < group.rank() * 2; ++batch) {  // Rank 0 has none.
        const bool branch = batch % 2 == 1;
        torch::Tensor found, expected;
        if (batch < 2) {
          at::NoGradGuard no_grad;
          found = model->forward(rows, branch);
          expected = whole->forward(rows, branch);
        } else {
          c10::InferenceMode inference;
          found = model->forward(rows, branch);
          expected = whole->forward(rows, branch);
        }
        if (!torch::equal(found, expected)) FAIL("evaluation differs");
      }
      zero.finish_evaluation();
      group.barrier();
    }
  });
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
        return zero.step({.learning_rate = 0.5, .gradient_factor = 1.0 / 1024, .check_finite = true});
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
        }).find("one strategy at a time") != std::string::npos);
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
