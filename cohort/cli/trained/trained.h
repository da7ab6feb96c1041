#pragma once
// What the verbs that use a trained model have in common.

#include <string>
#include <vector>

#include "cohort/cli/options/verb.h"
#include "cohort/data/source/source.h"
#include "cohort/infer/trained_file.h"

namespace cohort {

/// --checkpoint, as these verbs have it.
VerbOption checkpoint_option();
/// Opens the first word, RUN or FILE.safetensors, and loads the plug-in that its model needs: --plugin, or of a run the one that it was
/// trained with.
TrainedFile open_trained(const Arguments& arguments, const std::string& verb);
/// The data that the run was trained on, or those of --data with the run's normalisation; `trained` gets what they were like in the
/// training. Reads --data and --val-samples.
DataSet data_of_trained(const Arguments& arguments, const TrainedFile& file, DataDescription& trained);

}  // namespace cohort
