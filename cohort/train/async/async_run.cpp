#include "cohort/train/async/async_run.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "cohort/base/fail.h"
#include "cohort/base/log.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/train/async/gradient_server.h"
#include "cohort/train/async/model_queue.h"

namespace cohort {
namespace {

constexpr const char* kStateName = "async/state";
constexpr int64_t kMostStateBytes = int64_t{1} << 28;

}  // namespace

TicketOptions ticket_options(const Config& config, const DataSource& samples, const LayerGraph& model, int64_t total_steps, int num_workers,
                             const std::string& workers_setting) {
  const TicketOptions options{.num_samples = samples.num_samples(),
                              .global_batch = config.global_batch,
                              .num_shares = num_workers,
                              .granularity = model.sample_granularity(),
                              .end_step = total_steps};
  const int64_t batch = std::min(options.global_batch, options.num_samples);
  if (share_of_rank(batch, num_workers - 1, num_workers, options.granularity).size() == 0)
    fail(ErrorCode::kBadInput, workers_setting, num_workers, ": a step of ", batch, " samples leaves some of them without",
         options.granularity > 1
             ? name_settings("; this model's batch norm keeps groups of samples together: use another norm (norm=group, none, "
                             "norm=ghost with a smaller ghost=N), fewer workers, or a larger --global-batch")
             : name_settings("; use fewer workers, or a larger --global-batch"));
  return options;
}

std::unique_ptr<AsyncMode> make_async_mode(const torch::nn::Module& model, const RunSetup& run, int num_workers,
                                           const QueueServing& queue) {
  if (parse_sync(run.job.layout.sync).kind == SyncKind::kQueue)
    return std::make_unique<ModelQueue>(model, ModelQueueOptions{.rule = run.job.rule,
                                                                 .global_batch = run.config.global_batch,
                                                                 .capacity = num_workers,
                                                                 .newest = queue.newest,
                                                                 .replaces = queue.replaces});
  return std::make_unique<GradientServer>(
      model,
      GradientServerOptions{.rule = run.job.rule, .remedy = parse_remedy(run.config.remedy), .global_batch = run.config.global_batch});
}

FlatPiece async_state_piece(const Json& state) {
  const std::string text = state.dump();
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return {kStateName, bytes, {bytes.numel()}, 0};
}

FoundAsyncState find_async_state(const std::string& run, const std::string& key) {
  const std::optional<Checkpoint> checkpoint = Checkpoint::open_latest(run + "/checkpoints");
  if (!checkpoint) fail(ErrorCode::kFailed, "no checkpoint in ", run, "/checkpoints any more");
  FoundAsyncState found{.where = concat(name_settings("--resume: "), checkpoint->path()), .step = checkpoint->step()};
  if (!checkpoint->has(kStateName)) return found;
  const std::vector<int64_t>& shape = checkpoint->shape(kStateName);
  if (shape.size() != 1 || shape[0] > kMostStateBytes || checkpoint->dtype(kStateName) != DType::kU8)
    fail(ErrorCode::kBadInput, checkpoint->path(), ": ", kStateName, " is no text");
  std::string text(static_cast<size_t>(shape[0]), 0);
  checkpoint->read_whole(kStateName, text.data());
  const Json state = parse_strict_ordered_json(text, {.path = found.where});
  if (state.is_object() && state.value("key", "") == key) {
    found.text = std::move(text);
    return found;
  }
  log_info(concat(found.where,
                  " was saved with other workers, another sync or another remedy; this run goes on from its weights and optimizer, and "
                  "all workers begin anew"));
  return found;
}

}  // namespace cohort
