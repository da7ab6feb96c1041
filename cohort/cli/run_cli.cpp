#include "cohort/cli/verb.h"
#include "cohort/cohort.h"

namespace cohort {

int run_cli(int argc, char** argv) {
  static const std::vector<Verb> verbs = {train_verb(), verify_verb(),   launch_verb(), checkpoint_verb(), report_verb(),
                                          bench_verb(), simulate_verb(), study_verb(),  doctor_verb()};
  return run_verbs(verbs, argc, argv);
}

}  // namespace cohort
