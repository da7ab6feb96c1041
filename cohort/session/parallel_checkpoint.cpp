// save() and load(): the same names, shapes and files as those of `cohort train`, whatever the layout.

#include <torch/csrc/autograd/grad_mode.h>

#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/comm/together.h"
#include "cohort/parallel/common/tensor_alias.h"
#include "cohort/session/optimizer_pieces.h"
#include "cohort/session/parallel_state.h"
#include "cohort/train/model/checkpoint_pieces.h"

namespace cohort {
namespace {

void check_piece(const Checkpoint& checkpoint, const ParameterPlaces& places, const FlatPiece& piece) {
  const ParameterShard* const shard = places.shard_of(piece);
  const bool is_there = checkpoint.has(piece.name);
  if (is_there && checkpoint.shape(piece.name) == (shard ? shard->whole_shape : piece.shape) &&
      checkpoint.dtype(piece.name) == dtype_of(piece))
    return;
  fail(ErrorCode::kBadInput, checkpoint.path(), is_there ? " has another shape or type of " : " does not have ", piece.name,
       ", which this model or optimizer has");
}

}  // namespace

/// What this rank writes, or reads.
std::vector<FlatPiece> Parallel::State::pieces(bool saving, torch::optim::Optimizer* optimizer) {
  std::vector<FlatPiece> pieces;
  const bool saves_all = !saving || (split ? split->places().saves_buffers : session.is_first());
  if (strategy) {
    pieces = saving ? strategy->saved_pieces() : strategy->loaded_pieces();
  } else if (saves_all) {
    const std::vector<NamedTensor> parameters = distinct_parameters(module);
    for (const auto& [name, tensor] : parameters) {
      if (!tensor.is_contiguous()) fail(ErrorCode::kBadInput, "parameter ", name, " is not contiguous; checkpoints need it to be");
      pieces.push_back({"model/" + name, alias_of(tensor.detach(), 0, {tensor.numel()}), tensor.sizes().vec(), 0});
    }
    if (optimizer)
      for (FlatPiece& piece : optimizer_pieces(*optimizer, parameters)) pieces.push_back(std::move(piece));
  }
  if (saves_all)
    for (FlatPiece& buffer : buffer_pieces(trained())) pieces.push_back(std::move(buffer));
  return pieces;
}

std::string Parallel::save(const std::string& folder, int64_t step, torch::optim::Optimizer* optimizer) {
  State& s = *state_;
  const ParameterPlaces places = s.split ? s.split->places() : ParameterPlaces();
  const auto mine = [&] {
    if (s.strategy && optimizer) fail(ErrorCode::kBadInput, "save(): the optimizer is the one that was given to Parallel; give none here");
    return s.pieces(/*saving=*/true, optimizer);
  };
  const auto state = [&] {
    Json aliases = Json::object();
    for (const auto& [alias, name] : places.aliases) aliases[alias] = name;
    return Json{{"step", step},
                {"layout", to_json(s.layout)},
                {"world_size", s.session.size()},
                {"aliases", aliases},
                {"num_passes", s.num_passes}};
  };
  return write_checkpoint(s.session.group(), places, {.folder = folder, .step = step, .mine = mine, .state = state},
                          "cannot save to " + folder);
}

int64_t Parallel::load(const std::string& folder, torch::optim::Optimizer* optimizer) {
  State& s = *state_;
  Group& group = s.session.group();
  at::NoGradGuard no_grad;
  const std::string what = "cannot load from " + folder;
  std::string path;
  together(group, what, [&] {
    if (s.strategy && optimizer) fail(ErrorCode::kBadInput, "load(): the optimizer is the one that was given to Parallel; give none here");
    if (!s.session.is_first()) return;
    std::vector<std::string> skipped;
    if (const auto newest = Checkpoint::open_latest(folder, &skipped)) path = newest->path();
    for (const std::string& line : skipped) log_warning("checkpoint skipped: " + line);
  });
  path = group.all_gather_text(path, "the path of the checkpoint").front();
  if (path.empty()) return -1;
  int64_t step = 0;
  together(group, what, [&] {
    const Checkpoint checkpoint = Checkpoint::open(path, /*verify_data=*/false);  // Rank 0 has verified it.
    step = checkpoint.step();
    // What keys the masks of cohort::Dropout; `cohort train` counts steps.
    s.num_passes = s.num_passes_before = checkpoint.state().value("num_passes", step);
    const ParameterPlaces places = s.split ? s.split->places() : ParameterPlaces();
    std::vector<FlatPiece> pieces = s.pieces(/*saving=*/false, optimizer);
    for (const FlatPiece& piece : pieces) check_piece(checkpoint, places, piece);  // All of them before the first is written.
    for (FlatPiece& piece : pieces) read_piece(checkpoint, places, piece);
    if (optimizer) optimizer_pieces_loaded(*optimizer, pieces, distinct_parameters(s.module));
  });
  if (s.strategy) s.strategy->loaded();
  return step;
}

}  // namespace cohort
