#include "cohort/cli/trained/trained.h"

#include "cohort/base/fail.h"
#include "cohort/base/text/log.h"
#include "cohort/data/source/fingerprint.h"
#include "cohort/infer/trained_file.h"

namespace cohort {

VerbOption checkpoint_option() {
  return {"checkpoint", "WHICH", "of a run: latest (the default), best (the lowest validation loss) or the number of a step"};
}

std::string out_file(const Arguments& arguments, const std::string& verb) {
  const std::string out = arguments.option("out", "");
  if (out.empty()) fail(ErrorCode::kBadInput, verb, ": --out FILE.safetensors is missing");
  return out;
}

TrainedFile open_trained(const Arguments& arguments, const std::string& verb) {
  if (arguments.positional.empty())
    fail(ErrorCode::kBadInput, verb, ": no model given; give a run folder, or a FILE.safetensors of `cohort checkpoint export`");
  TrainedFile file = TrainedFile::open(arguments.positional.front(), arguments.option("checkpoint", "latest"));
  Config plugin;
  // A plug-in that the header of a file names is not loaded: a file must not decide what is run.
  if (arguments.was_given("plugin")) plugin.plugin = arguments.config.plugin;
  else if (!file.is_exported()) plugin.plugin = file.config().plugin;
  load_plugin(plugin);
  return file;
}

/// More validation samples than the run kept would be samples that it was trained on.
static void check_val_samples(int64_t asked, const Config& config) {
  const int64_t kept = open_data(config).validation->num_samples();
  if (asked > kept)
    fail(ErrorCode::kBadInput, "--val-samples ", asked, ": the run kept ", kept,
         " for validation and was trained on the others; give at most so many, or other data with --data");
}

static DataSet open_data_of_trained(const Arguments& arguments, const TrainedFile& file, DataDescription& trained) {
  Config config = file.config();
  if (arguments.was_given("skip-bad")) config.skip_bad = arguments.config.skip_bad;
  if (arguments.was_given("val-samples") && !arguments.was_given("data")) check_val_samples(arguments.config.val_samples, config);
  if (arguments.was_given("val-samples")) config.val_samples = arguments.config.val_samples;
  if (!arguments.was_given("data")) {
    DataSet data = open_data(config);  // Normalisation follows from the samples, so it is the training's.
    if (!file.fingerprint().empty() && !arguments.was_given("val-samples") && data_fingerprint(data) != file.fingerprint())
      log_warning(
          concat(config.data, " has changed since ", file.given(), " was trained on it: these results are of the data as they are now"));
    trained = file.description() ? *file.description() : data.train->describe();
    return data;
  }
  trained = description_of(file);
  // The number of validation samples of the run's data does not apply to other data.
  if (arguments.config.data != config.data && !arguments.was_given("val-samples")) config.val_samples = 0;
  const bool is_text = trained.input == DataDescription::Input::kText;
  return open_data(arguments.config.data, {.context = is_text ? trained.shape.front() : config.context,
                                           .image_size = config.image_size,
                                           .validation_samples = config.val_samples,
                                           .seed = config.seed,
                                           .skip_bad = config.skip_bad,
                                           .kept = std::make_shared<const DataDescription>(trained)});
}

DataSet data_of_trained(const Arguments& arguments, const TrainedFile& file, DataDescription& trained) {
  DataSet data = open_data_of_trained(arguments, file, trained);
  if (data.skipped.count > 0)
    log_warning(concat(data.skipped.count, data.skipped.count == 1 ? " sample of " : " samples of ", data.name,
                       " cannot be read and are left out, the first: ", data.skipped.first.front()));
  return data;
}

}  // namespace cohort
