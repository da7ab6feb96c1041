#include "cohort/cli/plan/plan.h"

#include <algorithm>
#include <cstdio>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/cli/options/train_line.h"
#include "cohort/data/source/source.h"
#include "cohort/job/option_rules.h"
#include "cohort/tune/auto_batch.h"
#include "cohort/world/stop.h"

namespace cohort {
namespace {

void check_arguments(const Arguments& arguments) {
  if (!arguments.was_given("model") || !arguments.was_given("data"))
    fail(ErrorCode::kBadInput, "--find-batch trains some steps here: give --model and --data");
  for (const auto& [name, value] : arguments.options)
    if (name != "find-batch")
      fail(ErrorCode::kBadInput, "--find-batch and --", name, ": one process tries sizes of its micro-batch; leave one out");
  for (const char* name : {"workers", "layout", "weights", "bucket-bytes", "accumulate", "study", "inject"})
    if (arguments.was_given(name))
      fail(ErrorCode::kBadInput, "--find-batch is about one worker, where --", name, " would do nothing; leave it out");
  check_options(situation_of(arguments.config));
}

const char* name_of(FoundBatch::End end) {
  switch (end) {
    case FoundBatch::End::kMemory:
      return "memory";
    case FoundBatch::End::kData:
      return "data";
    case FoundBatch::End::kTime:
      return "time";
    case FoundBatch::End::kStopped:
      return "stopped";
  }
  return "";
}

std::string samples(int64_t number) { return concat(with_commas(number), number == 1 ? " sample" : " samples"); }

/// Bytes of each further sample, by the two largest micro-batches that fit; 0 if they do not show it.
double bytes_per_sample(const FoundBatch& found) {
  const TriedBatch *large = nullptr, *small = nullptr;
  for (const TriedBatch& one : found.tried)
    if (one.fits) small = large, large = &one;
  if (!small) return 0;
  return std::max(0.0, static_cast<double>(large->peak_tensor_bytes - small->peak_tensor_bytes) /
                           static_cast<double>(large->micro_batch - small->micro_batch));
}

void print_json(const FoundBatch& found) {
  Json tried = Json::array();
  for (const TriedBatch& one : found.tried) {
    Json line{{"micro_batch", one.micro_batch}, {"fits", one.fits}};
    if (one.fits)
      line.update({{"measured_step_seconds", one.step_seconds},
                   {"samples_per_second", static_cast<double>(one.micro_batch) / one.step_seconds},
                   {"peak_tensor_bytes", one.peak_tensor_bytes},
                   {"peak_process_bytes", one.peak_process_bytes}});
    else line["why"] = one.why;
    tried.push_back(std::move(line));
  }
  const Json json{{"event", "batch"},
                  {"largest_micro_batch", found.largest},
                  {"ended_by", name_of(found.end)},
                  {"saturating_micro_batch", found.saturating},
                  {"limit_bytes", found.limit_bytes},
                  {"limit", found.limit_is_given ? "--memory-limit" : "free memory"},
                  {"bytes_per_sample", bytes_per_sample(found)},
                  {"tried", std::move(tried)}};
  print_line(json);
}

void print_text(const Arguments& arguments, const FoundBatch& found) {
  std::printf("micro-batch       a step    samples/s     tensors     process\n");
  for (const TriedBatch& one : found.tried) {
    if (one.fits)
      std::printf("%11s %12s %12.0f %11s %11s\n", with_commas(one.micro_batch).c_str(), human_seconds(one.step_seconds).c_str(),
                  static_cast<double>(one.micro_batch) / one.step_seconds, human_bytes(one.peak_tensor_bytes).c_str(),
                  human_bytes(one.peak_process_bytes).c_str());
    else std::printf("%11s  does not fit: %s\n", with_commas(one.micro_batch).c_str(), one.why.c_str());
  }
  const std::string limit =
      concat(human_bytes(found.limit_bytes), found.limit_is_given ? " of tensors (--memory-limit)" : " (nine tenths of the free memory)");
  const double a_sample = bytes_per_sample(found);
  std::printf("\n");
  switch (found.end) {
    case FoundBatch::End::kMemory:
      std::printf("- %s are the largest micro-batch that fits into %s\n", samples(found.largest).c_str(), limit.c_str());
      break;
    case FoundBatch::End::kData:
      std::printf("- all %s of the training data fit into %s\n", samples(found.largest).c_str(), limit.c_str());
      break;
    case FoundBatch::End::kTime:
      std::printf("- %s fit; larger ones were not tried, for a step would take longer than 20 s", samples(found.largest).c_str());
      if (a_sample > 0)
        std::printf(
            ". By their bytes (%s a sample) some %s would fit into %s", human_bytes(static_cast<int64_t>(a_sample)).c_str(),
            with_commas(found.largest +
                        static_cast<int64_t>(static_cast<double>(found.limit_bytes - found.tried.back().peak_tensor_bytes) / a_sample))
                .c_str(),
            limit.c_str());
      std::printf("\n");
      break;
    case FoundBatch::End::kStopped:
      std::printf("- stopped; %s fit\n", samples(found.largest).c_str());
      break;
  }
  if (found.saturating > 0)
    std::printf("- %s keep a worker busy: 95 %% of the most samples a second; a larger micro-batch costs memory and brings no speed\n",
                samples(found.saturating).c_str());
  const Config& config = arguments.config;
  if (found.largest == 0 || !arguments.was_given("global-batch")) return;
  const int64_t pieces = (config.global_batch + found.largest - 1) / found.largest;
  const std::string line = train_line(
      arguments, {}, {.global_batch = config.global_batch, .options = pieces > 1 ? concat("--accumulate ", pieces) : std::string()});
  std::printf("- a batch of %s on one worker:\n\n%s\n", with_commas(config.global_batch).c_str(), line.c_str());
}

}  // namespace

int plan_batch(const Arguments& arguments) {
  check_arguments(arguments);
  const Config& config = arguments.config;
  load_plugin(config);
  const DataSet data = open_data(config);
  catch_first_stop_signal();
  const bool shows = shows_progress(config);
  const FoundBatch found = find_batch(
      config, data,
      [&](const TriedBatch& one) {
        if (shows) std::fprintf(stderr, "\r\033[Kplan: %s: %s", samples(one.micro_batch).c_str(), one.fits ? "fits" : "does not fit");
      },
      stop_requested);
  if (shows) std::fprintf(stderr, "\r\033[K");
  config.json ? print_json(found) : print_text(arguments, found);
  return found.largest == 0 ? 130 : 0;
}

}  // namespace cohort
