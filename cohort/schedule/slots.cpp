#include "cohort/schedule/slots.h"

#include <algorithm>
#include <map>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/schedule/generators.h"

namespace cohort {

namespace {

constexpr size_t kComputeTables = 3;  // Forward, backward, weight.
constexpr size_t kTransferTables = 4;

bool goes_forward(ActionKind kind) { return kind == ActionKind::kSendForward || kind == ActionKind::kReceiveForward; }
bool sends(ActionKind kind) { return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward; }
size_t transfer_table(ActionKind kind) { return static_cast<size_t>(kind) - static_cast<size_t>(ActionKind::kSendForward); }

void check_sizes(const Schedule& schedule) {
  const auto check = [&](const char* what, int64_t value, int64_t most) {
    if (value < 1 || value > most)
      fail(ErrorCode::kBadInput, "schedule '", schedule.name, "': ", value, " ", what, ": expected 1 to ", with_commas(most));
  };
  check("ranks", schedule.num_ranks(), kMaxScheduleSize);
  check("stages", schedule.num_stages, kMaxScheduleSize);
  check("micro-batches", schedule.num_micro_batches, kMaxScheduleSize);
  int64_t num_actions = 0;
  for (const auto& rank : schedule.actions) num_actions += static_cast<int64_t>(rank.size());
  // Single missing actions are reported later; this guards against tables out of proportion.
  const int64_t num_pairs = int64_t{schedule.num_stages} * schedule.num_micro_batches;
  if (num_actions < num_pairs)
    fail(ErrorCode::kBadInput, "schedule '", schedule.name, "': ", num_actions, " actions; forward and backward of ", schedule.num_stages,
         " stages x ", schedule.num_micro_batches, " micro-batches are at least ", 2 * num_pairs);
  check("actions", num_actions, kMaxScheduleActions);
  check_edges(schedule.edges, schedule.num_stages, schedule.num_micro_batches);
}

}  // namespace

Slots::Slots(const Schedule& schedule, bool with_transfers) : schedule_(schedule), with_transfers_(with_transfers) {
  check_sizes(schedule);
  consumers_.resize(schedule.num_stages);
  producers_.resize(schedule.num_stages);
  for (const auto& [from, to] : schedule.edges) {
    consumers_[from].push_back(to);
    producers_[to].push_back(from);
  }
  const size_t rows = kComputeTables * schedule.num_stages + kTransferTables * schedule.edges.size();
  locations_.resize(rows * schedule.num_micro_batches);
  fill();
}

void Slots::fill() {
  for (int rank = 0; rank < schedule_.num_ranks(); ++rank)
    for (int position = 0; position < static_cast<int>(schedule_.actions[rank].size()); ++position) {
      const Action& action = schedule_.actions[rank][position];
      const Location here = {rank, position};
      check_action(action, here);
      Location& location = locations_[of(action)];
      if (location.rank >= 0)
        fail(ErrorCode::kBadInput, "schedule '", schedule_.name, "': ", where(here), " is done already by ", where(location),
             "; take one of them out");
      location = here;
    }
}

void Slots::check_action(const Action& action, const Location& location) const {
  const auto refuse = [&](const auto&... parts) {
    fail(ErrorCode::kBadInput, "schedule '", schedule_.name, "': ", where(location), ": ", parts...);
  };
  if (action.stage < 0 || action.stage >= schedule_.num_stages)
    refuse("there is no stage ", action.stage, "; stages are 0 to ", schedule_.num_stages - 1);
  if (action.micro_batch < 0 || action.micro_batch >= schedule_.num_micro_batches)
    refuse("there is no micro-batch ", action.micro_batch, "; micro-batches are 0 to ", schedule_.num_micro_batches - 1);
  if (!is_transfer(action.kind)) return;
  const bool outward = goes_forward(action.kind) == sends(action.kind);  // From the edge's first stage's point of view.
  const std::pair<int, int> edge = outward ? std::pair(action.stage, action.peer) : std::pair(action.peer, action.stage);
  if (!std::binary_search(schedule_.edges.begin(), schedule_.edges.end(), edge))
    refuse("stage ", edge.first, " hands nothing to stage ", edge.second, "; the edges of the schedule do not have this pair");
}

size_t Slots::index(size_t table, int stage, int micro_batch) const {
  return (table * schedule_.num_stages + stage) * schedule_.num_micro_batches + micro_batch;
}

size_t Slots::transfer(const Action& action) const {
  const bool outward = goes_forward(action.kind) == sends(action.kind);
  const std::pair<int, int> edge = outward ? std::pair(action.stage, action.peer) : std::pair(action.peer, action.stage);
  const size_t number = std::lower_bound(schedule_.edges.begin(), schedule_.edges.end(), edge) - schedule_.edges.begin();
  const size_t row = kComputeTables * schedule_.num_stages + transfer_table(action.kind) * schedule_.edges.size() + number;
  return row * schedule_.num_micro_batches + action.micro_batch;
}

size_t Slots::of(const Action& action) const {
  switch (action.kind) {
    case ActionKind::kForward:
      return forward(action.stage, action.micro_batch);
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      return backward(action.stage, action.micro_batch);
    case ActionKind::kBackwardWeight:
      return weight(action.stage, action.micro_batch);
    default:
      return transfer(action);
  }
}

Action Slots::action(size_t slot) const {
  const int micro_batch = static_cast<int>(slot % schedule_.num_micro_batches);
  const size_t row = slot / schedule_.num_micro_batches, num_stages = schedule_.num_stages;
  if (row < kComputeTables * num_stages) {
    const ActionKind kinds[] = {ActionKind::kForward, ActionKind::kBackwardInput, ActionKind::kBackwardWeight};
    return {kinds[row / num_stages], static_cast<int>(row % num_stages), micro_batch};
  }
  const size_t rest = row - kComputeTables * num_stages;
  const auto kind = static_cast<ActionKind>(static_cast<size_t>(ActionKind::kSendForward) + rest / schedule_.edges.size());
  const auto& [from, to] = schedule_.edges[rest % schedule_.edges.size()];
  const bool outward = goes_forward(kind) == sends(kind);
  return {kind, outward ? from : to, micro_batch, outward ? to : from};
}

void Slots::needs(const Action& action, int rank, std::vector<size_t>& slots) const {
  slots.clear();
  const int stage = action.stage, k = action.micro_batch;
  const auto value = [&](size_t made, ActionKind receive, int peer) {
    const bool received = with_transfers_ && locations_[made].rank != rank;
    slots.push_back(received ? transfer({receive, stage, k, peer}) : made);
  };
  switch (action.kind) {
    case ActionKind::kForward:
      for (const int from : producers_[stage]) value(forward(from, k), ActionKind::kReceiveForward, from);
      break;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      slots.push_back(forward(stage, k));
      for (const int to : consumers_[stage]) value(backward(to, k), ActionKind::kReceiveBackward, to);
      break;
    case ActionKind::kBackwardWeight:
      slots.push_back(backward(stage, k));
      break;
    case ActionKind::kSendForward:
      slots.push_back(forward(stage, k));
      break;
    case ActionKind::kSendBackward:
      slots.push_back(backward(stage, k));
      break;
    case ActionKind::kReceiveForward:
      slots.push_back(transfer({ActionKind::kSendForward, action.peer, k, stage}));
      break;
    case ActionKind::kReceiveBackward:
      slots.push_back(transfer({ActionKind::kSendBackward, action.peer, k, stage}));
      break;
  }
}

std::string Slots::where(const Location& location) const {
  return concat("rank ", location.rank, ", action ", location.position, " (",
                action_text(schedule_.actions[location.rank][location.position]), ")");
}

// Where the messages of a schedule go. A value is sent right after it is made and received right before the first action that needs it.
// One pair of ranks has one first-in-first-out channel, so a message that is sent earlier but needed later is received together with the
// later one. That costs no time: it left before the message that is waited for anyway. For the same reason transfers cannot deadlock where
// the compute actions alone do not: whatever a receive waits for was made before something that its rank needs next.
//
// Messages: two (one each way) for each micro-batch and edge whose ends are on different ranks; an edge over several stages (a skip
// connection) is sent straight from its producer to its consumer.

namespace {

struct Channel {
  std::vector<Action> receives;  ///< In the order of the sends.
  size_t num_received = 0;
};

using Channels = std::map<std::pair<int, int>, Channel>;  ///< By (sender, receiver).

/// The actions of `rank` with its sends; notes in `channels` what the others will receive.
std::vector<Action> with_sends(const Schedule& schedule, const Slots& slots, int rank, Channels& channels) {
  std::vector<Action> out;
  for (const Action& action : schedule.actions[rank]) {
    out.push_back(action);
    const int stage = action.stage, k = action.micro_batch;
    const auto send = [&](ActionKind kind, ActionKind receive, int peer, size_t user) {
      const int receiver = slots.location(user).rank;
      if (receiver == rank) return;
      out.push_back({kind, stage, k, peer});
      channels[{rank, receiver}].receives.push_back({receive, peer, k, stage});
    };
    if (action.kind == ActionKind::kForward)
      for (const int to : slots.consumers(stage)) send(ActionKind::kSendForward, ActionKind::kReceiveForward, to, slots.forward(to, k));
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput)
      for (const int from : slots.producers(stage))
        send(ActionKind::kSendBackward, ActionKind::kReceiveBackward, from, slots.backward(from, k));
  }
  return out;
}

/// The rank that makes what `receive` gets.
int sender_of(const Action& receive, const Slots& slots) {
  const bool forward = receive.kind == ActionKind::kReceiveForward;
  return slots.location(forward ? slots.forward(receive.peer, receive.micro_batch) : slots.backward(receive.peer, receive.micro_batch))
      .rank;
}

std::vector<Action> with_receives(const Slots& slots, int rank, const std::vector<Action>& actions, std::vector<bool>& received,
                                  Channels& channels) {
  std::vector<Action> out;
  std::vector<size_t> needs;
  for (const Action& action : actions) {
    slots.needs(action, rank, needs);
    for (const size_t need : needs) {
      const Action receive = slots.action(need);
      if (!is_transfer(receive.kind)) continue;
      Channel& channel = channels.at({sender_of(receive, slots), rank});
      while (!received[need]) {
        const Action& next = channel.receives.at(channel.num_received++);
        received[slots.of(next)] = true;
        out.push_back(next);
      }
    }
    out.push_back(action);
  }
  return out;
}

}  // namespace

void add_transfers(Schedule& schedule) {
  if (has_transfers(schedule)) return;
  const Slots slots(schedule, true);
  for (int stage = 0; stage < schedule.num_stages; ++stage)
    for (int k = 0; k < schedule.num_micro_batches; ++k)
      for (const size_t slot : {slots.forward(stage, k), slots.backward(stage, k)})
        if (slots.location(slot).rank < 0)
          fail(ErrorCode::kBadInput, "schedule '", schedule.name, "': no rank does ", action_text(slots.action(slot)));
  Channels channels;
  std::vector<std::vector<Action>> sending, complete;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) sending.push_back(with_sends(schedule, slots, rank, channels));
  std::vector<bool> received(slots.size());
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) complete.push_back(with_receives(slots, rank, sending[rank], received, channels));
  schedule.actions = std::move(complete);
}

}  // namespace cohort
