#include "cohort/report/report.h"

#include <cstdio>

#include "cohort/base/fail.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/cli/options/verb.h"
#include "cohort/report/compare/compare_runs.h"

namespace cohort {
namespace {

int run_report(const Arguments& arguments) {
  const std::string out = arguments.option("out", "");
  if (arguments.positional.empty()) fail(ErrorCode::kBadInput, "report: no run given; run cohort report RUN");
  if (arguments.positional.size() > 1) {
    if (out.empty()) fail(ErrorCode::kBadInput, "report: several runs side by side are a page of their own; add --out FILE.html");
    check_writable_file(out);
    check_holds_kind(out, "<!doctype html>", 0, "a page");
    report::write_comparison(arguments.positional, out);
    std::printf("%s\n", out.c_str());
    return 0;
  }
  if (!out.empty())
    fail(ErrorCode::kBadInput, "report: --out is for several runs side by side; the report of one is RUN/report.html, so leave it out");
  std::printf("%s\n", report::write_report(arguments.positional.front()).c_str());
  return 0;
}

}  // namespace

Verb report_verb() {
  return {.name = "report",
          .summary = "Writes RUN/report.html anew from the run's metrics; of several runs a page that lays them side by side.",
          .examples = {"cohort train --model cnn --data fashion-mnist --steps 100 --run runs/x", "cohort report runs/x",
                       "cohort train --model cnn --data fashion-mnist --steps 100 --workers 2 --layout sync=async --run runs/y",
                       "cohort report runs/x runs/y --out runs/both.html"},
          .positional_help = "one run folder, or several",
          .most_words = 1000,
          .options = {{"out", "FILE.html", "Of several runs: where to write"}},
          .run = run_report};
}

}  // namespace cohort
