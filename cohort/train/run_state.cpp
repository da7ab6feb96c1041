// Saving and loading a run's state. save(): every rank writes the pieces that it owns (checkpoint_pieces.h). load_latest():
//
//   1. Rank 0 finds and verifies the newest checkpoint, and checks its identity; all ranks get its path.
//   2. If all ranks can read it, each reads its own pieces, without messages. Otherwise rank 0 broadcasts every tensor, one at a time, and
//   each
//      rank keeps its pieces: the size of the checkpoint in messages, one tensor in memory.
//   3. Optimizer states of another number of workers are averaged, and residuals of compression are distributed so that their sum is kept.
#include "cohort/train/run_state.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/comm/together.h"
#include "cohort/job/resumed_config.h"
#include "cohort/job/specs/batch_schedule.h"
#include "cohort/job/specs/sync_mode.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/local/fragments.h"
#include "cohort/train/check_run.h"

namespace cohort {
namespace {

std::string name_of_other_worker(const std::string& name, int64_t worker) {
  return name_of_worker(worker, name.substr(name.find('/') + 1));
}

std::string checkpoints_folder(const Config& config) { return config.run + "/checkpoints"; }

/// Properties beside the tensors in which a resumed run must equal its checkpoint. The batch schedule after `step` may differ.
Json identity(const Job& job, const DataIdentity& data, int64_t step) {
  const Config& config = job.config;
  Json out{{"model", config.model},
           {"optimizer", config.optimizer},
           {"train_samples", data.train_samples},
           {"global_batch", config.global_batch},
           {"batch_schedule", batch_schedule_text(job.batch_stages, step)},
           {"seed", config.seed}};
  if (!data.fingerprint.empty()) out["data"] = data.fingerprint;
  if (!data.teacher.empty()) out["teacher"] = data.teacher;
  return out;
}

/// Error(kBadInput) where the resumed run would be another training. Older checkpoints have no fingerprint.
void check_identity(const Json& then, const Json& now, const std::string& path, const std::string& data) {
  for (const auto& [key, value] : now.items()) {
    if (then.value(key, key == "batch_schedule" ? Json("") : Json()) == value) continue;  // Older checkpoints have none.
    if (key == "teacher" && !then.contains(key)) continue;                                // The run gets a teacher only now.
    if (key == "teacher")
      fail(ErrorCode::kBadInput, name_settings("--resume: "), path, " learnt from a teacher with other weights than there are now where ",
           name_settings("--teacher"), " points (fingerprint ", then[key].dump(), ", now ", value.dump(),
           name_settings("); give the checkpoint that it began with, as --teacher RUN/checkpoints/step-N, or start a new run in another "
                         "--run folder"));
    if (key == "data" && !then.contains(key)) {
      log_warning(
          concat(name_settings("--resume: "), path, " has no fingerprint of its data, so it is unknown whether ", data, " is the same"));
      continue;
    }
    if (key == "data")
      fail(ErrorCode::kBadInput, name_settings("--resume: "), path, " was trained on other data than ", data, " is now (fingerprint ",
           then[key].dump(), ", now ", value.dump(),
           name_settings("); give the same --data, --context, --image-size and --val-samples, or start a new run in another --run folder"));
    const auto text = [](const Json& what) {
      return what.is_null() || what == "" ? "none" : what.is_string() ? what.get<std::string>() : what.dump();
    };
    if (key == "train_samples")
      fail(ErrorCode::kBadInput, name_settings("--resume: "), path, " was trained on ", text(then.value(key, Json())), " samples, and ",
           data, " now gives ", text(value),
           name_settings("; give the same --data, --context, --image-size and --val-samples, or start a new run in another --run folder"));
    std::string option = key;
    std::replace(option.begin(), option.end(), '_', '-');
    option = name_settings("--" + option);
    fail(ErrorCode::kBadInput, name_settings("--resume: "), path, " was trained with ", option, " ", text(then.value(key, Json())),
         ", this run has ", option, " ", text(value), name_settings("; give the same, or start a new run in another --run folder"));
  }
}

/// The elements of a shard's piece from the whole tensor in memory.
at::Tensor part_of_whole(const at::Tensor& whole, const ParameterShard& shard, const FlatPiece& piece) {
  std::vector<at::Tensor> rows;
  const at::Tensor shaped = whole.view(shard.whole_shape);
  for (const SliceRange& range : shard.ranges) rows.push_back(shaped.narrow(shard.dim, range.whole, range.count));
  return at::cat(rows, shard.dim).reshape({-1}).narrow(0, piece.begin, piece.values.numel());
}

/// Workers with an optimizer state of their own, with local steps.
int num_state_workers(const Job& job) {
  const SyncKind sync = job.layout.sync.kind;
  const bool trains_alone = sync == SyncKind::kLocal || sync == SyncKind::kDiloco;
  return job.clock && trains_alone ? job.clock->workers : num_pipelines(job.layout);
}

bool of_compressor(const std::string& name) { return name.starts_with("compress/"); }
bool is_residual(const std::string& name) { return of_compressor(name) && name.ends_with("/residual"); }

}  // namespace

std::vector<std::string> StateSources::of_workers(const std::string& name) const {
  std::vector<std::string> found;
  while (tensors_.contains(name_of_worker(static_cast<int64_t>(found.size()), name)))
    found.push_back(name_of_worker(static_cast<int64_t>(found.size()), name));
  return found;
}

std::vector<std::string> StateSources::of(const std::string& name) const {
  const StateName split = split_state_name(name);
  if (split.of_outer) return tensors_.contains(name) ? std::vector<std::string>{name} : std::vector<std::string>{};
  if (split.of_fragments) {
    const bool is_there = tensors_.contains(name), fits = !tensors_.contains(name_of_other_worker(name, num_workers_)) &&
                                                          tensors_.contains(name_of_other_worker(name, num_workers_ - 1));
    return is_there && fits ? std::vector<std::string>{name} : std::vector<std::string>{};
  }
  if (tensors_.contains(split.name)) return {split.name};
  std::vector<std::string> states = of_workers(split.name);
  if (states.empty()) return {name};
  if (split.worker && static_cast<int>(states.size()) == num_workers_) return {name};
  return states;
}

int StateSources::num_states() const {
  int64_t most = -1;
  for (const std::string& tensor : tensors_)
    if (const StateName split = split_state_name(tensor); split.worker && !split.of_fragments) most = std::max(most, *split.worker);
  return static_cast<int>(most + 1);
}

RunState::RunState(const Job& job, LayerGraph& model, Strategy& strategy, Group& group, ParameterPlaces places, DataIdentity data)
    : job_(job),
      model_(model),
      strategy_(strategy),
      group_(group),
      places_(std::move(places)),
      data_(std::move(data)),
      settings_(to_toml(persistent_config(job.config))) {}

Json RunState::describe(int64_t step, const Json& extra) const {
  Json aliases = Json::object();
  for (const auto& [alias, name] : places_.aliases) aliases[alias] = name;
  return Json{{"step", step},
              {"identity", identity(job_, data_, step)},
              {"samples_seen", run_sampler(job_, data_.train_samples).samples_before(step)},
              {"layout", to_json(job_.layout)},
              {"world_size", group_.size()},
              {"aliases", aliases},
              {"extra", extra},
              {"config", settings_}};
}

std::string RunState::save(int64_t step, const Json& extra, int64_t best_step, bool makes_run) {
  const auto mine = [this] {
    std::vector<FlatPiece> pieces = strategy_.saved_pieces();
    if (places_.saves_buffers)
      for (FlatPiece& buffer : buffer_pieces(model_)) pieces.push_back(std::move(buffer));
    return pieces;
  };
  return write_checkpoint(group_, places_,
                          {.folder = checkpoints_folder(job_.config),
                           .makes_above = makes_run,
                           .step = step,
                           .num_kept = static_cast<int>(job_.config.keep_checkpoints),
                           .best_step = best_step,
                           .mine = mine,
                           .state = [&] { return describe(step, extra); }},
                          "cannot save a checkpoint");
}

/// The path of the newest valid checkpoint, whose identity is checked; called on rank 0.
std::string RunState::newest_checkpoint() const {
  std::vector<std::string> skipped;
  const std::optional<Checkpoint> checkpoint = Checkpoint::open_latest(checkpoints_folder(job_.config), &skipped);
  for (const std::string& line : skipped) log_warning("checkpoint skipped: " + line);
  if (!checkpoint)
    fail(ErrorCode::kBadInput, name_settings("--resume: no valid checkpoint in "), checkpoints_folder(job_.config),
         name_settings(
             ", so there is nothing to go on from; begin anew in another --run folder, or, where none was saved, with --resume=auto"));
  const Json& state = checkpoint->state();
  check_identity(state.value("identity", Json::object()), identity(job_, data_, state.value("step", int64_t{0})), checkpoint->path(),
                 job_.config.data);
  return checkpoint->path();
}

/// The residuals of compression: with another number of ranks each takes the rows of some of the old ones, so that their sum is kept.
/// Buckets that the checkpoint lacks start with zeros.
void RunState::read_compressor_state(const Checkpoint& checkpoint, FlatPiece& piece) const {
  const int64_t count = piece.values.numel();
  if (!checkpoint.has(piece.name) || checkpoint.dtype(piece.name) != dtype_of(piece)) return;
  const std::vector<int64_t>& shape = checkpoint.shape(piece.name);
  if (!is_residual(piece.name)) {
    if (shape == piece.shape) checkpoint.read_whole(piece.name, piece.values.data_ptr());
    return;
  }
  if (shape.size() != 2 || shape[1] != count) return;
  at::Tensor row = at::empty_like(piece.values);
  piece.values.zero_();
  for (int64_t old_rank = group_.rank(); old_rank < shape[0]; old_rank += group_.size()) {
    checkpoint.read_range(piece.name, old_rank * count, (old_rank + 1) * count, row.data_ptr());
    piece.values.add_(row);
  }
}

void RunState::read_pieces(const Checkpoint& checkpoint, std::vector<FlatPiece>& pieces) const {
  const StateSources sources(checkpoint.tensor_names(), num_state_workers(job_));
  for (FlatPiece& piece : pieces) {
    if (of_compressor(piece.name)) read_compressor_state(checkpoint, piece);
    else read_mean(checkpoint, sources.of(piece.name), piece);
  }
}

/// Reads the mean of the sources; without sources the piece is not changed.
void RunState::read_mean(const Checkpoint& checkpoint, const std::vector<std::string>& sources, FlatPiece& piece) const {
  const bool is_mean = sources.size() > 1;
  if (is_mean) piece.values.zero_();
  for (const std::string& source : sources) {
    FlatPiece part{source, is_mean ? at::empty_like(piece.values) : piece.values, piece.shape, piece.begin};
    check_piece(checkpoint, places_, part, name_settings("--resume: "));
    read_piece(checkpoint, places_, part);
    if (is_mean) piece.values.add_(part.values, 1.0 / static_cast<double>(sources.size()));
  }
}

/// As read_compressor_state(), for a residual that rank 0 broadcasts row by row. `piece` is null where the run has no such bucket.
void RunState::receive_residual(const Checkpoint* checkpoint, const std::string& name, const std::vector<int64_t>& shape,
                                FlatPiece* piece) {
  const int64_t count = shape.at(1);
  const bool fits = piece && piece->values.numel() == count;
  at::Tensor row = at::empty({count}, at::kFloat);
  if (fits) piece->values.zero_();
  for (int64_t old_rank = 0; old_rank < shape.at(0); ++old_rank) {
    if (checkpoint) checkpoint->read_range(name, old_rank * count, (old_rank + 1) * count, row.data_ptr());
    group_.broadcast(row, 0, name);
    if (fits && old_rank % group_.size() == group_.rank()) piece->values.add_(row);
  }
}

/// Rank 0, which has `checkpoint`, broadcasts every tensor, one at a time, and each rank keeps its pieces.
void RunState::receive_pieces(const Checkpoint* checkpoint, std::vector<FlatPiece>& pieces) {
  Json list = Json::array();
  if (checkpoint)
    for (const std::string& name : checkpoint->tensor_names())
      list.push_back(Json{{"name", name}, {"type", static_cast<int>(checkpoint->dtype(name))}, {"shape", checkpoint->shape(name)}});
  list = Json::parse(group_.all_gather_text(checkpoint ? list.dump() : "", "the list of tensors").front());
  std::vector<std::string> names;
  for (const Json& entry : list) names.push_back(entry.at("name"));
  const StateSources sources(names, num_state_workers(job_));
  struct Wanted {
    FlatPiece* piece;
    size_t num_sources;
  };
  std::map<std::string, Wanted> wanted;  // By source tensor; no two pieces have the same source.
  for (FlatPiece& piece : pieces) {
    const std::vector<std::string> from = sources.of(piece.name);
    if (from.size() > 1) piece.values.zero_();
    for (const std::string& source : from) wanted[source] = {&piece, from.size()};
  }
  for (const Json& entry : list) {
    const std::string name = entry.at("name");
    const auto shape = entry.at("shape").get<std::vector<int64_t>>();
    const std::optional<at::ScalarType> type = torch_type_of(entry.at("type").get<int>());
    if (!type) continue;
    const auto found = wanted.find(name);
    if (is_residual(name) && shape.size() == 2 && *type == at::kFloat) {
      receive_residual(checkpoint, name, shape, found == wanted.end() ? nullptr : found->second.piece);
      continue;
    }
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    at::Tensor whole = at::empty({count}, *type);
    if (checkpoint) checkpoint->read_whole(name, whole.data_ptr());
    group_.broadcast(whole, 0, name);
    if (found == wanted.end()) continue;
    FlatPiece& piece = *found->second.piece;
    if (of_compressor(name)) {
      if (shape == piece.shape && whole.scalar_type() == piece.values.scalar_type()) piece.values.copy_(whole);
      continue;
    }
    const ParameterShard* const shard = places_.shard_of(piece);
    if (shape != (shard ? shard->whole_shape : piece.shape) || whole.scalar_type() != piece.values.scalar_type())
      fail(ErrorCode::kBadInput, name_settings("--resume: tensor "), name, " of the checkpoint has another shape or type than the model's");
    const at::Tensor part = shard ? part_of_whole(whole, *shard, piece) : whole.narrow(0, piece.begin, piece.values.numel());
    if (const size_t num_sources = found->second.num_sources; num_sources == 1) piece.values.copy_(part);
    else piece.values.add_(part.to(piece.values.device()), 1.0 / static_cast<double>(num_sources));
    wanted.erase(found);
  }
  std::erase_if(wanted, [](const auto& entry) { return of_compressor(entry.first); });  // Their buckets start with zeros.
  if (!wanted.empty()) fail(ErrorCode::kBadInput, name_settings("--resume: the checkpoint has no tensor "), wanted.begin()->first);
}

/// Logs that the optimizer states of the checkpoint's workers were averaged.
void RunState::log_averaged(const Checkpoint& checkpoint) {
  const int num_workers = num_state_workers(job_), num_states = StateSources(checkpoint.tensor_names(), num_workers).num_states();
  const bool has_own = num_workers > 1 && is_local(job_.layout.sync);
  if (num_states > 0 && !(has_own && num_states == num_workers))
    log_info(concat(name_settings("--resume: "), "the ", num_states, " workers of ", checkpoint.path(),
                    " had each an optimizer's state of its own; this run goes on from their mean"));
}

int64_t RunState::load_latest(Json* extra, std::string* loaded) {
  at::NoGradGuard no_grad;
  std::string& path = *loaded;
  together(group_, name_settings("--resume"), [&] {
    if (group_.rank() == 0) path = newest_checkpoint();
  });
  path = group_.all_gather_text(path, "the path of the checkpoint").front();
  std::optional<Checkpoint> checkpoint;
  std::string here = "no";
  if (std::filesystem::exists(path)) {
    try {
      checkpoint = Checkpoint::open(path, /*verify_data=*/false);  // Rank 0 has verified the data.
      here = std::to_string(checkpoint->step());
    } catch (const Error&) {
    }
  }
  const std::vector<std::string> steps = group_.all_gather_text(here, "who can read the checkpoint");
  const bool all_read = std::all_of(steps.begin(), steps.end(), [&](const std::string& step) { return step == steps.front(); });
  if (group_.rank() == 0) log_averaged(*checkpoint);
  std::vector<FlatPiece> pieces = strategy_.loaded_pieces();
  for (FlatPiece& buffer : buffer_pieces(model_)) pieces.push_back(std::move(buffer));
  if (all_read) together(group_, name_settings("--resume"), [&] { read_pieces(*checkpoint, pieces); });
  else receive_pieces(group_.rank() == 0 ? &*checkpoint : nullptr, pieces);
  strategy_.loaded();
  std::string state;
  if (group_.rank() == 0) state = Json{{"step", checkpoint->step()}, {"extra", checkpoint->state().value("extra", Json::object())}}.dump();
  const Json info = Json::parse(group_.all_gather_text(state, "the state of the run").front());
  *extra = info.at("extra");
  return info.at("step").get<int64_t>();
}

}  // namespace cohort
