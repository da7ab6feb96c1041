// Pruning: a training (fine_tuning.cpp), then an evaluation of the pruned model.
#include "cohort/cli/trained/compress.h"

#include <filesystem>
#include <memory>

#include "cohort/base/fail.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/trained/trained.h"
#include "cohort/compress/compression_result.h"
#include "cohort/compress/prune.h"
#include "cohort/infer/trained_file.h"
#include "cohort/train/run_folder.h"

namespace cohort {
namespace {

PruneRequest prune_request(const Arguments& arguments) {
  PruneRequest request{.granularity = arguments.option("granularity", "weight"),
                       .tuning = fine_tuning_request(arguments, "compress prune")};
  const std::string sparsity = arguments.option("sparsity", request.granularity == "weight" ? "0.8" : "0.5");
  const auto value = parse_number(sparsity);
  if (!value) fail(ErrorCode::kBadInput, "--sparsity ", quote_text(sparsity), ": expected a number above 0 and below 1, as 0.9");
  request.sparsity = *value;
  check_prune_request(request);
  request.tuning.how = request.how();
  if (!request.is_channel()) request.tuning.prune = request.how();
  return request;
}

/// Refuses to overwrite a file that an earlier start of this command did not write.
void check_initial_file(const std::string& initial, const std::string& model) {
  std::error_code ignored;
  if (!std::filesystem::exists(std::filesystem::symlink_status(initial, ignored))) return;
  std::string there;
  try {
    there = TrainedFile::open(initial).config().model;
  } catch (const Error&) {
  }
  if (there != model)
    fail(ErrorCode::kBadInput, "compress prune keeps the smaller model in ", initial,
         " while it trains, and another file has that name; move it away, or give another --run");
}

}  // namespace

int run_prune(const Arguments& arguments) {
  const PruneRequest request = prune_request(arguments);
  const TrainedFile file = open_trained(arguments, "compress prune");
  const std::string out = out_file(arguments, "compress prune");
  check_compressed_name(out);
  check_differs_from_input(file, out);
  check_compression_report(arguments);
  check_not_compressed(file, /*allow_sparse=*/false);
  DataDescription trained;
  const DataSet data = data_of_trained(arguments, file, trained);
  check_same_kind(trained, data);
  std::string source = std::filesystem::canonical(file.path()).string();
  std::string model = file.config().model;
  std::string initial;  // The file of the smaller model from which training begins, if channels are pruned.
  const std::string folder = fine_tuning_folder(file, request.tuning);
  if (request.is_channel()) {
    initial = folder + ".initial.safetensors";
    model = pruned_specification(file, shape_of(trained), request.sparsity);
    source = std::filesystem::absolute(initial).lexically_normal().string();
  } else {
    check_prunable(file, shape_of(trained), request.how());
  }
  FineTuningRequest tuning = request.tuning;
  tuning.quantize_aware = file.config().quantize_aware;  // Weights that were trained rounded stay so.
  const Config config = fine_tuning_config(file, tuning, model, source);
  const FineTuningState state = find_fine_tuning(config);
  if (state == FineTuningState::kNew && request.is_channel()) {
    check_initial_file(initial, model);
    write_smaller_model(file, trained, *with_training_normalisation(trained, part_of(data, "val")), model, initial);
  }
  log_what_is_left_out(file);
  if (const int code = run_fine_tuning(config, state, "compress prune"); code != 0) {
    std::error_code ignored;
    if (!holds_run(config.run)) std::filesystem::remove(initial, ignored);  // The training was refused, and wrote nothing.
    return code;
  }
  const TrainedFile pruned = TrainedFile::open(config.run);
  const std::shared_ptr<const DataSource> validation = with_training_normalisation(trained, part_of(data, "val"));
  CompressionResult result =
      write_pruned(file, pruned, trained, *validation, request, out, [](const std::string& what) { log_info(concat("compress: ", what)); });
  result.trained = true;
  if (!initial.empty()) {
    std::error_code ignored;
    std::filesystem::remove(initial, ignored);
  }
  print_compression(arguments, result, *validation,
                    concat(file.config().model, ", fine-tuned for ", result.step, " steps from ", file.given(), ": ", config.run));
  return 0;
}

std::vector<VerbOption> prune_options() {
  return {{"granularity", "NAME",
           "prune: weight (the default): single weights; 2:4: two of every four; channel: whole channels, a smaller model"},
          {"sparsity", "X", "prune: part of the weights that becomes zero (default 0.8), or of the channels that goes (0.5)"}};
}

VerbAction prune_action() {
  VerbAction action{
      .name = "prune",
      .most_words = 1,
      .reads = {"out", "report", "granularity", "sparsity", "checkpoint", "data", "val-samples", "plugin", "threads", "json"}};
  for (const std::string& name : fine_tuning_settings()) action.reads.push_back(name);
  return action;
}

}  // namespace cohort
