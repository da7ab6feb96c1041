#include "cohort/base/setting_name.h"
#include "cohort/cli/options/verb.h"
#include "cohort/cli/start/wait_asleep.h"
#include "cohort/cohort.h"

namespace cohort {

int run_cli(int argc, char** argv) {
  wait_asleep_where_cores_are_taken(argc, argv);
  settings_are_options();
  return run_verbs({train_verb(), evaluate_verb(), predict_verb(), sample_verb(), compress_verb(), verify_verb(), launch_verb(),
                    join_verb(), checkpoint_verb(), report_verb(), simulate_verb(), plan_verb(), study_verb(), vocabulary_verb(),
                    doctor_verb(), completion_verb(), benchmarks_verb()},
                   argc, argv);
}

int run_verb(const Verb& verb, int argc, char** argv) {
  settings_are_options();
  std::string name = verb.name;
  std::vector<char*> words = {argv[0], name.data()};
  words.insert(words.end(), argv + 1, argv + argc);
  words.push_back(nullptr);
  return run_verbs({verb}, argc + 1, words.data());
}

}  // namespace cohort
