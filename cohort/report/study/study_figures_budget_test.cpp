#include <doctest/doctest.h>

#include <cmath>

#include "cohort/report/study/study_figures.h"
#include "tests/support/reported_study.h"

namespace cohort::report {
namespace {

using study::GoalSpec;
using study::StudyData;

const GoalSpec kGoal{study::kValError, 0.12};

TEST_CASE("figure 11: only batch sizes whose budget reaches so far, censored ones hollow") {
  MadeUp what;
  const StudyData study = made_up_study(what);
  const Figure figure = figure_of("fig11_budgets", study, kGoal);
  REQUIRE(figure.panels.size() == 2);
  for (const StudyChart& chart : figure.panels) {
    REQUIRE(chart.series.size() >= 3);
    for (const PlotSeries& series : chart.series) {
      for (const Mark& mark : series.marks) CHECK_FALSE(mark.hollow);
    }
  }
  const PlotSeries* longest = &figure.panels[0].series.back();
  CHECK(longest->marks.size() < 8);  // Large batches have smaller budgets of steps.
  CHECK(figure.panels[0].note.find("left out") != std::string::npos);
  what.is_censored = true;
  const Figure censored = figure_of("fig11_budgets", made_up_study(what), kGoal);
  size_t num_hollow = 0;
  for (const PlotSeries& series : censored.panels[0].series) {
    for (const Mark& mark : series.marks) {
      num_hollow += mark.hollow;
      CHECK(mark.hollow == (field(mark, "trials stopped before") != "0"));
    }
  }
  CHECK(num_hollow > 0);
  CHECK(censored.panels[0].note.find("not valid") != std::string::npos);
  const Figure asked = figure_of("fig11_budgets", study, kGoal, {.steps = {40, 70}, .epochs = {1.5}});
  REQUIRE(asked.panels.size() == 2);
  REQUIRE(asked.panels[0].series.size() == 2);
  CHECK(asked.panels[0].series[1].name == "70 steps");
  REQUIRE(asked.panels[1].series.size() == 1);
  CHECK(asked.panels[1].series[0].name == "1.5 epochs");
  StudyData unknown = study;
  unknown.num_train_samples = 0;
  CHECK(figure_of("fig11_budgets", unknown, kGoal).panels.size() == 1);
}

TEST_CASE("figure 11: the test split at the best validation, only where it was measured") {
  StudyData study = made_up_study(MadeUp{});
  for (study::BatchStudy& batch : study.batches)
    for (Trial& trial : batch.trials) {
      double least = 2;
      for (study::Measurement& one : trial.measurements) {
        if (!(one.values[study::kValError] < least)) continue;
        least = one.values[study::kValError];
        one.values[study::kTestError] = least + 0.25;
      }
    }
  const Figure figure = figure_of("fig11_budgets", study, kGoal);
  REQUIRE(figure.panels.size() == 4);
  CHECK(figure.panels[0].id == "fig11-steps");
  CHECK(figure.panels[2].id == "fig11-test-steps");
  CHECK(figure.panels[3].title == "test_error at the best val_error within a number of epochs");
  for (const size_t panel : {0, 1}) {
    REQUIRE(figure.panels[panel].series.size() == figure.panels[panel + 2].series.size());
    for (size_t i = 0; i < figure.panels[panel].series.size(); ++i) {
      const auto &best = figure.panels[panel].series[i].marks, &tested = figure.panels[panel + 2].series[i].marks;
      REQUIRE(best.size() == tested.size());
      for (size_t mark = 0; mark < best.size(); ++mark) {
        CHECK(tested[mark].y == best[mark].y + 0.25);
        CHECK(field(tested[mark], "trial") == field(best[mark], "trial"));
        CHECK(field(tested[mark], "val_error") == field(best[mark], "val_error"));
      }
    }
  }
  // One batch size of an archive without it: left out of these panels, which say so.
  for (Trial& trial : study.batches[1].trials)
    for (study::Measurement& one : trial.measurements) one.values[study::kTestError] = std::nan("");
  const Figure partly = figure_of("fig11_budgets", study, kGoal);
  REQUIRE(partly.panels.size() == 4);
  CHECK(partly.panels[2].note.find("the test split was not measured there") != std::string::npos);
  CHECK(partly.panels[0].note.find("not measured") == std::string::npos);
}

}  // namespace
}  // namespace cohort::report
