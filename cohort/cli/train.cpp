#include "cohort/base/error.h"
#include "cohort/base/log.h"
#include "cohort/cli/verb.h"
#include "cohort/data/source.h"
#include "cohort/train/auto_batch.h"
#include "cohort/train/trainer.h"
#include "cohort/world/world.h"

namespace cohort {
namespace {

/// --study becomes numbers here, before anything is started: ranks and the run's config.toml see those alone.
Config resolved_config(const Arguments& arguments) {
  Config config = arguments.config;
  if (arguments.was_given("study") && !arguments.was_given("global-batch") && config.global_batch == Config().global_batch)
    config.global_batch = 0;  // Nobody named a number.
  // In a file beside a number it says where the numbers came from.
  if (config.global_batch != 0 && !arguments.was_given("study")) return config;
  const World world = world_from_environment();
  const Layout layout = parse_layout(config.layout, world.launcher == "none" ? config.workers : world.size);
  const AutoBatch chosen = resolve_auto_batch(config, [&](const std::string& setting) { return arguments.was_given(setting); }, layout);
  if (world.rank == 0) log_info(chosen.sentence);
  return chosen.config;
}

int run_train(const Arguments& given) {
  if (!given.positional.empty())
    fail(ErrorCode::kBadInput, "train: '", given.positional.front(), "' is neither an option nor a .toml file");
  Arguments arguments = given;
  arguments.config = resolved_config(given);
  const Config& config = arguments.config;
  check_config(config);
  load_plugin(config);
  // Read before ranks are forked: once for all of them, and a bad file ends the command before anything is started.
  const DataSet data = open_data(config.data, {.context = config.context, .validation_samples = config.val_samples, .seed = config.seed});
  if (!config.prompt.empty() && data.train->shape().kind != DataShape::Kind::kText)
    fail(ErrorCode::kBadInput, "--prompt is for text, and ", config.data, " holds pictures; leave it out");
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
           "cohort train --model fc --data fashion-mnist --steps 200 --checkpoint-every 100 --run runs/x",
           "cohort train runs/x/config.toml --resume --workers 2 --steps 400",
           "mpirun -n 2 cohort train --model resnet8 --data fashion-mnist --run runs/mpi",
           "torchrun --nproc-per-node 2 --no-python -- cohort train --model fc --data fashion-mnist --run runs/torchrun"},
      .positional_help = "config.toml, whose settings the options override",
      .takes_settings = true,
      .run = run_train};
}

}  // namespace cohort
