#include "cohort/report/report.h"

#include <cstdio>

#include "cohort/base/fail.h"
#include "cohort/cli/verb.h"

namespace cohort {

Verb report_verb() {
  return {.name = "report",
          .summary = "Writes RUN/report.html anew from the run's metrics.",
          .examples = {"cohort train --model cnn --data fashion-mnist --steps 100 --run runs/x", "cohort report runs/x"},
          .positional_help = "run folder",
          .most_words = 1,
          .run = [](const Arguments& arguments) {
            if (arguments.positional.size() != 1) fail(ErrorCode::kBadInput, "report: give one run folder");
            std::printf("%s\n", report::write_report(arguments.positional.front()).c_str());
            return 0;
          }};
}

}  // namespace cohort
