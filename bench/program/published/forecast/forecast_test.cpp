#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "bench/program/published/forecast/forecast.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/random.h"
#include "tests/support/errors.h"
#include "tests/support/mutation.h"

namespace cohort {
namespace {

TransformerRun small_run() {
  return {.shape = {.num_layers = 24, .width = 2048, .num_heads = 16, .context = 1024, .vocabulary = 50257},
          .micro_batch = 4,
          .global_batch = 64,
          .recompute = true};
}

/// Runs of many shapes and layouts on eight devices or fewer, as `machine` takes them, each off by up to `noise` of it.
std::vector<MeasuredRun> runs_on(const Machine& machine, double noise, uint64_t seed) {
  std::vector<MeasuredRun> runs;
  for (const int64_t width : {1024, 2048, 4096})
    for (const int tp : {1, 2, 4, 8})
      for (const int dp : {1, 2, 4, 8})
        for (const int pp : {1, 2, 4})
          for (const int64_t micro_batch : {1, 2, 4, 8}) {
            if (tp * dp * pp > 8) continue;
            TransformerRun run = small_run();
            run.shape.width = width;
            run.tp = tp, run.dp = dp, run.pp = pp, run.micro_batch = micro_batch;
            const double off = 2 * unit_interval(random_bits(seed, runs.size())) - 1;
            runs.push_back({run, transformer_step_seconds(run, machine) * (1 + noise * off)});
          }
  return runs;
}

Machine another_machine() {
  Machine machine = known_machine("a100");
  machine.matmul_flops_per_second *= 1.6;
  machine.memory_bytes_per_second *= 0.7;
  machine.launch_seconds *= 1.5;
  machine.node_bytes_per_second *= 0.5;
  machine.step_seconds *= 4;
  return machine;
}

constexpr char kVtrain[] =
    "# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism,data parallelism,"
    "pipeline parallelism,iteration time (ms)\n"
    "2,16,8,1024,16,24,1024,1,1,2,372.160408\n"
    "8,32,4,1024,16,24,1024,2,2,2,219.732754\n"
    "8,32,2,1024,16,24,1024,2,2,2,319.5\n";

constexpr char kFoundry[] =
    "gpu,model,d_model,n_heads,n_layers,vocab_size,seq_len_tokens,gpus,micro_batch_size,global_batch_size,mp_mode,sharding_strategy,"
    "activation_checkpointing,step_seconds\n"
    "h100_80gb,7b,4096,32,32,50368,2048,512,6,3072,DEFAULT,FULL_SHARD,False,1.27062\n"
    "a100_40gb,1b,2048,16,24,50368,2048,8,4,32,PURE,SHARD_GRAD_OP,True,0.9\n";

struct Tables {
  TemporaryFolder folder;
  std::string write(const std::string& text) const {
    std::ofstream(folder / "table.csv", std::ios::binary | std::ios::trunc) << text;
    return folder / "table.csv";
  }
  std::string complaint(const std::string& format, const std::string& text) const {
    const std::string path = write(text);
    return error_of([&] { read_public_runs(format, path); });
  }
};

std::string with(std::string text, const std::string& what, const std::string& other) {
  text.replace(text.find(what), what.size(), other);
  return text;
}

TEST_CASE("forecast: a faster machine is never slower, more work never faster") {
  const TransformerRun run = small_run();
  const Machine machine = known_machine("a100");
  for (const int tp : {1, 2, 8})
    for (const int dp : {1, 4})
      for (const int zero : {0, 1, 2, 3}) {
        TransformerRun here = run;
        here.tp = tp, here.dp = dp, here.zero = zero;
        const double seconds = transformer_step_seconds(here, machine);
        for (const MachineConstant& constant : machine_constants()) {
          Machine other = machine;
          const bool is_rate = std::string(constant.name).ends_with("per_second");
          other.*constant.value *= is_rate ? 2 : 0.5;
          CHECK_MESSAGE(transformer_step_seconds(here, other) <= seconds, constant.name);
        }
        TransformerRun more = here;
        more.shape.num_layers *= 2;
        CHECK(transformer_step_seconds(more, machine) > seconds);
        more = here;
        more.global_batch *= 2;
        CHECK(transformer_step_seconds(more, machine) > 1.5 * (seconds - machine.step_seconds - 0.2));
        more = here;
        more.recompute = false;
        CHECK(transformer_step_seconds(more, machine) < seconds);
      }
}

TEST_CASE("forecast: a pipeline idles, a divided layer waits for its node's edge") {
  const Machine machine = known_machine("a100");
  TransformerRun run = small_run();
  run.micro_batch = 1;
  run.global_batch = 4;
  const double one = transformer_step_seconds(run, machine);
  run.pp = 4;
  const double four = transformer_step_seconds(run, machine);
  CHECK(four > one / 4 * 1.5);  // (m + p - 1) / m = 1.75 of a fourth, with the head on one stage.
  CHECK(four < one);
  run = small_run();
  run.shape.width = 8192;  // Large enough that the device waits for the link, and not for the host.
  run.tp = 8;
  const double inside = transformer_step_seconds(run, machine);
  Machine small = machine;
  small.devices_per_node = 4;
  CHECK(transformer_step_seconds(run, small) > inside);
}

TEST_CASE("forecast: invalid runs are refused") {
  const Machine machine = known_machine("h100");
  TransformerRun run = small_run();
  run.shape.width = 0;
  CHECK(error_of([&] { transformer_step_seconds(run, machine); }).find("width") != std::string::npos);
  run = small_run();
  run.dp = 32;
  CHECK(error_of([&] { transformer_step_seconds(run, machine); }).find("global batch of 64 is less") != std::string::npos);
  run.zero = 4;
  CHECK(error_of([&] { transformer_step_seconds(run, machine); }).find("zero=4") != std::string::npos);
  CHECK(error_of([] { known_machine("h101"); }).find("did you mean 'h100'") != std::string::npos);
}

TEST_CASE("fit: constants of another machine are found from its runs") {
  const std::vector<MeasuredRun> runs = runs_on(another_machine(), 0.03, 1);
  std::vector<MeasuredRun> known, strange;
  for (size_t i = 0; i < runs.size(); ++i) (i % 2 == 0 ? known : strange).push_back(runs[i]);
  const FittedMachine fitted = fit_machine(known, known_machine("a100"));
  double before = 0, after = 0, inside = 0;
  for (const MeasuredRun& run : strange) {
    const double forecast = transformer_step_seconds(run.run, fitted.machine);
    before += std::abs(transformer_step_seconds(run.run, known_machine("a100")) / run.measured_seconds - 1);
    after += std::abs(forecast / run.measured_seconds - 1);
    inside += run.measured_seconds >= forecast * fitted.low && run.measured_seconds <= forecast * fitted.high ? 1 : 0;
  }
  const auto count = static_cast<double>(strange.size());
  CHECK(before / count > 0.1);
  CHECK(after / count < 0.025);
  CHECK(inside / count > 0.8);
  CHECK(inside / count < 1);
  CHECK(fitted.machine.matmul_flops_per_second == doctest::Approx(another_machine().matmul_flops_per_second).epsilon(0.1));
  CHECK(fitted.machine.network_bytes_per_second == doctest::Approx(known_machine("a100").network_bytes_per_second));  // No run tells.
}

TEST_CASE("fit: a few bad measurements do not move the others") {
  std::vector<MeasuredRun> runs = runs_on(another_machine(), 0.01, 2);
  for (size_t i = 0; i < runs.size(); i += 12) runs[i].measured_seconds *= 5;
  const Machine machine = fit_machine(runs, known_machine("a100")).machine;
  std::vector<MeasuredRun> clean = runs_on(another_machine(), 0, 0);
  double error = 0;
  for (const MeasuredRun& run : clean) error += std::abs(transformer_step_seconds(run.run, machine) / run.measured_seconds - 1);
  CHECK(error / static_cast<double>(clean.size()) < 0.03);
}

TEST_CASE("fit: few runs change nothing, and times that are none are refused") {
  std::vector<MeasuredRun> runs = runs_on(another_machine(), 0, 3);
  runs.resize(9);
  const FittedMachine fitted = fit_machine(runs, known_machine("h100"));
  for (const MachineConstant& constant : machine_constants())
    CHECK(fitted.machine.*constant.value == known_machine("h100").*constant.value);
  CHECK(fitted.low < 1);
  CHECK(fitted.high > 1);
  for (const double bad : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    runs[3].measured_seconds = bad;
    CHECK(error_of([&] { fit_machine(runs, known_machine("a100")); }).find("expected a positive number") != std::string::npos);
  }
}

TEST_CASE("forecast: errors and regret by hand") {
  const std::vector<ForecastRow> rows = {
      {.row = 1, .predicted_seconds = 1.1, .measured_seconds = 1, .low_seconds = 0.9, .high_seconds = 1.2, .choice = "a"},
      {.row = 2, .predicted_seconds = 0.9, .measured_seconds = 1.5, .low_seconds = 0.8, .high_seconds = 1.0, .choice = "a"},
      {.row = 3, .predicted_seconds = 2, .measured_seconds = 2, .low_seconds = 2, .high_seconds = 2, .choice = "b"},
      {.row = 4, .predicted_seconds = 9, .measured_seconds = 0.1, .was_fitted = true, .choice = "a"},
  };
  const ForecastErrors errors = errors_of(rows);
  CHECK(errors.num_rows == 3);
  CHECK(errors.median_error == doctest::Approx(0.1));
  CHECK(errors.mean_error == doctest::Approx((0.1 + 0.4 + 0) / 3));
  CHECK(errors.bias == doctest::Approx((0.1 - 0.4 + 0) / 3));
  CHECK(errors.covered == doctest::Approx(2.0 / 3));
  CHECK(errors.num_choices == 1);
  CHECK(errors.mean_regret == doctest::Approx(0.5));  // Row 2 is predicted faster and took 1.5 times row 1.
  CHECK(errors.max_regret == doctest::Approx(0.5));
  CHECK(errors_of({rows[3]}).num_rows == 0);
}

TEST_CASE("forecast: rows that fit are a part, the same each time, and none proves itself") {
  std::vector<PublicRun> runs;
  for (const MeasuredRun& run : runs_on(another_machine(), 0.02, 4))
    runs.push_back({static_cast<int64_t>(runs.size()) + 1, run, "a100", std::to_string(run.run.shape.width), 1});
  const std::vector<ForecastRow> rows = forecast_public_runs(runs, 0.25), again = forecast_public_runs(runs, 0.25);
  size_t num_fitted = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    num_fitted += rows[i].was_fitted ? 1 : 0;
    CHECK(rows[i].was_fitted == again[i].was_fitted);
    CHECK(rows[i].predicted_seconds == again[i].predicted_seconds);
  }
  CHECK(num_fitted == rows.size() / 4);
  CHECK(errors_of(rows).num_rows == static_cast<int64_t>(rows.size() - num_fitted));
  CHECK(errors_of(rows).median_error < 0.5 * errors_of(forecast_public_runs(runs, 0)).median_error);
  for (const double bad : {-0.1, 0.51, std::nan("")})
    CHECK(error_of([&] { forecast_public_runs(runs, bad); }).find("expected 0 to 0.5") != std::string::npos);
}

TEST_CASE("public runs: both tables are read, whatever the order of their columns") {
  const Tables tables;
  const std::vector<PublicRun> vtrain = read_public_runs("vtrain", tables.write(std::string("\xEF\xBB\xBF") + kVtrain));
  REQUIRE(vtrain.size() == 3);
  CHECK(vtrain[1].row == 2);
  CHECK(vtrain[1].measured.measured_seconds == doctest::Approx(0.219732754));
  CHECK(vtrain[1].measured.run.num_devices() == 8);
  CHECK(vtrain[1].measured.run.micro_batch == 4);
  CHECK(vtrain[1].measured.run.recompute);
  CHECK(vtrain[1].choice == vtrain[2].choice);
  CHECK(vtrain[0].choice != vtrain[1].choice);
  const auto more = read_public_runs(
      "vtrain", tables.write("new,iteration time (ms),# GPUs,global batch,micro batch,hidden size,attention heads,# layers,"
                             "sequence length,tensor parallelism,data parallelism,pipeline parallelism\r\n"
                             "x,372.160408,2,16,8,1024,16,24,1024,1,1,2\r\n\r\n"));
  REQUIRE(more.size() == 1);
  CHECK(more[0].measured.measured_seconds == vtrain[0].measured.measured_seconds);
  const std::vector<PublicRun> foundry = read_public_runs("llm-foundry", tables.write(kFoundry));
  REQUIRE(foundry.size() == 2);
  CHECK(foundry[0].machine == "h100");
  CHECK(foundry[0].measured.run.zero == 3);
  CHECK(foundry[0].measured.run.gradient_bytes == 4);
  CHECK(foundry[1].machine == "a100");
  CHECK(foundry[1].measured.run.zero == 2);
  CHECK(foundry[1].measured.run.recompute);
  CHECK(foundry[1].samples == 32);
}

TEST_CASE("public runs: what is wrong is one line with file and line") {
  const Tables tables;
  const auto says = [&](const std::string& format, const std::string& text, const std::string& what) {
    const std::string complaint = tables.complaint(format, text);
    CHECK_MESSAGE(complaint.find(what) != std::string::npos, complaint);
  };
  const std::string vtrain = kVtrain, foundry = kFoundry;
  says("vtrain", "", "no rows");
  says("vtrain", vtrain.substr(0, vtrain.find('\n')), "no rows");
  says("vtrain", with(vtrain, "hidden size", "hiden size"), "table.csv:2: no column 'hidden size' (did you mean 'hiden size'?)");
  says("vtrain", with(vtrain, "372.160408", "-1"), "table.csv:2: iteration time (ms) is '-1', expected a positive number");
  says("vtrain", with(vtrain, "372.160408", "inf"), "expected a positive number");
  says("vtrain", with(vtrain, "372.160408", "372,1"), "12 fields, and the header has 11");
  says("vtrain", with(vtrain, "\n8,32", "\n9,32"), "table.csv:3: # GPUs is '9', expected 2 x 2 x 2");
  says("vtrain", with(vtrain, "8,32,4", "8,32,1.5"), "micro batch is '1.5', expected a whole number");
  says("vtrain", with(vtrain, "8,32,4", "8,32,99999999999999"), "expected a whole number from 1 to 2000000000");
  says("vtrain", with(vtrain, "8,32,4", "8,32,400"), "table.csv:3: a global batch of 32 is less");
  says("llm-foundry", with(foundry, "FULL_SHARD", "NO_SHARD"), "sharding_strategy is 'NO_SHARD', expected one of FULL_SHARD SHARD_GRAD_OP");
  says("llm-foundry", with(foundry, "h100_80gb", "v100"), "gpu is 'v100'");
  says("llm-foundry", vtrain, "no column 'gpu'");
  says("calculon", vtrain, "no format 'calculon'");
  CHECK(error_of([] { read_public_runs("vtrain", "/nowhere/table.csv"); }).find("/nowhere/table.csv") != std::string::npos);
}

TEST_CASE("mutation: tables of measured steps") {
  const Tables tables;
  int read = 0, refused = 0;
  const auto take = [&](const char* format, const std::string& text) {
    const std::string path = tables.write(text);
    try {
      errors_of(forecast_public_runs(read_public_runs(format, path), 0.5));
      ++read;
    } catch (const Error& error) {
      const std::string what = error.what();
      REQUIRE_MESSAGE(error.code() == ErrorCode::kBadInput, what);
      REQUIRE_MESSAGE(what.find('\n') == std::string::npos, what);
      ++refused;
    }
  };
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    take("vtrain", mutated(kVtrain, seed));
    take("llm-foundry", mutated(kFoundry, seed));
  }
  CHECK(read > 20);
  CHECK(refused > 500);
}

}  // namespace
}  // namespace cohort
