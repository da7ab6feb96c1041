// Trials of a batch-size study, timed. No LibTorch.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "bench/program/bench_verb.h"
#include "bench/program/peer.h"
#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/data/source/source.h"
#include "cohort/job/option_rules.h"
#include "cohort/trials/model_trial.h"

namespace cohort {
namespace {

struct BenchStudyOptions {
  std::string model = "fc:hidden=64,layers=3";
  std::string optimizer = "sgd";
  int64_t batch_size = 8, steps = 1000;
  double learning_rate = 0.1;
  double evaluation_ratio = 2;
  bool use_dense_chain = true;
};

struct TrialTime {
  double cpu_seconds = 0;  ///< Processor time of this process for one trial.
  double seconds = 0;      ///< Wall clock.
  double val_error = 0;    ///< At the end.
};

/// Model and evaluation grid of a study.
study::StudySpec bench_study_spec(const BenchStudyOptions& options) {
  study::StudySpec spec;
  spec.name = "bench";
  spec.model = options.model;
  spec.optimizer = options.optimizer;
  spec.evaluation_ratio = options.evaluation_ratio;
  return spec;
}

/// The samples, held in memory for all trials.
std::shared_ptr<const TrialData> bench_study_data(const DataSet& data) { return std::make_shared<const TrialData>(data); }

/// Runs one trial in this process on one thread.
TrialTime bench_trial(const BenchStudyOptions& options, std::shared_ptr<const TrialData> data) {
  const auto runner = make_model_runner(bench_study_spec(options), std::move(data), Group(), {.use_dense_chain = options.use_dense_chain});
  TrialTime time;
  const double before = process_cpu_seconds();
  const study::TrialOrder order{
      .batch_size = options.batch_size, .train_steps = options.steps, .parameters = {{"learning_rate", options.learning_rate}}, .seed = 1};
  const study::TrialOutcome outcome = runner->run(order, {[&](const study::Measurement& measurement) {
                                                    time.val_error = measurement.values[study::kValError];
                                                    return options.steps;
                                                  }});
  time.cpu_seconds = process_cpu_seconds() - before;
  time.seconds = outcome.seconds;
  if (outcome.status != study::TrialStatus::kComplete)
    fail(ErrorCode::kFailed, "bench study: the trial of batch ", options.batch_size, " did not complete; use another learning rate");
  return time;
}

constexpr double kSecondsOfHour = 3600;
const char* const kDefaultFolder = "/usr/share/datasets/fashion-mnist";
const char* const kPeerModel = "fc:hidden=64,layers=3";

/// Processor seconds of whole trials in each round.
struct Measured {
  std::vector<double> chain, autograd, peer;
  double val_error = 0;
};

double trials_per_core_hour(const std::vector<double>& seconds) { return kSecondsOfHour / median(seconds); }

/// The folder with Fashion-MNIST's files, which the peer reads itself.
std::string folder_of(const std::string& data) {
  const size_t colon = data.find(':');
  return colon == std::string::npos ? kDefaultFolder : data.substr(colon + 1);
}

Measured measure(const Arguments& arguments, BenchStudyOptions options, const std::shared_ptr<const TrialData>& data,
                 const std::string& peers) {
  const int64_t rounds = arguments.integer_option("rounds", 3, 1, 1000);
  Measured measured;
  for (int64_t round = 0; round < rounds; ++round) {
    options.use_dense_chain = true;
    const TrialTime time = bench_trial(options, data);
    measured.chain.push_back(time.cpu_seconds);
    measured.val_error = time.val_error;
    options.use_dense_chain = false;
    measured.autograd.push_back(bench_trial(options, data).cpu_seconds);
    if (peers.empty()) continue;
    const PeerStep step = peer_step(peers, peers_python(arguments), 1, "study.py",
                                    {folder_of(arguments.config.data), concat(options.batch_size), concat(options.learning_rate),
                                     concat(options.steps), "--ratio", concat(options.evaluation_ratio)},
                                    time.seconds);
    if (step.seconds > 0) measured.peer.push_back(step.seconds * static_cast<double>(options.steps));
    else if (round == 0) log_warning(concat("the PyTorch loop ", step.failure, "; it is left out"));
  }
  return measured;
}

void print_json(const BenchStudyOptions& options, const Measured& measured) {
  Json line{{"workload", "study"},
            {"model", options.model},
            {"batch", options.batch_size},
            {"steps", options.steps},
            {"val_error", measured.val_error},
            {"trials_per_core_hour", trials_per_core_hour(measured.chain)},
            {"autograd_trials_per_core_hour", trials_per_core_hour(measured.autograd)}};
  if (!measured.peer.empty()) {
    line["peer_trials_per_core_hour"] = trials_per_core_hour(measured.peer);
    line["ratio"] = median(measured.peer) / median(measured.chain);
  }
  print_line(line);
}

void print_text(const BenchStudyOptions& options, const Measured& measured) {
  std::printf("batch %-6lld %9.0f trials an hour and core, %9.0f by autograd", static_cast<long long>(options.batch_size),
              trials_per_core_hour(measured.chain), trials_per_core_hour(measured.autograd));
  if (!measured.peer.empty())
    std::printf(", %9.0f by the PyTorch loop: %.2f and %.2f times", trials_per_core_hour(measured.peer),
                median(measured.peer) / median(measured.chain), median(measured.peer) / median(measured.autograd));
  std::printf("\n");
}

}  // namespace

std::vector<VerbOption> bench_study_options() {
  return {{"batch", "LIST",
           "study: batch sizes of the trials (default 8,64,512). plan: micro-batches of a step, one number (default: the file's)"},
          {"ratio", "R", "study: every evaluated step is R times the one before (default 2)"}};
}

int bench_study_verb(const Arguments& arguments) {
  const bool has_data_of_peer = arguments.config.data.starts_with("fashion-mnist") || arguments.config.data.starts_with("mnist:");
  if (!has_data_of_peer) log_info("bench study: the PyTorch loop has Fashion-MNIST alone and is left out");
  check_options(situation_of(arguments.config));
  BenchStudyOptions options;
  if (arguments.was_given("model")) options.model = arguments.config.model;
  if (arguments.was_given("optimizer")) options.optimizer = arguments.config.optimizer;
  if (arguments.was_given("lr")) options.learning_rate = arguments.config.lr;
  if (arguments.config.steps > 0) options.steps = arguments.config.steps;
  const std::optional<double> ratio = parse_number(arguments.option("ratio", "2"));
  if (!ratio || !(*ratio >= 1)) fail(ErrorCode::kBadInput, "--ratio ", arguments.option("ratio", ""), ": expected a number of at least 1");
  options.evaluation_ratio = *ratio;
  const bool has_peer = has_data_of_peer && options.model == kPeerModel && options.optimizer == "sgd";
  const std::string peers = has_peer ? peers_folder(arguments, "study.py") : "";
  std::vector<int64_t> batch_sizes;
  for (const std::string& text : split(arguments.option("batch", "8,64,512"), ',')) {
    const std::optional<int64_t> batch = parse_integer(text);
    if (!batch || *batch < 1) fail(ErrorCode::kBadInput, "--batch ", text, ": expected batch sizes of at least 1");
    batch_sizes.push_back(*batch);
  }
  const auto data = bench_study_data(
      open_data(arguments.config.data, {.context = arguments.config.context, .validation_samples = arguments.config.val_samples}));
  for (const int64_t batch : batch_sizes) {
    options.batch_size = batch;
    const Measured measured = measure(arguments, options, data, peers);
    if (arguments.config.json) print_json(options, measured);
    else print_text(options, measured);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace cohort
