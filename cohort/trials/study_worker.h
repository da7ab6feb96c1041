#pragma once
// One rank's side of a running study: trains what the coordinator (study_coordinator.h) says, alone or in a team.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cohort/base/text/json_fwd.h"
#include "cohort/comm/group.h"
#include "cohort/study/search/batch_queue.h"
#include "cohort/study/search/trial_runner.h"
#include "cohort/world/messages/message_client.h"
#include "cohort/world/world.h"

namespace cohort {

struct WorkerOptions {
  std::string backend = "auto";
  double timeout = 60;
};
/// A runner for trials of this team. `stop` is asked after every step, where the runner can: true ends the trial.
using MakeRunner = std::function<std::unique_ptr<study::TrialRunner>(const Group& team, std::function<bool()> stop)>;

/// One thread.
class StudyWorker {
 public:
  /// `link` is connected to the coordinator.
  StudyWorker(const study::StudySpec& spec, const World& world, WorkerOptions options, MakeRunner make_runner, MessageClient link);
  /// Until the coordinator says that it is the end: 0, or 130 when interrupted. What a trial throws is told to the coordinator and thrown.
  /// Error(kEnvironment) where the study ended because of another rank, or rank 0 is gone.
  int run();

 private:
  int obey();
  void tell(const Json& message);
  void tell_failure(int code, const std::string& text);
  std::string last_word();
  void join_phase(int team_size);
  void lead();
  void follow();
  void run_trial(const Json& order);
  int64_t measured(const study::Measurement& measurement);
  bool stop_wished();
  void look_at_link();
  Json next_message(double timeout_seconds);
  std::string tell_team(const std::string& text);
  study::TrialOutcome run_order(const study::TrialOrder& order, const study::TrialWatch& watch);

  const study::StudySpec& spec_;
  const World& world_;
  WorkerOptions options_;
  MakeRunner make_runner_;
  MessageClient link_;
  study::CensorRule rule_;
  std::optional<Group> job_;  ///< All ranks; made when a phase first needs teams.
  Group team_;
  bool in_team_ = false, heard_end_ = false;
  std::unique_ptr<study::TrialRunner> runner_;
  bool asks_stop_ = false;              ///< The runner asks after each step whether it is to stop.
  std::optional<std::string> pending_;  ///< Heard during a trial, to be obeyed after it.
  // Of the running trial.
  study::Trial trial_;
  study::TrialBound bound_;
  study::ReachedSteps own_;
  bool running_ = false, stopped_short_ = false;
  std::chrono::steady_clock::time_point said_at_, looked_at_;
};

}  // namespace cohort
