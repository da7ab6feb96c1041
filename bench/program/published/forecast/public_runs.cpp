// CSV with a header; columns are found by name, in any order, others are ignored. Every number is checked: counts are whole, from 1 to
// two billion, times are positive.
#include "bench/program/published/forecast/public_runs.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "bench/program/published/forecast/transformer_step.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/csv.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/search/cohort_instance.h"

namespace cohort {
namespace {

int degree_of(const CsvRow& row, const std::string& column) { return static_cast<int>(row.count(column)); }

/// vTrain (MICRO 2024): Megatron-DeepSpeed on A100, everything recomputed, gradients exchanged after the last backward.
PublicRun vtrain_run(const CsvRow& row) {
  PublicRun run;
  run.machine = "a100";
  TransformerRun& step = run.measured.run;
  step.shape = {.num_layers = row.count("# layers"),
                .width = row.count("hidden size"),
                .num_heads = row.count("attention heads"),
                .context = row.count("sequence length"),
                .vocabulary = 50257};
  step.micro_batch = row.count("micro batch");
  step.global_batch = row.count("global batch");
  step.tp = degree_of(row, "tensor parallelism");
  step.dp = degree_of(row, "data parallelism");
  step.pp = degree_of(row, "pipeline parallelism");
  step.recompute = true;
  if (static_cast<double>(step.tp) * step.dp * step.pp != static_cast<double>(row.count("# GPUs")))
    row.refuse("# GPUs", concat(step.tp, " x ", step.dp, " x ", step.pp, ", the degrees' product"));
  run.measured.measured_seconds = row.positive("iteration time (ms)") * 1e-3;
  run.choice =
      join({row.text("# GPUs"), row.text("global batch"), row.text("hidden size"), row.text("# layers"), row.text("sequence length")}, " ");
  return run;
}

/// llm-foundry: MPT under FSDP, which is ZeRO 3 (FULL_SHARD) or 2 (SHARD_GRAD_OP) over all devices.
PublicRun llm_foundry_run(const CsvRow& row) {
  static const std::vector<std::string> kDevices = {"a100_40gb", "a100_80gb", "h100_80gb"};
  PublicRun run;
  run.machine = row.one_of("gpu", kDevices) < 2 ? "a100" : "h100";
  TransformerRun& step = run.measured.run;
  step.shape = {.num_layers = row.count("n_layers"),
                .width = row.count("d_model"),
                .num_heads = row.count("n_heads"),
                .context = row.count("seq_len_tokens"),
                .vocabulary = row.count("vocab_size"),
                .fused_attention = true};
  step.micro_batch = row.count("micro_batch_size");
  step.global_batch = row.count("global_batch_size");
  step.dp = degree_of(row, "gpus");
  step.zero = row.one_of("sharding_strategy", {"FULL_SHARD", "SHARD_GRAD_OP"}) == 0 ? 3 : 2;
  step.recompute = row.one_of("activation_checkpointing", {"False", "True"}) == 1;
  step.gradient_bytes = row.one_of("mp_mode", {"PURE", "DEFAULT"}) == 0 ? 2 : 4;
  run.measured.measured_seconds = row.positive("step_seconds");
  run.choice = join({row.text("gpu"), row.text("model"), row.text("seq_len_tokens"), row.text("gpus")}, " ");
  run.samples = static_cast<double>(step.global_batch);
  return run;
}

}  // namespace

std::vector<PublicRun> read_public_runs(const std::string& format, const std::string& path) {
  if (format == "sailor") return read_sailor_runs(path);
  const bool is_vtrain = format == "vtrain";
  if (!is_vtrain && format != "llm-foundry")
    fail(ErrorCode::kBadInput, "no format '", format, "'", did_you_mean(format, {"vtrain", "llm-foundry", "sailor"}),
         "; there are: vtrain llm-foundry sailor");
  std::vector<PublicRun> runs;
  for (const CsvRow& row : read_csv(path)) {
    PublicRun run = is_vtrain ? vtrain_run(row) : llm_foundry_run(row);
    const TransformerRun& step = run.measured.run;
    if (step.global_batch < step.micro_batch * step.dp)
      fail(ErrorCode::kBadInput, row.where(), ": a global batch of ", step.global_batch, " is less than a micro-batch of ",
           step.micro_batch, " for each of ", step.dp, " replicas");
    run.row = static_cast<int64_t>(runs.size()) + 1;
    runs.push_back(std::move(run));
  }
  if (runs.empty()) fail(ErrorCode::kBadInput, path, ": no rows; expected a header and measured steps, as ", format, " publishes them");
  return runs;
}

// Sailor's measured layers (eth-easl/sailor; SOSP 2025): fp32, Adam, Megatron's tensor parallelism, no pipeline.
//
//  training_*.json           {"model": NAME, "hidden_size", "num_layers", "heads", "sequence_length", "vocab_size"}
//  profiles/NAME/GPU.json    {MICRO_BATCH: {TENSOR_DEGREE: {LAYER: [forward, backward, update]}}}, seconds
//  layer_memory.json         {NAME: {TENSOR_DEGREE: {LAYER: {"params_bytes", "act_mem_bytes"}}}}, for one sequence
//
// Layers are 0 (embedding), 1 to num_layers, and what follows them: a head in one model's files, a norm alone in the other's. So runs and
// memory are of layers 1 to num_layers. Other keys are not read.
namespace {

constexpr size_t kMostFileBytes = size_t{16} << 20, kMostFiles = 1000;
constexpr int kMostDegree = 4096, kMostLayers = 10'000, kMostSize = 1 << 24;
constexpr double kMostSeconds = 1e6, kMostBytes = 1e15;
constexpr double kElementBytes = 4;

/// Corrections of the files, where they lack a property of a model or differ from the published one: GPT-Neo 2.7B has 20 heads of 128.
struct KnownModel {
  const char* name;
  bool relu;
  int64_t num_heads;  ///< 0: the file's value.
};
constexpr KnownModel kKnownModels[] = {{"OPT-350", true, 0}, {"GPT-Neo-2.7", false, 20}};

KnownModel known_model(const std::string& name) {
  for (const KnownModel& model : kKnownModels)
    if (name == model.name) return model;
  return {"", false, 0};
}

/// Files of a folder whose name begins so and ends in .json, sorted.
std::vector<std::string> json_files(const std::string& folder, const std::string& begin) {
  std::vector<std::string> files;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(begin) && name.ends_with(".json")) files.push_back(at->path().string());
    if (files.size() > kMostFiles) fail(ErrorCode::kBadInput, folder, ": more than ", kMostFiles, " files");
  }
  if (error)
    fail(ErrorCode::kBadInput, folder, ": ", error.message(), "; expected a folder with training_*.json and profiles/MODEL/GPU.json");
  std::sort(files.begin(), files.end());
  return files;
}

std::map<std::string, TransformerShape> read_shapes(const std::string& folder) {
  std::map<std::string, TransformerShape> shapes;
  for (const std::string& path : json_files(folder, "training_")) {
    const JsonInstance file(path, kMostFileBytes);
    const JsonInstance::Value& name = file.member(file.file(), "model", "the file");
    if (!name.is_string()) file.wrong("\"model\"", "a name", name);
    TransformerShape& shape = shapes[name.get<std::string>()];
    shape = {.num_layers = file.count("num_layers", 1, kMostLayers),
             .width = file.count("hidden_size", 1, kMostSize),
             .num_heads = file.count("heads", 1, kMostSize),
             .context = file.count("sequence_length", 1, kMostSize),
             .vocabulary = file.count("vocab_size", 1, kMostSize)};
    if (const int64_t heads = known_model(name.get<std::string>()).num_heads; heads > 0) shape.num_heads = heads;
  }
  if (shapes.empty()) fail(ErrorCode::kBadInput, folder, ": expected training_*.json, found none");
  return shapes;
}

/// Members whose names are whole numbers, ascending.
std::map<int, const JsonInstance::Value*> numbered(const JsonInstance& file, const JsonInstance::Value& object, const std::string& place) {
  if (!object.is_object() || object.empty()) file.wrong(place, "an object that is not empty", object);
  std::map<int, const JsonInstance::Value*> members;
  for (const auto& [name, value] : object.items()) {
    const auto number = parse_integer(name);
    if (!number || *number < 0 || *number > kMostLayers) file.wrong(place, concat("keys from 0 to ", kMostLayers), name);
    if (!members.emplace(static_cast<int>(*number), &value).second) file.wrong(place, "every number once", name);
  }
  return members;
}

double measured_seconds(const JsonInstance& file, const JsonInstance::Value& layers, int64_t num_layers, const std::string& place) {
  double sum = 0;
  int64_t found = 0;
  for (const auto& [layer, times] : numbered(file, layers, place)) {
    const std::string at = concat(place, " layer ", layer);
    if (layer < 1 || layer > num_layers) continue;
    ++found;
    if (!times->is_array() || times->size() != 3) file.wrong(at, "[forward, backward, update]", *times);
    for (const JsonInstance::Value& time : *times) {
      if (!time.is_number() || !(time.get<double>() >= 0) || !(time.get<double>() < kMostSeconds)) file.wrong(at, "seconds", time);
      sum += time.get<double>();
    }
  }
  if (found != num_layers || !(sum > 0))
    fail(ErrorCode::kBadInput, file.path(), ": ", place, ": expected layers 1 to ", num_layers, " that take time, found ", found);
  return sum;
}

std::string machine_of(const std::string& path, const std::string& gpu) {
  static const std::map<std::string, std::string> kMachines = {
      {"A100-40", "a100-fp32"},      {"A100-80", "a100-fp32"},      {"GH-96", "gh200-fp32"},        {"V100-16", "v100-fp32"},
      {"RTX-2080", "rtx-2080-fp32"}, {"RTX-3090", "rtx-3090-fp32"}, {"Titan-RTX", "titan-rtx-fp32"}};
  const auto at = kMachines.find(gpu);
  std::vector<std::string> names;
  for (const auto& [name, machine] : kMachines) names.push_back(name);
  if (at == kMachines.end())
    fail(ErrorCode::kBadInput, path, ": no GPU '", printable(gpu), "'", did_you_mean(gpu, names), "; there are: ", join(names, " "));
  return at->second + " " + gpu;
}

void read_profile(const std::string& path, const std::string& model, const TransformerShape& shape, std::vector<PublicRun>& runs) {
  const std::string gpu = std::filesystem::path(path).stem().string(), machine = machine_of(path, gpu);
  const JsonInstance file(path, kMostFileBytes);
  for (const auto& [micro_batch, by_degree] : numbered(file, file.file(), "the file"))
    for (const auto& [tp, layers] : numbered(file, *by_degree, concat("micro-batch ", micro_batch))) {
      const std::string place = concat("micro-batch ", micro_batch, " degree ", tp);
      if (micro_batch < 1 || tp < 1 || tp > kMostDegree) fail(ErrorCode::kBadInput, path, ": ", place, ": expected both from 1 up");
      PublicRun run;
      run.row = static_cast<int64_t>(runs.size()) + 1;
      run.machine = machine;
      run.measured.run = {.shape = shape, .micro_batch = micro_batch, .global_batch = micro_batch, .tp = tp};
      run.measured.run.element_bytes = 4;
      run.measured.run.shape.vocabulary = 1;  // Transformer layers only.
      run.measured.measured_seconds = measured_seconds(file, *layers, shape.num_layers, place);
      run.choice = model + " " + gpu;
      run.samples = static_cast<double>(micro_batch) / tp;  // For each GPU.
      runs.push_back(std::move(run));
    }
}

}  // namespace

std::vector<PublicRun> read_sailor_runs(const std::string& folder) {
  std::vector<PublicRun> runs;
  for (const auto& [model, shape] : read_shapes(folder)) {
    // A name with a slash would leave the folder.
    if (model.empty() || model.find('/') != std::string::npos || model.starts_with('.'))
      fail(ErrorCode::kBadInput, folder, ": \"model\": expected the name of a folder in profiles, found ", printable(model));
    for (const std::string& path : json_files(folder + "/profiles/" + model, "")) read_profile(path, model, shape, runs);
  }
  if (runs.empty()) fail(ErrorCode::kBadInput, folder, ": expected profiles/MODEL/GPU.json, found none");
  return runs;
}

std::vector<MeasuredMemory> forecast_sailor_memory(const std::string& folder) {
  const std::string path = folder + "/layer_memory.json";
  std::vector<MeasuredMemory> rows;
  if (!std::filesystem::exists(path)) return rows;
  const JsonInstance file(path, kMostFileBytes);
  for (const auto& [model, shape] : read_shapes(folder)) {
    for (const auto& [tp, layers] : numbered(file, file.member(file.file(), model.c_str(), "the file"), model)) {
      const std::string place = concat(model, " degree ", tp);
      if (tp < 1 || tp > kMostDegree) fail(ErrorCode::kBadInput, path, ": ", place, ": expected a degree from 1 to ", kMostDegree);
      MeasuredMemory row = {.model = model, .tp = tp};
      for (const auto& [layer, bytes] : numbered(file, *layers, place)) {
        if (layer < 1 || layer > shape.num_layers) continue;
        const std::string at = concat(place, " layer ", layer);
        row.measured_bytes +=
            file.number(*bytes, "params_bytes", at, 0, kMostBytes) + file.number(*bytes, "act_mem_bytes", at, 0, kMostBytes);
      }
      if (!(row.measured_bytes > 0)) fail(ErrorCode::kBadInput, path, ": ", place, ": expected layers that keep something, found none");
      const ActivationRules rules = {.element_bytes = kElementBytes, .dropout = false, .relu = known_model(model).relu};
      const TransformerRun run = {.shape = shape, .tp = tp};
      row.predicted_bytes =
          static_cast<double>(shape.num_layers) * (kElementBytes * layer_elements(shape, tp) + layer_activation_bytes(run, rules));
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace cohort
