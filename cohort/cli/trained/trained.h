#pragma once
// Options and helpers of the verbs that use a trained model.

#include <string>
#include <vector>

#include "cohort/cli/options/verb.h"
#include "cohort/data/source/source.h"
#include "cohort/infer/trained_file.h"

namespace cohort {

/// The option --checkpoint of these verbs.
VerbOption checkpoint_option();
/// --out; Error(kBadInput) where it was not given.
std::string out_file(const Arguments& arguments, const std::string& verb);
/// Opens the first word, RUN or FILE.safetensors, and loads the plug-in of its model: --plugin, else the one that the run was trained with.
TrainedFile open_trained(const Arguments& arguments, const std::string& verb);
/// The data that the run was trained on, or those of --data with the run's normalisation; `trained` receives the description of the
/// training's data. Reads --data and --val-samples.
DataSet data_of_trained(const Arguments& arguments, const TrainedFile& file, DataDescription& trained);

}  // namespace cohort
