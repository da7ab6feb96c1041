#include "cohort/schedule/scheduler.h"

#include <algorithm>
#include <map>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/schedule/slots.h"

namespace cohort {

std::vector<std::pair<int, int>> StageGraph::stage_edges() const {
  std::vector<std::pair<int, int>> pairs;
  for (const StageEdge& edge : edges) pairs.emplace_back(edge.from, edge.to);
  return pairs;
}

StageGraph cut_layers(const std::vector<std::pair<int, int>>& layer_edges, const std::vector<std::pair<int, int>>& tied,
                      std::vector<int> stage_of, const std::function<std::string(int layer)>& name_of) {
  StageGraph cut;
  cut.stage_of = std::move(stage_of);
  for (size_t layer = 0; layer < cut.stage_of.size(); ++layer)
    if (cut.stage_of[layer] < 0)
      fail(ErrorCode::kBadInput, "layer '", name_of(static_cast<int>(layer)), "' is in stage ", cut.stage_of[layer],
           "; stages count from 0");
  const int num_stages = cut.stage_of.empty() ? 0 : 1 + *std::max_element(cut.stage_of.begin(), cut.stage_of.end());
  cut.layers.resize(static_cast<size_t>(num_stages));
  for (size_t layer = 0; layer < cut.stage_of.size(); ++layer)
    cut.layers[static_cast<size_t>(cut.stage_of[layer])].push_back(static_cast<int>(layer));
  for (int stage = 0; stage < num_stages; ++stage)
    if (cut.layers[static_cast<size_t>(stage)].empty()) fail(ErrorCode::kBadInput, "stages: stage ", stage, " has no layer");
  std::map<std::pair<int, int>, std::set<int>> values;
  for (const auto& [source, reader] : layer_edges) {
    if (source < 0) continue;
    const int from = cut.stage_of[static_cast<size_t>(source)], to = cut.stage_of[static_cast<size_t>(reader)];
    if (from > to)
      fail(ErrorCode::kBadInput, "stages: layer '", name_of(reader), "' of stage ", to, " reads layer '", name_of(source),
           "' of the later stage ", from, "; number the stages so that values flow from lower to higher ones");
    if (from != to) values[{from, to}].insert(source);
  }
  for (const auto& owner_and_user : tied) values[owner_and_user];
  for (const auto& [ends, crossing] : values) cut.edges.push_back({ends.first, ends.second, {crossing.begin(), crossing.end()}});
  return cut;
}

bool shares_weights_on_a_worker(const std::vector<std::pair<int, int>>& tied, const StageAssignment& stages) {
  return std::any_of(tied.begin(), tied.end(), [&](const std::pair<int, int>& pair) {
    const int owner = stages.stage_of[static_cast<size_t>(pair.first)], user = stages.stage_of[static_cast<size_t>(pair.second)];
    return owner != user && stages.worker_of_stage[static_cast<size_t>(owner)] == stages.worker_of_stage[static_cast<size_t>(user)];
  });
}

std::vector<int> stage_of_layers(const std::vector<int>& first_layers, size_t num_layers) {
  std::vector<int> stage_of(num_layers);
  for (size_t layer = 0; layer < num_layers; ++layer)
    stage_of[layer] =
        static_cast<int>(std::upper_bound(first_layers.begin(), first_layers.end(), static_cast<int>(layer)) - first_layers.begin()) - 1;
  return stage_of;
}

Scheduler::Scheduler(const Layout& layout, std::vector<std::pair<int, int>> edges, std::vector<std::vector<int>> ranks_of_stage,
                     const StageSeconds& seconds)
    : name_(layout.schedule), num_workers_(layout.pp), edges_(std::move(edges)), ranks_of_stage_(std::move(ranks_of_stage)) {
  if (name_.ends_with(".json")) file_ = read_schedule_file(name_);
  else by_name_ = is_placed_as_named();
  if (name_.starts_with("zb") && !seconds.empty())
    costs_ = std::make_shared<StageCosts>(StageCosts{seconds.forward, seconds.backward_input, seconds.backward_weight});
}

Schedule Scheduler::operator()(int num_micro_batches) const {
  if (file_.num_micro_batches == num_micro_batches && num_micro_batches > 0) return file_;
  if (by_name_)
    return make_schedule(name_,
                         {.num_ranks = num_workers_, .num_micro_batches = num_micro_batches, .edges = edges_, .costs = costs_.get()});
  // Also for the last batch of an epoch, which may have fewer micro-batches than a file's table.
  return make_graph_schedule(edges_, ranks_of_stage_, num_micro_batches, name_.starts_with("zb"), costs_.get());
}

bool Scheduler::is_placed_as_named() const {
  if (num_stages_of(name_, num_workers_) != static_cast<int>(ranks_of_stage_.size())) return false;
  const auto probe = ranks_of_stages(make_schedule(name_, {.num_ranks = num_workers_, .num_micro_batches = 1, .edges = edges_}));
  for (size_t stage = 0; stage < probe.size(); ++stage)
    if (ranks_of_stage_[stage] != std::vector<int>{probe[stage][0]}) return false;
  return true;
}

Schedule schedule_of(const Layout& layout, const StageGraph& graph, const std::vector<int>& worker_of_stage, const StageSeconds& seconds,
                     int num_micro_batches) {
  std::vector<std::vector<int>> ranks_of_worker, ranks_of_stage;
  int next = 0;
  for (const int degree : layout.data_degrees()) {
    ranks_of_worker.emplace_back();
    for (int replica = 0; replica < (layout.is_even() ? 1 : degree); ++replica) ranks_of_worker.back().push_back(next++);
  }
  for (const int worker : worker_of_stage) ranks_of_stage.push_back(ranks_of_worker.at(static_cast<size_t>(worker)));
  Schedule schedule = Scheduler(layout, graph.stage_edges(), std::move(ranks_of_stage), seconds)(num_micro_batches);
  schedule.edges = graph.stage_edges();
  return schedule;
}

namespace {

class Checker {
 public:
  explicit Checker(const Schedule& schedule) : schedule_(schedule), slots_(schedule, has_transfers(schedule)) {}

  void check() const {
    check_once();
    for_each([&](const Action& action, const Slots::Location& here) { check_needs(action, here); });
    check_channels();
    check_progress();
  }

  ScheduleFacts facts() const;

 private:
  template <typename... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(ErrorCode::kBadInput, "schedule '", schedule_.name, "': ", parts...);
  }

  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank)
      for (int position = 0; position < static_cast<int>(schedule_.actions[rank].size()); ++position)
        visit(schedule_.actions[rank][position], Slots::Location{rank, position});
  }

  /// Every (stage, micro-batch) has a forward and a backward, whole or in two parts. check_needs() ensures that they are on one rank.
  void check_once() const {
    for (int stage = 0; stage < schedule_.num_stages; ++stage)
      for (int k = 0; k < schedule_.num_micro_batches; ++k) check_parts(stage, k);
  }

  void check_parts(int stage, int k) const {
    const Slots::Location forward = slots_.location(slots_.forward(stage, k)), backward = slots_.location(slots_.backward(stage, k)),
                          weight = slots_.location(slots_.weight(stage, k));
    const std::string what = concat("stage ", stage, ", micro-batch ", k);
    for (const Slots::Location& other : {backward, weight})
      if (forward.rank < 0 && other.rank >= 0) refuse(slots_.where(other), ": no rank does the forward of ", what);
    if (forward.rank < 0) refuse("no rank does anything for ", what);
    if (backward.rank < 0) refuse(slots_.where(forward), ": no rank does the backward of ", what);
    const bool whole = schedule_.actions[backward.rank][backward.position].kind == ActionKind::kBackward;
    if (whole && weight.rank >= 0) refuse(slots_.where(weight), ": ", slots_.where(backward), " does this part already");
    if (!whole && weight.rank < 0) refuse(slots_.where(backward), ": no rank does the weight part of this backward");
  }

  /// Requirements on the same rank precede the action.
  void check_needs(const Action& action, const Slots::Location& here) const {
    std::vector<size_t> needs;
    slots_.needs(action, here.rank, needs);
    for (const size_t need : needs) {
      const Slots::Location location = slots_.location(need);
      if (location.rank < 0) refuse(slots_.where(here), " needs ", action_text(slots_.action(need)), ", which no rank does");
      if (is_remote(action, need)) {
        if (location.rank == here.rank) refuse(slots_.where(here), ": what it gets is sent by its own rank, by ", slots_.where(location));
        continue;
      }
      if (location.rank != here.rank) refuse(slots_.where(here), " needs on its own rank what is done by ", slots_.where(location));
      if (location.position > here.position) refuse(slots_.where(here), " comes before what it needs: ", slots_.where(location));
    }
    check_useful(action, here);
  }

  /// Receives wait for another rank's send; without transfers, actions wait for those of other stages.
  bool is_remote(const Action& action, size_t need) const {
    if (action.kind == ActionKind::kReceiveForward || action.kind == ActionKind::kReceiveBackward) return true;
    const Action needed = slots_.action(need);
    return !is_transfer(needed.kind) && needed.stage != action.stage &&
           slots_.location(need).rank != slots_.location(slots_.of(action)).rank;
  }

  /// Every message is received by the rank that uses it.
  void check_useful(const Action& action, const Slots::Location& here) const {
    if (!is_transfer(action.kind)) return;
    const int k = action.micro_batch;
    size_t mate = 0, user = 0;
    switch (action.kind) {
      case ActionKind::kSendForward:
        mate = slots_.of({ActionKind::kReceiveForward, action.peer, k, action.stage});
        break;
      case ActionKind::kSendBackward:
        mate = slots_.of({ActionKind::kReceiveBackward, action.peer, k, action.stage});
        break;
      case ActionKind::kReceiveForward:
        user = slots_.forward(action.stage, k);
        break;
      default:
        user = slots_.backward(action.stage, k);
        break;
    }
    if (action.kind == ActionKind::kSendForward || action.kind == ActionKind::kSendBackward) {
      if (slots_.location(mate).rank < 0) refuse(slots_.where(here), ": no rank receives it (", action_text(slots_.action(mate)), ")");
    } else if (slots_.location(user).rank != here.rank) {
      refuse(slots_.where(here), " is not on the rank that uses it, by ", slots_.where(slots_.location(user)));
    }
  }

  /// Messages between two ranks are received in the order in which they are sent.
  void check_channels() const {
    std::map<std::pair<int, int>, std::pair<int, Slots::Location>> last;  // By (sender, receiver): position of the last send, its receive.
    std::vector<size_t> needs;
    for_each([&](const Action& action, const Slots::Location& here) {
      if (action.kind != ActionKind::kReceiveForward && action.kind != ActionKind::kReceiveBackward) return;
      slots_.needs(action, here.rank, needs);
      const Slots::Location sent = slots_.location(needs.front());
      const auto [entry, is_new] = last.try_emplace({sent.rank, here.rank}, sent.position, here);
      if (!is_new && entry->second.first > sent.position)
        refuse(slots_.where(here), " receives what ", slots_.where(sent), " sent before the message of ",
               slots_.where(entry->second.second), ": messages between two ranks are received in the order in which they are sent");
      entry->second = {sent.position, here};
    });
  }

  /// Simulates all ranks until all are done or none moves.
  void check_progress() const {
    std::vector<bool> done(slots_.size());
    std::vector<int> next(schedule_.num_ranks(), 0);
    std::vector<size_t> needs;
    const auto blocking = [&](int rank) -> const size_t* {
      slots_.needs(schedule_.actions[rank][next[rank]], rank, needs);
      const auto found = std::find_if(needs.begin(), needs.end(), [&](size_t need) { return !done[need]; });
      return found == needs.end() ? nullptr : &*found;
    };
    const auto finished = [&](int rank) { return next[rank] == static_cast<int>(schedule_.actions[rank].size()); };
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < schedule_.num_ranks(); ++rank)
        while (!finished(rank) && blocking(rank) == nullptr) {
          done[slots_.of(schedule_.actions[rank][next[rank]++])] = true;
          moved = true;
        }
    }
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
      if (finished(rank)) continue;
      const Slots::Location awaited = slots_.location(*blocking(rank));
      refuse("deadlock: ", slots_.where({rank, next[rank]}), " waits for ", slots_.where(awaited), ", and rank ", awaited.rank,
             " does not get past ", slots_.where({awaited.rank, next[awaited.rank]}));
    }
  }

  const Schedule& schedule_;
  const Slots slots_;
};

ScheduleFacts Checker::facts() const {
  ScheduleFacts facts;
  const auto ends_stash = [&](const Action& action) {
    return action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight;
  };
  for (const std::vector<Action>& rank : schedule_.actions) {
    int stash = 0, input_stash = 0, peak = 0, input_peak = 0;
    for (const Action& action : rank) {
      if (action.kind == ActionKind::kForward) ++stash, ++input_stash;
      peak = std::max(peak, stash);
      input_peak = std::max(input_peak, input_stash);
      stash -= ends_stash(action);
      input_stash -= action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput;
    }
    facts.peak_stash.push_back(peak);
    facts.peak_input_stash.push_back(input_peak);
  }
  // As add_transfers() inserts them: both directions of each edge between ranks.
  for (const auto& [from, to] : schedule_.edges)
    for (int k = 0; k < schedule_.num_micro_batches; ++k)
      if (slots_.location(slots_.forward(from, k)).rank != slots_.location(slots_.forward(to, k)).rank) facts.num_messages += 2;
  return facts;
}

}  // namespace

ScheduleFacts check_schedule(const Schedule& schedule) {
  const Checker checker(schedule);
  checker.check();
  return checker.facts();
}

}  // namespace cohort
