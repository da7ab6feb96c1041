#include "cohort/train/served/server_team.h"

#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/train/async/packed_tensors.h"
#include "cohort/train/served/part_server.h"

namespace cohort {
namespace {

constexpr const char* kName = "the server of rank 0";  // Rank 0 itself comes too, as a worker.

}  // namespace

ServerTeam::ServerTeam(DividedServer& model, std::vector<ServerPlace> places, const std::vector<int>& ranks, const MessageLimits& limits,
                       double timeout_seconds)
    : model_(model), places_(std::move(places)), timeout_seconds_(timeout_seconds) {
  for (size_t i = 0; i < places_.size(); ++i)
    clients_.emplace_back(
        places_[i].endpoint, places_[i].secret,
        MessageClient::Options{
            .name = kName, .server_name = concat("rank ", ranks[i], ", which serves a part of the model,"), .limits = limits});
}

void ServerTeam::begin() {
  for (size_t i = 0; i < clients_.size(); ++i) {
    GradientServer& part = model_.part(i + 1);
    clients_[i].connect(timeout_seconds_);
    const std::vector<FlatPiece> pieces = part.saved_pieces();
    clients_[i].send(
        {.text = Json{{"is", "first"}, {"state", part.state()}}.dump(), .data = packed_text(tensors_of(part.served(), pieces))},
        timeout_seconds_);
  }
}

void ServerTeam::tell(const PartOrder& order) {
  const PeerMessage message{.text = to_json(order).dump()};
  for (size_t i = 0; i < clients_.size(); ++i) {
    try {
      clients_[i].send(message, timeout_seconds_);
    } catch (const Error& error) {
      fail_without(static_cast<int>(i + 1), error.what());
    }
  }
}

void ServerTeam::fail_without(int server, const std::string& why) const {
  const std::string& name = name_of(server);
  const std::string reason = why.starts_with(name) ? why.substr(name.size()) : concat(" is lost: ", why);
  fail(ErrorCode::kEnvironment, name, reason, name_settings("; the training cannot go on without it: go on with --resume"));
}

void ServerTeam::serve(int worker, const Work& work, const StepNumbers& numbers) {
  tell({.what = PartOrder::What::kServe,
        .worker = worker,
        .order = work.order,
        .num_samples = work.ticket.num_samples(),
        .global_samples = work.ticket.global_samples,
        .learning_rate = numbers.learning_rate,
        .clip_norm = numbers.clip_norm});
}

void ServerTeam::apply(const Work& work, const StepNumbers& numbers) {
  tell({.what = PartOrder::What::kApply,
        .order = work.order,
        .learning_rate = numbers.learning_rate,
        .clip_norm = numbers.clip_norm,
        .squares = work.squares});
}

void ServerTeam::forget(int64_t order) { tell({.what = PartOrder::What::kForget, .order = order}); }

void ServerTeam::show(int64_t number) { tell({.what = PartOrder::What::kShow, .order = number}); }

/// One that is gone already has heard it, or will see that this process is.
void ServerTeam::end() {
  const PeerMessage message{.text = to_json(PartOrder{.what = PartOrder::What::kEnd}).dump()};
  for (MessageClient& client : clients_) {
    try {
      if (client.is_connected()) client.send(message, 1);
    } catch (const Error&) {
    }
  }
}

}  // namespace cohort
