#pragma once
// One rank's side of a running study: trains the trials of the coordinator (study_coordinator.h), alone or in a team.

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
/// Makes a runner for trials of a team. `stop` is called after every step, where the runner supports it; true ends the trial.
using MakeRunner = std::function<std::unique_ptr<study::TrialRunner>(const Group& team, std::function<bool()> stop)>;

/// Used by one thread.
class StudyWorker {
 public:
  /// `link` must be connected to the coordinator.
  StudyWorker(const study::StudySpec& spec, const World& world, WorkerOptions options, MakeRunner make_runner, MessageClient link);
  /// Runs until the coordinator ends the study: 0, or 130 when interrupted. Exceptions of a trial are reported to the coordinator and
  /// thrown. Error(kEnvironment) where the study ended because of another rank, or rank 0 is gone.
  int run();

 private:
  int handle_messages();
  void send(const Json& message);
  void report_failure(int code, const std::string& text);
  std::string wait_for_cause();
  void join_phase(int team_size);
  void run_as_leader();
  void run_as_follower();
  void run_trial(const Json& order);
  int64_t measured(const study::Measurement& measurement);
  bool should_stop();
  void poll_link();
  Json next_message(double timeout_seconds);
  std::string share_order(const std::string& text);
  study::TrialOutcome run_order(const study::TrialOrder& order, const study::TrialWatch& watch);

  const study::StudySpec& spec_;
  const World& world_;
  WorkerOptions options_;
  MakeRunner make_runner_;
  MessageClient link_;
  study::CensorRule rule_;
  std::optional<Group> job_;  ///< All ranks; made when a phase first needs teams.
  Group team_;
  bool in_team_ = false, received_end_ = false;
  std::unique_ptr<study::TrialRunner> runner_;
  bool runner_polls_stop_ = false;      ///< The runner calls should_stop() after each step.
  std::optional<std::string> pending_;  ///< A message received during a trial, to be handled after it.
  // State of the running trial.
  study::Trial trial_;
  study::TrialBound bound_;
  study::ReachedSteps own_;
  bool running_ = false, stopped_short_ = false;
  std::chrono::steady_clock::time_point reported_at_, polled_at_;
};

}  // namespace cohort
