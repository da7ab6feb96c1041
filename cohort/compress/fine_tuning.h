#pragma once
// The training inside `cohort compress prune` and `quantize --scheme qat`: a run of its own that begins with the weights of another run and
// does not change that one. Torch-free.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/infer/trained_file.h"
#include "cohort/job/config.h"

namespace cohort {

struct FineTuningRequest {
  std::string verb;            ///< "compress prune": how messages begin.
  std::string how;             ///< "weight:0.9": part of the folder's name.
  std::string prune;           ///< The setting of the training; "": none.
  std::string quantize_aware;  ///< The setting of the training; "": none.
  int64_t steps = 0;           ///< 0: as many as the original run has made.
  double lr = Config::kAuto;   ///< Initial learning rate, which falls to 0; auto: that of the original run.
  std::string run;             ///< Folder; "": derived from the original run's name and `how`.
  std::string layout;          ///< "": dp.
  std::string data, plugin;    ///< "": those of the original run.
  int workers = 0, threads = 0;
  bool quiet = false;
};

/// Settings of the training. Model, data, batch, optimizer and loss are those of the original run; the rate falls linearly to 0; there is a
/// checkpoint every tenth of the steps. `model`, `init_from`: what it begins with.
Config fine_tuning_config(const TrainedFile& file, const FineTuningRequest& request, const std::string& model,
                          const std::string& init_from);
/// The folder of the training.
std::string fine_tuning_folder(const TrainedFile& file, const FineTuningRequest& request);

enum class FineTuningState {
  kNew,    ///< Nothing to resume.
  kBegun,  ///< Ended before its last step; can be resumed.
  kDone,
};
/// State of the training in config.run; the remains of one that ended before its first checkpoint are deleted. Error(kBadInput) where the
/// folder holds a run with other settings (except those of workers, layout, output and checkpoints), other files or no readable checkpoint,
/// or is in use.
FineTuningState find_fine_tuning(const Config& config);

/// Command line of the training without the program's name: `train` with every setting, or `train --run DIR --resume`.
std::vector<std::string> fine_tuning_command(const Config& config, FineTuningState state);

}  // namespace cohort
