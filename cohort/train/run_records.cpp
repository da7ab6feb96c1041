#include "cohort/train/run_records.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/setting_name.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/shm/memory_count.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/strategy/data_parallel.h"
#include "cohort/record/run_event.h"
#include "cohort/train/step/parallelize.h"
#include "cohort/version.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostBytes = 1 << 20;

/// The content; "" for a missing file.
std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, file.gcount())));
  return text;
}

std::vector<std::string> words_of_process() {
  std::string text = text_of("/proc/self/cmdline");
  if (!text.empty() && text.back() == '\0') text.pop_back();
  return split(text, '\0');
}

/// False for a program whose main() calls train() itself, where settings are members of Config.
bool has_verbs() { return name_settings("--resume").starts_with('-'); }

std::string train_command(const std::string& run_folder, const std::string& rest) {
  const std::vector<std::string> words = words_of_process();
  const std::string program = words.empty() || words.front().empty() ? "cohort" : words.front();
  return shell_quoted(program) + " train " + shell_quoted(run_folder + "/config.toml") + rest;
}

bool is_commit(const std::string& text) {
  return (text.size() == 40 || text.size() == 64) &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c) != 0; });
}

/// The hash of a reference in packed-refs, whose lines are "HASH refs/heads/main".
std::string packed(const fs::path& git, const std::string& name) {
  for (const std::string& line : split(text_of(git / "packed-refs"), '\n'))
    if (line.ends_with(" " + name)) return line.substr(0, line.find(' '));
  return "";
}

PartRecord part_record(const RunSetup& run, double exchange_seconds) {
  const auto place = [](int index, int size) { return concat(index + 1, " of ", size); };
  const ModelPart& held = *run.parallel.part;
  const MeshPoint& here = held.here();
  PartRecord part{.data = place(here.data, held.mesh().data_size(here.pipe)),
                  .pipe = place(here.pipe, held.mesh().pipe_size()),
                  .tensor = place(here.tensor, held.mesh().tensor_size())};
  for (const LayerGraph::Layer& layer : run.model->layers())
    if (layer.function) part.layers.push_back(layer.name);
  if (const PipelineRunner* const pipeline = run.parallel.part->pipeline()) {
    part.stages.assign(pipeline->own_stages().begin(), pipeline->own_stages().end());
    part.waited_seconds = exchange_seconds;
    part.most_kept_micro_batches = pipeline->statistics().most_kept;
  }
  return part;
}

}  // namespace

std::string command_of_process() {
  std::vector<std::string> words = words_of_process();
  for (std::string& word : words) word = shell_quoted(word);
  return join(words, " ");
}

std::string resume_command(const std::string& run_folder) {
  if (!has_verbs()) return concat("the same program with resume = true and run = \"", run_folder, "\"");
  return train_command(run_folder, name_settings(" --resume"));
}

std::string reproduce_command(const std::string& run_folder) {
  return has_verbs() ? train_command(run_folder, name_settings(" --run ") + shell_quoted(run_folder + "-again")) : "";
}

std::string commit_of(const std::string& folder) {
  std::error_code error;
  fs::path place = fs::absolute(folder, error);
  if (error) return "";
  while (!fs::exists(place / ".git", error)) {
    if (!place.has_relative_path()) return "";
    place = place.parent_path();
  }
  fs::path git = place / ".git";
  if (fs::is_regular_file(git, error)) {  // In a submodule or second work tree .git is a file with a link.
    const std::string link = trim(text_of(git));
    if (!link.starts_with("gitdir: ")) return "";
    git = place / link.substr(8);
  }
  const std::string head = trim(text_of(git / "HEAD"));
  if (is_commit(head)) return head;
  if (!head.starts_with("ref: ") || head.find("..") != std::string::npos) return "";
  const std::string name = head.substr(5), common = trim(text_of(git / "commondir"));
  const fs::path shared = common.empty() ? git : git / common;
  for (const fs::path& where : {git, shared})
    if (const std::string found = trim(text_of(where / name)); is_commit(found)) return found;
  const std::string found = packed(shared, name);
  return is_commit(found) ? found : "";
}

StartRecord start_record(const RunSetup& run) {
  StartRecord start{
      .world_size = run.num_workers(),
      .layout = to_json(run.job.layout).dump(),
      .parameters = run.parallel.num_parameters,
      .train_samples = run.data.train->num_samples(),
      .val_samples = run.data.validation->num_samples(),
      .model = run.config.model,
      .data = run.config.data,
      .global_batch = run.config.global_batch,
      .steps = run.total_steps,
      .batch_schedule = run.config.batch_schedule,
      .optimizer = OptimizerRecord{.name = run.config.optimizer, .lr = run.config.lr, .weight_decay = run.config.weight_decay},
      .backend = run.group.backend_name(),
      .launcher = run.world.launcher,
      .version = COHORT_VERSION,
      .torch = COHORT_BUILT_WITH_TORCH,
      .host = run.world.host,
      .started = utc_now(),
      .command = command_of_process(),
      .commit = commit_of("."),
      .resume_with = resume_command(run.config.run),
      .reproduce_with = reproduce_command(run.config.run),
      .devices = run.device_names,
      .device_backend = run.group.device_backend_name()};
  start.loss = run.model->loss_name();
  if (run.data.skipped.count > 0) start.skipped_samples = run.data.skipped.count;
  start.skipped = run.data.skipped.first;
  if (run.job.layout.tp > 1) start.tensor_parallel = division_record(run.parallel.division, run.job.layout);
  return start;
}

RankRecord rank_record(const RunSetup& run, const RankRecord& totals) {
  const MemoryForecast forecast = run.parallel.strategy->memory_forecast();
  RankRecord mine = totals;
  mine.rank = run.world.rank;
  mine.host = run.world.host;
  if (!run.device_names.empty()) mine.device = run.device.str();
  mine.pid = ::getpid();
  mine.peak_memory_bytes = peak_memory_bytes();
  mine.weight_bytes = forecast.weight_bytes;
  mine.gradient_bytes = forecast.gradient_bytes;
  mine.optimizer_bytes = forecast.optimizer_bytes;
  if (run.config.memory_limit > 0) {
    mine.memory_limit_bytes = run.config.memory_limit;
    mine.peak_tensor_bytes = peak_counted_memory_bytes();
  }
  if (!run.parallel.part->is_whole()) mine.part = part_record(run, mine.exchange_seconds);
  return mine;
}

RanksRecord gather_ranks(Group& group, const RankRecord& mine) {
  RanksRecord all;
  for (const std::string& text : group.all_gather_text(to_line(RanksRecord{{mine}}), "the ranks' totals"))
    all.ranks.push_back(record_from<RanksRecord>(Json::parse(text), "the ranks' totals").ranks.at(0));
  return all;
}

}  // namespace cohort
