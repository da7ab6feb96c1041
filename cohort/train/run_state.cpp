#include "cohort/train/run_state.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "cohort/base/error.h"
#include "cohort/base/json.h"
#include "cohort/base/log.h"
#include "cohort/checkpoint/checkpoint.h"

namespace cohort {
namespace {

DType dtype_of(const NamedTensor& tensor) {
  switch (tensor.tensor.scalar_type()) {
    case at::kDouble:
      return DType::kF64;
    case at::kFloat:
      return DType::kF32;
    case at::kHalf:
      return DType::kF16;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kLong:
      return DType::kI64;
    case at::kInt:
      return DType::kI32;
    case at::kShort:
      return DType::kI16;
    case at::kChar:
      return DType::kI8;
    case at::kByte:
      return DType::kU8;
    case at::kBool:
      return DType::kBool;
    default:
      fail(ErrorCode::kBadInput, "tensor ", tensor.name, " has a type that checkpoints cannot hold");
  }
}

std::string checkpoints_folder(const Config& config) { return config.run + "/checkpoints"; }

/// What a checkpoint must agree in with the run that goes on from it, beside the tensors.
Json identity(const Config& config, int64_t num_train_samples) {
  return Json{{"model", config.model},
              {"optimizer", config.optimizer},
              {"train_samples", num_train_samples},
              {"global_batch", config.global_batch},
              {"seed", config.seed}};
}

}  // namespace

RunState::RunState(const Config& config, const Layout& layout, LayerGraph& model, Optimizer& optimizer, Group& group,
                   int64_t num_train_samples)
    : config_(config), layout_(layout), model_(model), optimizer_(optimizer), group_(group), num_train_samples_(num_train_samples) {}

std::vector<NamedTensor> RunState::all_tensors() const {
  std::vector<NamedTensor> tensors;
  for (const auto& [name, tensor] : distinct_parameters(model_)) tensors.push_back({"model/" + name, tensor.detach()});
  for (const auto& [name, tensor] : distinct_buffers(model_)) tensors.push_back({"model/" + name, tensor.detach()});
  for (const auto& [name, tensor] : optimizer_.state()) tensors.push_back({"optimizer/" + name, tensor});
  return tensors;
}

/// Every rank learns whether rank 0 succeeded; all throw the same when it did not.
void RunState::same_outcome_everywhere(const std::string& failure, const std::string& what) {
  const std::string first = group_.all_gather_text(failure, what).front();
  if (first.empty()) return;
  const int code = first[0] - '0';
  throw Error(static_cast<ErrorCode>(code), first.substr(1));
}

std::string RunState::save(int64_t step) {
  std::string path, failure;
  if (group_.rank() == 0) {
    try {
      Json aliases = Json::object();
      std::map<std::string, std::string> names;
      distinct_parameters(model_, &names);
      for (const auto& [alias, name] : names) aliases[alias] = name;
      Json state{{"step", step},
                 {"identity", identity(config_, num_train_samples_)},
                 {"samples_seen", step * config_.global_batch},
                 {"layout", to_json(layout_)},
                 {"world_size", group_.size()},
                 {"aliases", aliases},
                 {"config", to_toml(config_)}};
      std::vector<TensorPiece> pieces;
      std::vector<at::Tensor> contiguous;  // Keeps copies alive until they are written.
      for (const NamedTensor& named : all_tensors()) {
        contiguous.push_back(named.tensor.contiguous());
        const std::vector<int64_t> shape = named.tensor.sizes().vec();
        pieces.push_back(
            {{named.name, dtype_of(named), shape, contiguous.back().data_ptr()}, shape, std::vector<int64_t>(shape.size(), 0)});
      }
      std::filesystem::create_directories(checkpoints_folder(config_));
      CheckpointWriter writer(checkpoints_folder(config_), step, std::to_string(::getpid()));
      try {
        writer.begin();
        path = writer.commit({writer.write_shard(0, pieces)}, state, static_cast<int>(config_.keep_checkpoints));
      } catch (...) {
        writer.abandon();
        throw;
      }
    } catch (const Error& error) {
      failure = concat(static_cast<int>(error.code()), error.what());
    } catch (const std::exception& error) {
      failure = concat(1, "cannot save a checkpoint: ", error.what());
    }
  }
  same_outcome_everywhere(failure, "the outcome of the checkpoint");
  return path;
}

void RunState::load_on_rank_0(int64_t& step) {
  std::vector<std::string> skipped;
  std::optional<Checkpoint> checkpoint = Checkpoint::open_latest(checkpoints_folder(config_), &skipped);
  for (const std::string& line : skipped) log_warning("checkpoint skipped: " + line);
  if (!checkpoint) fail(ErrorCode::kBadInput, "--resume: no valid checkpoint in ", checkpoints_folder(config_));
  const Json now = identity(config_, num_train_samples_), then = checkpoint->state().value("identity", Json::object());
  for (const auto& [key, value] : now.items())
    if (then.value(key, Json()) != value)
      fail(ErrorCode::kBadInput, "--resume: ", checkpoint->path(), " was trained with ", key, " = ", then.value(key, Json()).dump(),
           ", this run has ", value.dump(), "; give the same, or start a new run in another --run folder");
  at::NoGradGuard no_grad;
  for (const NamedTensor& named : all_tensors()) {
    const std::vector<int64_t> shape = named.tensor.sizes().vec();
    if (!checkpoint->has(named.name)) fail(ErrorCode::kBadInput, "--resume: ", checkpoint->path(), " has no tensor ", named.name);
    if (checkpoint->shape(named.name) != shape || checkpoint->dtype(named.name) != dtype_of(named))
      fail(ErrorCode::kBadInput, "--resume: tensor ", named.name, " of ", checkpoint->path(),
           " has another shape or type than the model's");
    at::Tensor values = at::empty(shape, named.tensor.options());
    checkpoint->read_whole(named.name, values.data_ptr());
    const_cast<at::Tensor&>(named.tensor).copy_(values);
  }
  step = checkpoint->step();
}

int64_t RunState::load_latest() {
  at::Tensor step = at::empty({1}, at::kLong);
  step.data_ptr<int64_t>()[0] = 0;
  std::string failure;
  if (group_.rank() == 0) {
    try {
      load_on_rank_0(step.data_ptr<int64_t>()[0]);
    } catch (const Error& error) {
      failure = concat(static_cast<int>(error.code()), error.what());
    } catch (const std::exception& error) {
      failure = concat(1, "--resume: ", error.what());
    }
  }
  same_outcome_everywhere(failure, "the outcome of loading the checkpoint");
  group_.broadcast(step, 0, "the step of the checkpoint");
  at::NoGradGuard no_grad;
  for (NamedTensor& named : all_tensors()) {
    if (named.tensor.is_contiguous()) {
      group_.broadcast(named.tensor, 0, named.name);
    } else {
      at::Tensor copy = named.tensor.contiguous();
      group_.broadcast(copy, 0, named.name);
      named.tensor.copy_(copy);
    }
  }
  return step.item<int64_t>();
}

}  // namespace cohort
