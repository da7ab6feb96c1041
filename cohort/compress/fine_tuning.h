#pragma once
// The training that makes a model fit for less: a run of its own, which begins with the weights of another and leaves that one as it is.
// Torch-free.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/infer/trained_file.h"
#include "cohort/job/config.h"

namespace cohort {

struct FineTuningRequest {
  std::string verb;            ///< "compress prune": what messages begin with,
  std::string how;             ///< and "weight:0.9", which names the folder.
  std::string prune;           ///< Settings of the training; "": none.
  std::string quantize_aware;  ///< Likewise.
  int64_t steps = 0;           ///< 0: as many as the run had made.
  double lr = Config::kAuto;   ///< It begins with this rate and falls to 0; auto: the run's.
  std::string run;             ///< Its folder; "": the run's name and what is done to it.
  std::string layout;          ///< "": dp.
  std::string data, plugin;    ///< "": the run's.
  int workers = 0, threads = 0;
  bool quiet = false;  ///< Nobody reads what the training tells.
};

/// The training's settings: model, data, batch, optimizer and loss are the run's, the rate falls linearly to 0, a checkpoint every tenth of
/// the steps. `model` and `init_from`: what it begins with.
Config fine_tuning_config(const TrainedFile& file, const FineTuningRequest& request, const std::string& model,
                          const std::string& init_from);
/// The folder that it is written to.
std::string fine_tuning_folder(const TrainedFile& file, const FineTuningRequest& request);

/// Error(kBadInput) that begins with "--run DIR" where settings of the training in config.run are others than `config`'s, but for those on
/// workers, layout, and what is told and saved meanwhile. config.run holds a config.toml.
void check_same_training(const Config& config);

/// Whether config.run has a checkpoint to go on from. What a training left that was ended before its first is taken away, so that it can
/// begin anew. Error(kBadInput) where the folder holds another run or other files, or somebody works in it.
bool has_begun(const Config& config);

enum class FineTuningState {
  kNew,    ///< Nothing is there.
  kBegun,  ///< It was ended before its last step, and can go on.
  kDone,
};
/// Of config.run. What was ended before its first checkpoint is removed: it has nothing to go on from. Error(kBadInput) where the folder
/// holds another run.
FineTuningState find_fine_tuning(const Config& config);

/// The words that train it, without the program's name: `train` with every setting, or `train --run DIR --resume`.
std::vector<std::string> words_of_fine_tuning(const Config& config, FineTuningState state);

}  // namespace cohort
