// Memory from shapes against counts that are written down otherwise; Sailor's folders, whole and damaged.

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "bench/program/published/forecast/forecast.h"
#include "bench/program/published/forecast/public_runs.h"
#include "bench/program/published/forecast/transformer_step.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "tests/support/mutation.h"

namespace cohort {
namespace {

TEST_CASE("memory: the published count of a layer") {
  TransformerRun run = {.shape = {.num_layers = 8, .width = 1024, .num_heads = 16, .context = 512, .vocabulary = 32000},
                        .micro_batch = 2,
                        .global_batch = 32};
  const double sbh = 512.0 * 2 * 1024, scores = 5.0 * 16 * 512 / 1024;
  CHECK(layer_activation_bytes(run, {}) == doctest::Approx(sbh * (34 + scores)));
  run.tp = 4;
  CHECK(layer_activation_bytes(run, {}) == doctest::Approx(sbh * (10 + 24.0 / 4 + scores / 4)));
  run.shape.fused_attention = true;
  CHECK(layer_activation_bytes(run, {}) == doctest::Approx(sbh * (10 + 24.0 / 4)));
  CHECK(layer_elements(run.shape, 1) == 12.0 * 1024 * 1024 + 13.0 * 1024);
}

/// A model of two layers that takes as long as its operations on a V100, measured at 24 sizes.
struct Folder {
  TemporaryFolder folder;
  std::string training = R"({"model":"tiny","hidden_size":1024,"num_layers":2,"heads":16,"sequence_length":512,"vocab_size":1000})";
  std::string profile, memory;

  Folder() {
    Json sizes = Json::object(), degrees = Json::object();
    for (const int micro_batch : {1, 2, 3, 4, 6, 8, 12, 16}) {
      Json by_degree = Json::object();
      for (const int tp : {1, 2, 4}) {
        const double forward = 24.0 * micro_batch * 512 * 1024 * 1024 / tp / 8e12 + 1e-3;
        Json layers = Json::object();
        for (const char* layer : {"0", "1", "2", "3"}) layers[layer] = {forward, 2 * forward, 0.001};
        by_degree[std::to_string(tp)] = layers;
      }
      sizes[std::to_string(micro_batch)] = by_degree;
    }
    for (const int tp : {1, 2}) {
      // Four whole inputs, twelve divided, and the probabilities.
      const double elements = 512 * 1024 * (4 + (12 + 16 * 512 / 1024.0) / tp), weights = (12.0 * 1024 + 7) * 1024 / tp + 6 * 1024;
      Json layers = Json::object();
      for (const char* layer : {"0", "1", "2"}) layers[layer] = {{"params_bytes", 4 * weights}, {"act_mem_bytes", 4 * elements}};
      degrees[std::to_string(tp)] = layers;
    }
    profile = sizes.dump();
    memory = Json{{"tiny", degrees}}.dump();
  }

  std::string write() const {
    const std::filesystem::path root = folder.path();
    std::filesystem::create_directories(root / "profiles/tiny");
    std::ofstream(root / "training_tiny.json", std::ios::binary) << training;
    std::ofstream(root / "profiles/tiny/V100-16.json", std::ios::binary) << profile;
    std::ofstream(root / "layer_memory.json", std::ios::binary) << memory;
    return folder.path();
  }
  std::string refusal() const {
    const std::string path = write();
    try {
      errors_of(forecast_public_runs(read_public_runs("sailor", path), 0.5));
      forecast_sailor_memory(path);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kBadInput);
      return error.what();
    }
    return "none";
  }
};

TEST_CASE("sailor: half of the rows fit, and memory is as it was measured") {
  const Folder folder;
  const std::string path = folder.write();
  const std::vector<PublicRun> runs = read_public_runs("sailor", path);
  REQUIRE(runs.size() == 24);
  CHECK(runs[4].measured.run.micro_batch == 2);
  CHECK(runs[4].measured.run.tp == 2);
  CHECK(runs[0].measured.measured_seconds == doctest::Approx(2 * (3 * (24.0 * 512 * 1024 * 1024 / 8e12 + 1e-3) + 0.001)));
  const ForecastErrors fitted = errors_of(forecast_public_runs(runs, 0.5)), believed = errors_of(forecast_public_runs(runs, 0));
  CHECK(fitted.num_rows == 12);
  CHECK(fitted.median_error < 0.15);
  CHECK(fitted.median_error < believed.median_error);
  const std::vector<MeasuredMemory> memory = forecast_sailor_memory(path);
  REQUIRE(memory.size() == 2);
  for (const MeasuredMemory& row : memory) CHECK(row.predicted_bytes == doctest::Approx(row.measured_bytes));
}

TEST_CASE("sailor: refusals name file and place") {
  const auto refused = [](std::string Folder::* file, const std::string& from, const std::string& to) {
    Folder folder;
    std::string& text = folder.*file;
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    return folder.refusal();
  };
  const auto has = [](const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; };
  CHECK(Folder().refusal() == "none");
  CHECK(has(refused(&Folder::training, "1024", "0"), "training_tiny.json: \"hidden_size\": expected a whole number from 1"));
  CHECK(has(refused(&Folder::training, "\"tiny\"", "\"../tiny\""), "expected the name of a folder in profiles"));
  CHECK(has(refused(&Folder::training, "\"tiny\"", "\"large\""), "profiles/large"));
  CHECK(has(refused(&Folder::profile, "\"1\":[", "\"1\":[-1,"), "micro-batch 1 degree 1 layer 1: expected [forward, backward, update]"));
  CHECK(has(refused(&Folder::profile, "\"2\":[", "\"9\":["), "expected layers 1 to 2 that take time, found 1"));
  CHECK(has(refused(&Folder::profile, "\"1\":{", "\"x\":{"), "expected keys from 0"));
  CHECK(has(refused(&Folder::memory, "\"1\":{\"params_bytes\":", "\"1\":{\"params_bytes\":-"),
            "tiny degree 1 layer 1 \"params_bytes\": expected a finite"));
  CHECK(has(refused(&Folder::memory, "\"tiny\"", "\"other\""), "expected \"tiny\", found none"));
  const TemporaryFolder empty;
  CHECK_THROWS_AS(read_public_runs("sailor", empty.path()), Error);
}

TEST_CASE("mutation: sailor") {
  Folder folder;
  int read = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 150; ++seed)
    for (const auto file : {&Folder::training, &Folder::profile, &Folder::memory}) {
      const std::string whole = folder.*file;
      folder.*file = mutated(whole, seed);
      const std::string what = folder.refusal();
      folder.*file = whole;
      REQUIRE_MESSAGE(what.find('\n') == std::string::npos, what);
      ++(what == "none" ? read : refused);
    }
  CHECK(read > 10);
  CHECK(refused > 100);
}

}  // namespace
}  // namespace cohort
