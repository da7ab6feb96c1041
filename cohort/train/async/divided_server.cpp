// Every server makes the same pulls and pushes in the same order, each on its tensors (served/part_server.h), so that together they are one
// GradientServer of the whole model, bit by bit: an update of one parameter needs no other's, but for the norm that clips, which the
// worker tells. So all have the same version at every pull, and what a worker takes is a whole one: that is where this differs from Dean et
// al. 2012 (DistBelief, section 4.1), whose shards of the model run apart.
#include "cohort/train/async/divided_server.h"

#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"

namespace cohort {

DividedServer::DividedServer(const torch::nn::Module& module, const GradientServerOptions& options) {
  for (int server = 0; server < options.part.num_servers; ++server) {
    GradientServerOptions of_part = options;
    of_part.part.server = server;
    parts_.push_back(std::make_unique<GradientServer>(module, of_part));
  }
}

template <typename Count>
int64_t DividedServer::sum(const Count& count) const {
  int64_t total = 0;
  for (const auto& part : parts_) total += count(*part);
  return total;
}

int64_t DividedServer::pull_bytes() const {
  return sum([](const GradientServer& part) { return part.pull_bytes(); });
}
int64_t DividedServer::push_bytes() const {
  return sum([](const GradientServer& part) { return part.push_bytes(); });
}
int64_t DividedServer::bytes_in_flight() const {
  return sum([](const GradientServer& part) { return part.bytes_in_flight(); });
}

std::vector<FlatPiece> DividedServer::saved_pieces() {
  std::vector<FlatPiece> pieces;
  for (const auto& part : parts_)
    for (FlatPiece& piece : part->saved_pieces()) pieces.push_back(std::move(piece));
  return pieces;
}

Json DividedServer::state() const {
  Json state = own().state();
  state["parts"] = Json::array();
  for (size_t server = 1; server < parts_.size(); ++server) state["parts"].push_back(parts_[server]->state());
  return state;
}

std::vector<FlatPiece> DividedServer::loaded_pieces(const Json& state, const std::string& where) {
  const Json parts = state.is_object() ? state.value("parts", Json()) : Json();
  if (!state.is_null() && (!parts.is_array() || parts.size() + 1 != parts_.size()))
    fail(ErrorCode::kBadInput, where, ": the state of the update server is not that of ", parts_.size(), " servers");
  std::vector<FlatPiece> pieces;
  for (size_t server = 0; server < parts_.size(); ++server) {
    const Json& its = server == 0 || state.is_null() ? state : parts[server - 1];
    for (FlatPiece& piece : parts_[server]->loaded_pieces(its, where)) pieces.push_back(std::move(piece));
  }
  return pieces;
}

void DividedServer::loaded(const Json& state) {
  for (size_t server = 0; server < parts_.size(); ++server)
    parts_[server]->loaded(server == 0 || state.is_null() ? state : state["parts"][server - 1]);
}

}  // namespace cohort
