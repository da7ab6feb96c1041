#include "cohort/base/setting_name.h"
#include "cohort/cli/options/verb.h"
#include "cohort/cli/start/wait_asleep.h"
#include "cohort/cohort.h"

namespace cohort {

int run_cli_with(const std::vector<Verb>& more, int argc, char** argv) {
  wait_asleep_where_cores_are_taken(argc, argv);
  settings_are_options();
  std::vector<Verb> verbs = {train_verb(),  evaluate_verb(),   predict_verb(),    sample_verb(),    compress_verb(), verify_verb(),
                             launch_verb(), join_verb(),       checkpoint_verb(), report_verb(),    simulate_verb(), plan_verb(),
                             study_verb(),  vocabulary_verb(), doctor_verb(),     completion_verb()};
  verbs.insert(verbs.end(), more.begin(), more.end());
  return run_verbs(verbs, argc, argv);
}

int run_cli(int argc, char** argv) { return run_cli_with({}, argc, argv); }

}  // namespace cohort
