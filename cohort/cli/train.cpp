#include "cohort/base/error.h"
#include "cohort/base/log.h"
#include "cohort/cli/verb.h"
#include "cohort/data/source.h"
#include "cohort/train/trainer.h"

namespace cohort {
namespace {

int run_train(const Arguments& arguments) {
  Config config = arguments.config;
  if (!arguments.positional.empty())
    fail(ErrorCode::kBadInput, "train: '", arguments.positional.front(), "' is neither an option nor a .toml file");
  check_config(config);
  load_plugin(config);
  // Read before ranks are forked: once for all of them, and a bad file ends the command before anything is started.
  const DataSet data = open_data(config.data, {.context = config.context, .validation_samples = config.val_samples, .seed = config.seed});
  return run_job(arguments, [&](const World& world) {
    return train(config, data, world).interrupted ? static_cast<int>(ErrorCode::kInterrupted) : 0;
  });
}

}  // namespace

Verb train_verb() {
  return {
      .name = "train",
      .summary = "Trains a model on one or many workers; writes a run folder with metrics, checkpoints and report.html.",
      .examples =
          {"cohort train --model cnn --data fashion-mnist --workers 2 --epochs 2",
           "cohort train --model transformer --data text:/usr/share/common-licenses --workers 2 --optimizer adamw --lr 0.003 --steps 500",
           "cohort train runs/x/config.toml --resume", "mpirun -n 4 cohort train --model resnet8 --data cifar10:DIR",
           "torchrun --nproc-per-node 2 --no-python -- cohort train --model fc --data mnist:DIR"},
      .positional_help = "config.toml, whose settings the options override",
      .takes_settings = true,
      .run = run_train};
}

}  // namespace cohort
