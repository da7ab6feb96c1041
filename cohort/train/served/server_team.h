#pragma once
// The further servers of a model that several divide (sync=async:servers=S), as rank 0 tells them what to do: part_server.h.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/train/async/divided_server.h"
#include "cohort/train/served/served_words.h"
#include "cohort/world/messages/message_client.h"

namespace cohort {

/// One thread. A server that is gone is Error(kEnvironment) of the call that notices it.
class ServerTeam {
 public:
  /// `places`: of the servers from 1 on; `ranks`: which they are threads of. Connects later.
  ServerTeam(DividedServer& model, std::vector<ServerPlace> places, const std::vector<int>& ranks, const MessageLimits& limits,
             double timeout_seconds);

  /// Hands each its part of the model over as it is here.
  void begin();
  void serve(int worker, const Work& work, const StepNumbers& numbers);
  void apply(const Work& work, const StepNumbers& numbers);
  void forget(int64_t order);
  /// Each says what it has now: as "shown", with this number.
  void show(int64_t number);
  void end();

  size_t size() const { return clients_.size(); }
  const std::vector<ServerPlace>& places() const { return places_; }
  /// "rank 2, which serves a part of the model,"
  const std::string& name_of(int server) const { return clients_[static_cast<size_t>(server - 1)].server_name(); }
  /// Throws what a server that is gone means.
  [[noreturn]] void fail_without(int server, const std::string& why) const;
  int64_t pull_bytes() const { return model_.pull_bytes() - model_.part(0).pull_bytes(); }
  int64_t push_bytes() const { return model_.push_bytes() - model_.part(0).push_bytes(); }

 private:
  void tell(const PartOrder& order);

  DividedServer& model_;
  std::vector<ServerPlace> places_;
  std::vector<MessageClient> clients_;
  double timeout_seconds_;
};

}  // namespace cohort
