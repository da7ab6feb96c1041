#include "cohort/trials/model_trial.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/models/layers/dropout.h"
#include "cohort/models/layers/ghost_batch_norm.h"
#include "cohort/models/parts.h"
#include "cohort/models/registry.h"
#include "cohort/run/trainer.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/tiny_trials.h"

namespace cohort {
namespace {

const char* const kFc = "fc:hidden=10,layers=2";

/// Convolution, ghost batch norm, dropout, a frozen layer and one that nobody uses.
BuiltModel build_odd(const ModelOptions& options) {
  auto graph = std::make_shared<LayerGraph>();
  add_conv(*graph, "conv", 1, 6, 3, 2);
  graph->add("norm", "ghostbatchnorm2d", GhostBatchNorm2d(6, 4));
  graph->set_sample_granularity(4);
  add_relu(*graph, "relu");
  const int flat = add_flatten(*graph, "flatten");
  add_linear(*graph, "unused", 96, 3);
  const torch::nn::Linear frozen(96, 20);
  for (at::Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
  graph->add("frozen", "linear", frozen, {flat});
  graph->add("dropout", "dropout", Dropout(0.3, 1));
  add_linear(*graph, "output", 20, options.data().num_classes);
  return graph;
}

struct OddModel {
  OddModel() {
    if (!registered_models().contains("odd-trial")) register_model("odd-trial", "", build_odd);
  }
};

struct OwnLossModel {
  OwnLossModel() {
    if (registered_models().contains("own-loss-trial")) return;
    register_model("own-loss-trial", "", [](const ModelOptions& options) {
      return BuiltModel(build_odd(options).graph, {.loss = [](const at::Tensor& output, const at::Tensor&) { return output.sum(); }});
    });
  }
};

/// Validation losses after steps 1, 2, ... of `cohort train`.
std::vector<double> losses_of_train(const study::StudySpec& spec, const study::TrialOrder& order) {
  const TemporaryFolder folder;
  Config config;
  config.run = folder / "run";
  config.data = spec.data;
  config.model = spec.model;
  config.optimizer = spec.optimizer;
  config.lr = order.parameters.at("learning_rate");
  config.global_batch = order.batch_size;
  config.steps = order.train_steps;
  config.seed = order.seed;
  config.eval_every = 1;
  config.quiet = true;
  config.threads = 1;
  config.weight_decay = spec.weight_decay;
  if (order.parameters.contains("decay_steps")) {
    config.schedule_lr = "linear";
    config.warmup_steps = static_cast<int64_t>(order.parameters.at("warmup_steps"));
    config.lr_end_factor = order.parameters.at("end_factor");
  }
  train(config, data_of(spec), World{});
  std::vector<double> losses;
  std::ifstream lines(folder / "run/metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line);
    if (json.contains("val_loss") && json.value("event", "") == "eval") losses.push_back(json["val_loss"]);
  }
  return losses;
}

std::vector<double> without_first(std::vector<double> values) {
  if (!values.empty()) values.erase(values.begin());
  return values;
}

TEST_CASE("a trial gives the numbers of train") {
  const OddModel odd;
  // 22 divides the 110 samples, 6 the 30 of text: else the two part at the end of an epoch, where trials run on.
  for (const char* const optimizer : {"sgd", "momentum", "nesterov", "adam", "adamw"}) {
    study::StudySpec spec = tiny_spec(kFc, optimizer);
    spec.weight_decay = 0.01;
    const study::TrialOrder order = tiny_order(std::string(optimizer).starts_with("adam") ? 0.01 : 0.1, 22);
    const std::vector<double> expected = losses_of_train(spec, order);
    REQUIRE(expected.size() == 12);
    for (const bool chain : {true, false}) {
      const auto runner = make_model_runner(spec, data_of(spec), Group(), {.use_dense_chain = chain});
      const RecordedTrial heard = run_trial(*runner, order);
      INFO(optimizer, " chain ", chain);
      CHECK(largest_difference(without_first(heard.val_losses()), expected) < 2e-6);
      CHECK(heard.outcome.status == study::TrialStatus::kComplete);
      CHECK(heard.outcome.steps == 12);
    }
  }
  study::TrialOrder order = tiny_order(0.2, 22);
  order.parameters.insert({{"warmup_steps", 3}, {"decay_steps", 9}, {"end_factor", 0.1}});
  for (const char* const model : {kFc, "odd-trial", "cnn:conv1=3,conv2=4,hidden=8"}) {
    const study::StudySpec spec = tiny_spec(model, "momentum");
    const RecordedTrial heard = run_trial(*make_model_runner(spec, data_of(spec), Group()), order);
    INFO(model);
    CHECK(largest_difference(without_first(heard.val_losses()), losses_of_train(spec, order)) < 2e-6);
  }
  study::StudySpec text = tiny_spec("transformer:layers=1,width=16,dropout=0.2,tied=1", "adam");
  text.data = "synthetic:text,samples=60";
  text.context = 8;
  const RecordedTrial heard = run_trial(*make_model_runner(text, data_of(text), Group()), tiny_order(0.01, 6, 7));
  CHECK(largest_difference(without_first(heard.val_losses()), losses_of_train(text, tiny_order(0.01, 6, 7))) < 2e-6);
}

TEST_CASE("the same order gives the same bits, whatever ran before") {
  const OddModel odd;
  for (const char* const model : {kFc, "odd-trial"}) {
    const study::StudySpec spec = tiny_spec(model, "adam");
    const auto runner = make_model_runner(spec, data_of(spec), Group());
    const std::vector<double> first = run_trial(*runner, tiny_order(0.01)).val_losses();
    run_trial(*runner, tiny_order(0.3, 50, 3));
    CHECK(run_trial(*runner, tiny_order(0.01)).val_losses() == first);
    CHECK(run_trial(*make_model_runner(spec, data_of(spec), Group()), tiny_order(0.01)).val_losses() == first);
    CHECK(first.front() != first.back());
  }
}

TEST_CASE("a stopped trial goes on from its snapshot with the same bits") {
  const OddModel odd;
  const TemporaryFolder folder;
  for (const char* const model : {kFc, "odd-trial"})
    for (const char* const optimizer : {"sgd", "adam"}) {
      const study::StudySpec spec = tiny_spec(model, optimizer);
      study::TrialOrder order = tiny_order(0.02);
      const std::vector<double> whole = run_trial(*make_model_runner(spec, data_of(spec), Group()), order).val_losses();
      order.snapshot = folder / (std::string(model).substr(0, 3) + optimizer);
      int calls = 0;
      const auto stopping = make_model_runner(spec, data_of(spec), Group(), {.stop = [&] { return ++calls == 5; }});
      const RecordedTrial part = run_trial(*stopping, order);
      CHECK(part.outcome.status == study::TrialStatus::kIncomplete);
      CHECK(part.outcome.steps == 5);
      CHECK(part.measurements.size() == 5);  // Steps 0 to 4: that of step 5 belongs to the next start.
      const RecordedTrial rest = run_trial(*make_model_runner(spec, data_of(spec), Group()), order);
      CHECK(rest.val_losses() == whole);
      CHECK(rest.outcome.status == study::TrialStatus::kComplete);
    }
  CHECK(!std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a trial knows how long it took over all its starts") {
  const TemporaryFolder folder;
  const study::StudySpec spec = tiny_spec(kFc);
  study::TrialOrder order = tiny_order(0.02);
  order.snapshot = folder / "snapshot";
  // Each start makes two steps, of 5 ms at least, and stops.
  const auto next_outcome = [&] {
    int calls = 0;
    const auto stop = [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return ++calls == 2;
    };
    return run_trial(*make_model_runner(spec, data_of(spec), Group(), {.stop = stop}), order).outcome;
  };
  const double kRounding = 1e-6;
  double sum = 0;
  for (int start = 0; start < 3; ++start) {
    const study::TrialOutcome outcome = next_outcome();
    CHECK(outcome.steps == 2 * (start + 1));
    CHECK(outcome.seconds_before >= 0.01 * start - kRounding);
    CHECK(outcome.seconds_before <= sum + kRounding);  // Less than that: the last look at the clock is before the file is written.
    sum += outcome.seconds;
  }
  // Another number in the file, and a file of before, which had none.
  std::string content = read_small_file(order.snapshot, 1 << 20);
  const size_t at = content.find("\"seconds\":\"0");
  REQUIRE(at != std::string::npos);
  std::string more = content, none = content;
  more[at + 11] = '7';
  none[at + 1] = 'S';
  write_file_atomically(order.snapshot, more);
  CHECK(next_outcome().seconds_before > 7);
  write_file_atomically(order.snapshot, none);
  const study::TrialOutcome outcome = next_outcome();
  CHECK(outcome.seconds_before == 0);
  CHECK(outcome.steps == 8);
}

TEST_CASE("a snapshot is written now and then, and the watch may stop at what it holds") {
  const TemporaryFolder folder;
  const study::StudySpec spec = tiny_spec(kFc);
  study::TrialOrder order = tiny_order(0.02);
  order.snapshot = folder / "snapshot";
  const auto runner = make_model_runner(spec, data_of(spec), Group(), {.snapshot_seconds = 0});
  const std::vector<double> whole = run_trial(*runner, order).val_losses();
  REQUIRE(std::filesystem::exists(order.snapshot));
  CHECK(run_trial(*runner, order).val_losses() == whole);
  const RecordedTrial censored = run_trial(*runner, order, 4);
  CHECK(censored.outcome.status == study::TrialStatus::kCensored);
  CHECK(censored.outcome.steps == 4);
  CHECK(censored.measurements.size() == 5);
}

TEST_CASE("a damaged or foreign snapshot is not used") {
  const TemporaryFolder folder;
  const study::StudySpec spec = tiny_spec(kFc, "momentum");
  study::TrialOrder order = tiny_order(0.02);
  const auto runner = make_model_runner(spec, data_of(spec), Group(), {.snapshot_seconds = 0});
  const std::vector<double> whole = run_trial(*runner, order).val_losses();
  order.snapshot = folder / "snapshot";
  const auto write = [&](const std::string& content) { write_file_atomically(order.snapshot, content); };
  run_trial(*runner, order);
  const std::string good = read_small_file(order.snapshot, 1 << 20);
  write(good.substr(0, good.size() / 2));
  CHECK(run_trial(*runner, order).val_losses() == whole);
  std::string flipped = good;
  flipped[flipped.size() - 100] ^= 4;
  write(flipped);
  CHECK(run_trial(*runner, order).val_losses() == whole);
  write("");
  CHECK(run_trial(*runner, order).val_losses() == whole);
  study::TrialOrder other = order;
  other.parameters["learning_rate"] = 0.03;
  study::TrialOrder plain = other;
  plain.snapshot.clear();
  CHECK(run_trial(*runner, other).val_losses() == run_trial(*runner, plain).val_losses());
}

TEST_CASE("a team trains as one process") {
  const OddModel odd;
  for (const char* const model : {kFc, "odd-trial"})
    // 110 samples: the seventh batch of 16 runs on into the next epoch, the third of 45 too.
    for (const auto& [num_ranks, batch] : {std::pair{2, 16}, {3, 45}}) {
      study::StudySpec spec = tiny_spec(model, "momentum");
      const DataSet data = data_of(spec);
      study::TrialOrder order = tiny_order(0.05, batch);
      order.parameters["label_smoothing"] = 0.1;
      const std::vector<double> alone = run_trial(*make_model_runner(spec, data, Group()), order).val_losses();
      spec.max_microbatch = batch == 45 ? 8 : 0;
      std::vector<double> together;
      run_thread_ranks(num_ranks, [&](Group& team) {
        const RecordedTrial heard = run_trial(*make_model_runner(spec, data, team), order);
        if (heard.outcome.status != study::TrialStatus::kComplete || heard.outcome.steps != 12) FAIL("an outcome differs");
        if (team.rank() == 0) together = heard.val_losses();
        else if (!heard.measurements.empty()) FAIL("only the first rank is asked");
      });
      INFO(model, " ranks ", num_ranks, " batch ", batch);
      CHECK(largest_difference(together, alone) < 1e-5);
      CHECK(together != std::vector<double>(together.size(), together.front()));
    }
}

TEST_CASE("a team stops, saves and goes on together") {
  const TemporaryFolder folder;
  const study::StudySpec spec = tiny_spec(kFc, "adam");
  const DataSet data = data_of(spec);
  study::TrialOrder order = tiny_order(0.02);
  std::vector<double> whole, resumed;
  run_thread_ranks(2, [&](Group& team) {
    const RecordedTrial heard = run_trial(*make_model_runner(spec, data, team), order);
    if (team.rank() == 0) whole = heard.val_losses();
    study::TrialOrder saved = order;
    saved.snapshot = folder / "snapshot";
    // The second rank alone wishes it.
    int calls = 0;
    const auto stop = [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      return team.rank() == 1 && ++calls == 5;
    };
    const auto stopping = make_model_runner(spec, data, team, {.stop = stop});
    const RecordedTrial part = run_trial(*stopping, saved);
    if (part.outcome.status != study::TrialStatus::kIncomplete || part.outcome.steps != 5) FAIL("the ranks do not stop together");
    team.barrier();
    const auto runner = make_model_runner(spec, data, team);
    const RecordedTrial rest = run_trial(*runner, saved);
    const double before = rest.outcome.seconds_before;
    if (team.rank() == 0 && !(before >= 2 * 0.01 && before <= 2 * part.outcome.seconds + 1e-6))
      FAIL("the seconds of both ranks are not kept");
    if (team.rank() == 0) resumed = rest.val_losses();
    study::TrialOrder censored = order;
    if (run_trial(*runner, censored, 7).outcome.steps != 7) FAIL("the ranks are not censored together");
  });
  CHECK(resumed == whole);
}

TEST_CASE("divergence, censoring, refusals") {
  study::StudySpec spec = tiny_spec(kFc);
  spec.diverged_above = 100;
  const auto runner = make_model_runner(spec, data_of(spec), Group());
  const RecordedTrial diverged = run_trial(*runner, tiny_order(1e6));
  CHECK(diverged.outcome.status == study::TrialStatus::kInfeasible);
  CHECK(diverged.outcome.steps < 12);
  CHECK(diverged.outcome.steps == diverged.measurements.back().step);
  const RecordedTrial overflown = run_trial(*runner, tiny_order(1e30));
  CHECK(overflown.outcome.status == study::TrialStatus::kInfeasible);
  for (const double loss : overflown.val_losses()) CHECK(std::isfinite(loss));
  run_thread_ranks(2, [&](Group& team) {
    if (run_trial(*make_model_runner(spec, data_of(spec), team), tiny_order(1e30)).outcome.steps != overflown.outcome.steps)
      FAIL("ranks diverge at different steps");
  });
  spec.evaluation_ratio = 2;
  const RecordedTrial censored = run_trial(*make_model_runner(spec, data_of(spec), Group()), tiny_order(0.1), 5);
  CHECK(censored.outcome.status == study::TrialStatus::kCensored);
  CHECK(censored.outcome.steps == 8);
  CHECK(run_trial(*make_model_runner(spec, data_of(spec), Group()), tiny_order(0.1), 12).outcome.status == study::TrialStatus::kComplete);
  CHECK_THROWS_AS(run_trial(*runner, tiny_order(-1)), Error);
  CHECK_THROWS_AS(make_model_runner(tiny_spec("no-such-model"), data_of(spec), Group()), Error);
  const OwnLossModel registered;
  CHECK_THROWS_WITH_AS(make_model_runner(tiny_spec("own-loss-trial"), data_of(spec), Group()),
                       doctest::Contains("has a loss of its own, and a study measures the cross-entropy"), Error);
  run_thread_ranks(3, [&](Group& team) {
    const auto small = make_model_runner(spec, data_of(spec), team);
    try {
      run_trial(*small, tiny_order(0.1, 2));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kBadInput) return;
    }
    FAIL("a batch of 2 is not for 3 ranks");
  });
}

bool is_better_than_before(const std::vector<study::Measurement>& all, size_t i) {
  const auto is_least = [&](study::Metric metric) {
    return std::all_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i),
                       [&](const study::Measurement& one) { return one.values[metric] > all[i].values[metric]; });
  };
  return is_least(study::kValLoss) || is_least(study::kValError);
}

TEST_CASE("the test split is looked at where validation is better than ever before, on any team and after a snapshot") {
  const TemporaryFolder folder;
  study::StudySpec spec = tiny_spec(kFc);
  CHECK_THROWS_WITH_AS(TrialData(data_of(spec), {.with_test = true}), doctest::Contains("has no test samples; leave evaluate_test out"),
                       Error);
  DataSet data = data_of(spec);
  data.test = data.validation;  // So what it finds there is known.
  study::TrialOrder order = tiny_order(1.5, 6, 20);
  const std::vector<double> without = run_trial(*make_model_runner(spec, data, Group()), order).val_losses();
  spec.evaluate_test = true;
  const auto check = [&](const std::vector<study::Measurement>& all) {
    size_t num_tested = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      const auto& values = all[i].values;
      INFO("step ", all[i].step);
      CHECK(std::isnan(values[study::kTestLoss]) != is_better_than_before(all, i));
      CHECK(std::isnan(values[study::kTestError]) == std::isnan(values[study::kTestLoss]));
      if (std::isnan(values[study::kTestLoss])) continue;
      ++num_tested;
      CHECK(values[study::kTestLoss] == values[study::kValLoss]);
      CHECK(values[study::kTestError] == values[study::kValError]);
    }
    CHECK(num_tested > 1);
    CHECK(num_tested < all.size());
  };
  const RecordedTrial heard = run_trial(*make_model_runner(spec, data, Group()), order);
  CHECK(heard.val_losses() == without);
  check(heard.measurements);
  order.snapshot = folder / "snapshot";
  int calls = 0;
  run_trial(*make_model_runner(spec, data, Group(), {.stop = [&] { return ++calls == 7; }}), order);
  REQUIRE(std::filesystem::exists(order.snapshot));
  run_thread_ranks(2, [&](Group& team) {
    const RecordedTrial resumed = run_trial(*make_model_runner(spec, data, team), order);
    if (team.rank() != 0) return;
    CHECK(largest_difference(resumed.val_losses(), without) < 2e-6);
    check(resumed.measurements);
  });
}

TEST_CASE("training samples are evaluated where that is asked for, and costs are measured") {
  study::StudySpec spec = tiny_spec(kFc);
  spec.evaluate_train = true;
  spec.train_samples = 25;
  const auto runner = make_model_runner(spec, data_of(spec), Group());
  const RecordedTrial heard = run_trial(*runner, tiny_order(0.3, 25, 300));
  const auto& last = heard.measurements.back().values;
  CHECK(last[study::kTrainLoss] < 0.1 * heard.measurements.front().values[study::kTrainLoss]);
  CHECK(last[study::kTrainError] == 0);  // 25 samples are soon known by heart.
  CHECK(std::isnan(last[study::kTestLoss]));
  const study::TrialRunner::Cost cost = runner->measure(8);
  CHECK(cost.step_seconds > 0);
  CHECK(cost.evaluation_seconds > 0);
}

}  // namespace
}  // namespace cohort
