// Where the messages of a schedule go. A value is sent right after it is made and received right before the first action that needs it.
// One pair of ranks has one first-in-first-out channel, so a message that is sent earlier but needed later is received together with the
// later one. That costs no time: it left before the message that is waited for anyway. For the same reason transfers cannot deadlock where
// the compute actions alone do not: whatever a receive waits for was made before something that its rank needs next.
//
// Messages: two (one each way) for each micro-batch and edge whose ends are on different ranks; an edge over several stages (a skip
// connection) is sent straight from its producer to its consumer.
#include <algorithm>
#include <map>

#include "cohort/base/fail.h"
#include "cohort/schedule/schedule.h"
#include "cohort/schedule/slots.h"

namespace cohort {
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
      const int receiver = slots.place(user).rank;
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
  return slots.place(forward ? slots.forward(receive.peer, receive.micro_batch) : slots.backward(receive.peer, receive.micro_batch)).rank;
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
        if (slots.place(slot).rank < 0)
          fail(ErrorCode::kBadInput, "schedule '", schedule.name, "': no rank does ", action_text(slots.action(slot)));
  Channels channels;
  std::vector<std::vector<Action>> sending, complete;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) sending.push_back(with_sends(schedule, slots, rank, channels));
  std::vector<bool> received(slots.size());
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) complete.push_back(with_receives(slots, rank, sending[rank], received, channels));
  schedule.actions = std::move(complete);
}

}  // namespace cohort
