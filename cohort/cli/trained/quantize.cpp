// Quantisation of a trained model, with --scheme qat after a training with rounded weights (fine_tuning.cpp).
#include "cohort/cli/trained/compress.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/trained/trained.h"
#include "cohort/compress/compression_result.h"
#include "cohort/compress/quantise.h"
#include "cohort/infer/trained_file.h"
#include "cohort/job/specs/small_specs.h"

namespace cohort {
namespace {

/// The scheme that "qat" applies after its training.
std::string scheme_after_training(int bits) { return bits == 4 ? "weight-only" : "static"; }

QuantiseRequest quantise_request(const Arguments& arguments, bool trains) {
  QuantiseRequest request{.scheme = arguments.option("scheme", "static"),
                          .bits = static_cast<int>(arguments.integer_option("bits", 8, 1, 64)),
                          .group = arguments.integer_option("group-size", 64, 1, 1'000'000),
                          .calibration = arguments.option("calibration", "min-max"),
                          .calibration_samples = arguments.integer_option("calibration-samples", 512, 1, 1'000'000'000),
                          .max_error_increase = error_increase(arguments),
                          .threads = arguments.config.threads};
  if (trains) request.scheme = scheme_after_training(request.bits);
  if (arguments.options.contains("calibration") && request.scheme != "static")
    fail(ErrorCode::kBadInput, "--calibration would do nothing here: --scheme ", arguments.option("scheme", "static"),
         trains ? " with --bits 4" : "", " needs no ranges of activations; leave it out");
  if (arguments.options.contains("group-size") && request.bits != 4)
    fail(ErrorCode::kBadInput, "--group-size would do nothing here: with --bits ", request.bits, " a row has one scale; leave it out");
  for (const std::string& name : fine_tuning_settings())
    if (!trains && arguments.was_given(name))
      fail(ErrorCode::kBadInput, "--", name, " would do nothing here: only --scheme qat trains; leave it out");
  return request;
}

/// Trains with rounded weights. Returns the exit code; `run` receives the folder.
int train_rounded(const Arguments& arguments, const TrainedFile& file, const QuantiseRequest& request, std::string& run) {
  const std::string verb = "compress quantize --scheme qat";
  FineTuningRequest tuning = fine_tuning_request(arguments, verb);
  if (const CompressedForm* const form = file.compressed(); form && !form->tensors.empty())
    fail(ErrorCode::kBadInput, verb, " begins with a training, and ", file.given(), " lacks its zeros (", quote_text(form->method),
         "): give the run of that pruning, whose zeros stay");
  log_what_is_left_out(file);
  tuning.quantize_aware = request.bits == 8 ? "8" : concat("4:", request.group);
  tuning.prune = file.config().prune;  // Pruned weights stay zero.
  tuning.how = concat("qat-", request.bits);
  const Config config = fine_tuning_config(file, tuning, file.config().model, std::filesystem::canonical(file.path()).string());
  run = config.run;
  return run_fine_tuning(config, find_fine_tuning(config), verb);
}

/// Warns of a run that was trained for another quantisation than it gets.
void warn_of_other_codes(const TrainedFile& file, const QuantiseRequest& request) {
  const std::optional<QuantiseAware> trained = parse_quantise_aware(file.config().quantize_aware);
  if (!trained || (trained->bits == request.bits && (trained->bits == 8 || trained->group == request.group))) return;
  log_warning(
      concat(file.given(), " was trained with --quantize-aware ", file.config().quantize_aware, ", and is quantised otherwise; for that: ",
             trained->bits == 8 ? std::string("--scheme static") : concat("--scheme weight-only --bits 4 --group-size ", trained->group)));
}

}  // namespace

int run_quantize(const Arguments& arguments) {
  const bool trains = arguments.option("scheme", "static") == "qat";
  const QuantiseRequest request = quantise_request(arguments, trains);
  const TrainedFile file = open_trained(arguments, "compress quantize");
  const std::string out = out_file(arguments, "compress quantize");
  check_quantise_request(file, request, out);
  check_differs_from_input(file, out);
  check_compression_report(arguments);
  DataDescription trained;
  const DataSet data = data_of_trained(arguments, file, trained);
  check_same_kind(trained, data);
  std::optional<TrainedFile> tuned;
  std::string run;
  if (trains) {
    check_quantisable(file, trained, *with_training_normalisation(trained, part_of(data, "train")), request);
    if (const int code = train_rounded(arguments, file, request, run); code != 0) return code;
    tuned = TrainedFile::open(run);
  } else {
    warn_of_other_codes(file, request);
  }
  const std::shared_ptr<const DataSource> validation = with_training_normalisation(trained, part_of(data, "val"));
  CompressionResult result =
      quantise(tuned ? *tuned : file, tuned ? &file : nullptr, trained, *with_training_normalisation(trained, part_of(data, "train")),
               *validation, request, out, [](const std::string& what) { log_info(concat("compress: ", what)); });
  result.trained = tuned.has_value();
  print_compression(
      arguments, result, *validation,
      tuned ? concat(file.config().model, ", trained with rounded weights for ", result.step, " steps from ", file.given(), ": ", run)
            : concat(file.config().model, ", step ", result.step, " of ", file.given(), ", on ", data.name));
  return 0;
}

std::vector<VerbOption> quantize_options() {
  return {{"scheme", "NAME",
           "static (the default): int8 from layer to layer; dynamic: int8 products, floats between; weight-only: small file, floats; qat: "
           "trains with rounded weights first"},
          {"bits", "N", "of a weight: 8 (the default), or 4 with --scheme weight-only or qat"},
          {"group-size", "N", "of 4 bits: weights of a row that share a scale (default 64)"},
          {"calibration", "NAME", "ranges of activations (static): min-max (the default), percentile or mse"}};
}

VerbAction quantize_action() {
  VerbAction action{.name = "quantize",
                    .most_words = 1,
                    .reads = {"out", "scheme", "bits", "group-size", "calibration", "calibration-samples", "max-error-increase", "report",
                              "checkpoint", "data", "val-samples", "skip-bad", "plugin", "threads", "json"}};
  for (const std::string& name : fine_tuning_settings()) action.reads.push_back(name);
  return action;
}

}  // namespace cohort
