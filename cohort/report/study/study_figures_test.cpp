#include "cohort/report/study/study_figures.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tests/support/reported_study.h"

namespace cohort::report {
namespace {

using study::GoalSpec;
using study::StudyData;

const GoalSpec kGoal{study::kValError, 0.12};

size_t num_marks(const Figure& figure) {
  size_t number = 0;
  for (const StudyChart& chart : figure.panels) {
    for (const PlotSeries& series : chart.series) {
      if (series.kind == PlotSeries::Kind::kMarks || series.kind == PlotSeries::Kind::kJoined) number += series.marks.size();
    }
  }
  return number;
}

const PlotSeries* find_series(const StudyChart& chart, const std::string& name) {
  for (const PlotSeries& series : chart.series) {
    if (series.name == name) return &series;
  }
  return nullptr;
}

study::Analysis analysis_of(const StudyData& study) { return study::analyse(study, kGoal, {.num_resamples = 20}); }

TEST_CASE("figure 1: a point a batch size with its trial, the ideal line of slope -1, fits") {
  const StudyData study = made_up_study();
  const study::Analysis analysis = analysis_of(study);
  const Figure figure = figure_of("fig1_steps", study, analysis);
  REQUIRE(figure.panels.size() == 1);
  const StudyChart& chart = figure.panels[0];
  REQUIRE(num_marks(figure) == 8);
  for (size_t i = 0; i < 8; ++i) {
    const Mark& mark = chart.series[0].marks[i];
    CHECK(mark.x == study.batches[i].batch_size);
    CHECK(mark.y == *analysis.steps[i].steps);
    CHECK(field(mark, "trial") == std::to_string(analysis.steps[i].trial_id));
    CHECK_FALSE(field(mark, "learning_rate").empty());
    CHECK_FALSE(mark.hollow);
  }
  const PlotSeries* ideal = find_series(chart, "ideal: twice the batch, half the steps");
  REQUIRE(ideal != nullptr);
  for (const Mark& mark : ideal->marks) CHECK(mark.x * mark.y == doctest::Approx(8 * chart.series[0].marks[0].y));
  REQUIRE(find_series(chart, "hyperbola") != nullptr);
  CHECK(find_series(chart, "hyperbola")->marks.front().y == doctest::Approx(analysis.fits[0].steps_at(8)));
  CHECK(find_series(chart, "knee") != nullptr);
}

TEST_CASE("figure 1: batch sizes that never got there have no point, and a sentence says so") {
  StudyData study = made_up_study();
  for (study::Trial& trial : study.batches[7].trials) trial.measurements.resize(1);
  const Figure figure = figure_of("fig1_steps", study, analysis_of(study));
  CHECK(num_marks(figure) == 7);
  CHECK(figure.panels[0].note == "No trial reached the goal at batch size 1,024: it has no point.");
  const Figure nothing = figure_of("fig1_steps", study, study::analyse(study, {study::kValError, 1e-6}, {.num_resamples = 5}));
  CHECK(num_marks(nothing) == 0);
  CHECK(nothing.panels[0].note.find("No trial of any batch size") == 0);
}

TEST_CASE("figure 2: several goals; harder ones need more steps; censored trials make points hollow") {
  const StudyData study = made_up_study();
  const std::vector<GoalSpec> goals = several_goals(study, kGoal);
  REQUIRE(goals.size() >= 3);
  CHECK(goals.size() <= 6);
  CHECK(std::any_of(goals.begin(), goals.end(), [](const GoalSpec& goal) { return goal.value == kGoal.value; }));
  for (size_t i = 1; i < goals.size(); ++i) CHECK(goals[i].value < goals[i - 1].value);
  const Figure figure = figure_of("fig2_goals", study, kGoal);
  REQUIRE(figure.panels.size() == 1);
  const auto& series = figure.panels[0].series;
  for (size_t i = 1; i < series.size(); ++i) CHECK(series[i].marks.front().y >= series[i - 1].marks.front().y);
  CHECK(figure.panels[0].note.empty());
  MadeUp what;
  what.is_censored = true;
  const StudyData censored = made_up_study(what);
  StudyData harder = censored;
  harder.goals.push_back({study::kValError, 0.1195});
  const Figure hollow = figure_of("fig2_goals", harder, kGoal);
  for (const PlotSeries& one : hollow.panels[0].series) {
    for (const Mark& mark : one.marks) CHECK((!mark.hollow || one.name != kGoal.text()));  // The goal itself is always proven.
  }
}

TEST_CASE("figures 3 to 6: studies are grouped by the one thing in which they differ") {
  MadeUp what;
  const StudyData base = made_up_study(what);
  what.model = "cnn";
  const StudyData model = made_up_study(what);
  what = {};
  what.optimizer = "sgd";
  const StudyData optimizer = made_up_study(what);
  what = {};
  what.dataset = "mnist";
  const StudyData dataset = made_up_study(what);
  StudyData size = base;
  size.num_train_samples = 1000;
  const auto ids = [](const std::vector<Figure>& figures) {
    std::vector<std::string> out;
    for (const Figure& figure : figures) out.push_back(figure.id);
    return out;
  };
  CHECK(ids(figures_of_studies({{&base, "a"}}, {})).empty());
  CHECK(ids(figures_of_studies({{&base, "a"}, {&model, "b"}}, {})) == std::vector<std::string>{"fig3_models"});
  CHECK(ids(figures_of_studies({{&base, "a"}, {&optimizer, "b"}}, {})) == std::vector<std::string>{"fig4_optimizers"});
  CHECK(ids(figures_of_studies({{&base, "a"}, {&dataset, "b"}}, {})) == std::vector<std::string>{"fig5_datasets"});
  CHECK(ids(figures_of_studies({{&base, "a"}, {&size, "b"}}, {})) == std::vector<std::string>{"fig6_data_sizes"});
  CHECK(ids(figures_of_studies({{&base, "a"}, {&base, "b"}}, {})) == std::vector<std::string>{"fig1_repeats"});
  // A part of a data set has a name of its own in the paper's archive.
  StudyData part = size, halves = base;
  part.dataset += "_1000", halves.dataset += "_half_classes", halves.num_train_samples = 0;
  const std::vector<Figure> sizes = figures_of_studies({{&base, "a"}, {&part, "b"}, {&halves, "c"}}, {});
  const auto figure6 = std::find_if(sizes.begin(), sizes.end(), [](const Figure& figure) { return figure.id == "fig6_data_sizes"; });
  REQUIRE(figure6 != sizes.end());
  CHECK(figure6->panels[0].series.size() == 3);
  CHECK(find_series(figure6->panels[0], "1,000 samples") != nullptr);
  CHECK(find_series(figure6->panels[0], "half classes") != nullptr);
  CHECK(figure6->panels[0].title.starts_with(base.dataset + ", "));
  CHECK(ids(figures_of_studies({{&model, "a"}, {&optimizer, "b"}}, {})) == std::vector<std::string>{"fig3_studies"});
  CHECK(ids(figures_of_studies({{&base, "a"}, {&model, "b"}, {&optimizer, "c"}}, {})) ==
        std::vector<std::string>{"fig3_models", "fig4_optimizers"});
}

TEST_CASE("figures 3 to 6: one that differs from the others in several things is seen beside them all") {
  MadeUp what;
  const StudyData first = made_up_study(what);
  StudyData smaller = first;
  smaller.num_train_samples = 1000;
  what.model = "cnn";
  what.dataset = "mnist";
  const StudyData other = made_up_study(what);
  const std::vector<Figure> figures = figures_of_studies({{&first, "a"}, {&smaller, "b"}, {&other, "c"}}, {});
  REQUIRE(figures.size() == 2);
  CHECK(figures[0].id == "fig6_data_sizes");
  CHECK(figures[1].id == "fig3_studies");
  REQUIRE(figures[1].panels.size() == 2);
  CHECK(figures[1].panels[0].series.size() == 3);
  CHECK(find_series(figures[1].panels[0], "mnist, cnn, momentum, val_error<0.12") != nullptr);
  // Also one whose curve a group could not show, for it never reaches the group's goal.
  StudyData slow = first;
  slow.model = "slow";
  slow.goals = {{study::kValError, 0.3}};
  for (study::BatchStudy& batch : slow.batches) {
    for (study::Trial& trial : batch.trials)
      std::erase_if(trial.measurements, [](const auto& one) { return one.values[study::kValError] < 0.2; });
  }
  const std::vector<Figure> with_slow = figures_of_studies({{&first, "a"}, {&smaller, "b"}, {&slow, "c"}}, {});
  REQUIRE(with_slow.size() == 2);
  CHECK(find_series(with_slow[1].panels[0], "fashion-mnist, slow, momentum, val_error<0.3") != nullptr);
}

TEST_CASE("figures 3 to 6: a group answers the first question that all of it have") {
  StudyData first = made_up_study(MadeUp{}), other = first;
  first.goals = {{study::kValError, 0.1}, {study::kValError, 0.15}, {study::kValError, 0.2}};
  other.model = "cnn";
  other.goals = {{study::kValError, 0.2}, {study::kValError, 0.15}};
  CHECK(figures_of_studies({{&first, "a"}, {&other, "b"}}, {})[0].panels[0].title.ends_with("val_error<0.15"));
  other.goals = {{study::kValError, 0.3}};
  CHECK(figures_of_studies({{&first, "a"}, {&other, "b"}}, {})[0].panels[0].title.ends_with("val_error<0.1"));
}

TEST_CASE("figures 3 to 6: normalised to the smallest batch size that all have") {
  MadeUp what;
  const StudyData first = made_up_study(what);
  what.model = "cnn";
  StudyData second = made_up_study(what);
  second.batches.erase(second.batches.begin(), second.batches.begin() + 2);
  const std::vector<Figure> figures = figures_of_studies({{&first, "a"}, {&second, "b"}}, kGoal);
  REQUIRE(figures.size() == 1);
  REQUIRE(figures[0].panels.size() == 2);
  CHECK(num_marks(figures[0]) == 2 * (8 + 6));
  CHECK(figures[0].panels[1].title == "Relative to batch size 32");
  for (const char* name : {"fc-64x3", "cnn"}) {
    const PlotSeries* series = find_series(figures[0].panels[1], name);
    REQUIRE(series != nullptr);
    const auto at = std::find_if(series->marks.begin(), series->marks.end(), [](const Mark& mark) { return mark.x == 32; });
    REQUIRE(at != series->marks.end());
    CHECK(at->y == 1);
  }
}

TEST_CASE("figure 7: only where label smoothing was searched, one line a value") {
  MadeUp what;
  CHECK(figure_of("fig7_label_smoothing", made_up_study(what), kGoal).panels.empty());
  what.has_smoothing = true;
  const StudyData study = made_up_study(what);
  const Figure figure = figure_of("fig7_label_smoothing", study, kGoal);
  REQUIRE(figure.panels.size() == 2);
  REQUIRE(figure.panels[0].series.size() == 3);
  CHECK(figure.panels[0].series[1].name == "smoothing 0.0100");
  for (const PlotSeries& series : figure.panels[0].series) CHECK(series.marks.size() == 8);
  // The least of the three curves is the study's own.
  const auto all = study::steps_to_result(study, kGoal);
  double least = 1e300;
  for (const PlotSeries& series : figure.panels[1].series) {
    for (const Mark& mark : series.marks) least = mark.x == 8 ? std::min(least, mark.y) : least;
  }
  CHECK(least == *all[0].steps);
}

TEST_CASE("figure 8: rules start at the smallest batch size; effective rates only where momentum was searched") {
  const StudyData study = made_up_study();
  const Figure figure = figure_of("fig8_parameters", study, analysis_of(study));
  REQUIRE(figure.panels.size() == 3);
  const StudyChart& chart = figure.panels[2];
  const Mark &first = chart.series[0].marks.front(), &last = chart.series[0].marks.back();
  const PlotSeries *linear = find_series(chart, "linear rule"), *root = find_series(chart, "square-root rule");
  REQUIRE(linear != nullptr);
  REQUIRE(root != nullptr);
  CHECK(linear->marks.front().y == first.y);
  CHECK(linear->marks.back().y == doctest::Approx(first.y * last.x / first.x));
  CHECK(root->marks.back().y == doctest::Approx(first.y * std::sqrt(last.x / first.x)));
  for (const Mark& mark : chart.series[0].marks)
    CHECK(mark.y == doctest::Approx(std::stod(field(mark, "learning_rate")) / (1 - std::stod(field(mark, "momentum")))));
  MadeUp what;
  what.has_momentum = false;
  const StudyData plain = made_up_study(what);
  CHECK(figure_of("fig8_parameters", plain, analysis_of(plain)).panels.size() == 1);
}

TEST_CASE("figures 9 and 10: every trial that counts or diverged is one point of one outcome") {
  for (const bool has_momentum : {true, false}) {
    MadeUp what;
    what.has_momentum = has_momentum;
    const StudyData study = made_up_study(what);
    const study::Analysis analysis = analysis_of(study);
    size_t num_trials = 0;
    for (const study::BatchStudy& batch : study.batches) num_trials += batch.trials.size();
    for (const char* id : {"fig9_scatter_steps", "fig10_scatter_epochs"}) {
      const Figure figure = figure_of(id, study, analysis);
      REQUIRE(figure.panels.size() == 8);
      CHECK(num_marks(figure) == num_trials);
      for (const StudyChart& chart : figure.panels) {
        CHECK(chart.x.range == figure.panels[0].x.range);
        for (const Mark& mark : chart.series[0].marks)
          CHECK(std::stod(field(mark, "steps to the goal")) <= std::stod(field(mark, "budget (steps)")));
        for (const Mark& mark : chart.series[3].marks) CHECK(field(mark, "status") == "INFEASIBLE");
      }
    }
  }
}

TEST_CASE("figure 10: trials of several studies at batch sizes that all have, each within its own budget") {
  MadeUp what;
  const StudyData first = made_up_study(what);
  what.model = "cnn";
  what.min_steps = 800;
  StudyData second = made_up_study(what);
  second.batches.erase(second.batches.begin());
  const study::Analysis of_first = analysis_of(first), of_second = analysis_of(second);
  CHECK(figure_scatter_studies({{&first, "fc", &of_first}}).panels.empty());
  const Figure figure = figure_scatter_studies({{&first, "fc", &of_first}, {&second, "cnn", &of_second}});
  CHECK(figure.id == "fig10_scatter_studies");
  REQUIRE(figure.panels.size() == 8);
  size_t num_trials = 0;
  for (size_t i = 0; i < 8; ++i) {
    const StudyData& study = i < 4 ? first : second;
    const std::vector<int64_t> sizes = {16, 64, 256, 1024};
    CHECK(figure.panels[i].title.starts_with(std::string(i < 4 ? "fc" : "cnn") + ", batch "));
    CHECK(figure.panels[i].id == "fig10-study" + std::to_string(1 + i / 4) + "-" + std::to_string(sizes[i % 4]));
    CHECK(figure.panels[i].x.range == figure.panels[0].x.range);
    CHECK(figure.panels[i].y.range == figure.panels[0].y.range);
    num_trials += find_batch(study, sizes[i % 4])->trials.size();
  }
  CHECK(num_marks(figure) == num_trials);
  const auto budget = [](const StudyChart& chart) { return std::stod(field(chart.series[0].marks.at(0), "budget (steps)")); };
  CHECK(budget(figure.panels[1]) < budget(figure.panels[5]));
  CHECK(field(figure.panels[5].series[0].marks[0], "study") == "cnn");
  // Without a batch size in common each has its own.
  StudyData third = second;
  for (study::BatchStudy& batch : third.batches) batch.batch_size += 1;
  const study::Analysis of_third = analysis_of(third);
  CHECK(figure_scatter_studies({{&first, "fc", &of_first}, {&third, "odd", &of_third}}).panels.size() == 8);
}

TEST_CASE("automatic goal: what five trials of every batch size reach, but hardly more") {
  StudyData study = made_up_study();
  study.goals.clear();
  const auto goal = automatic_goal(study);
  REQUIRE(goal.has_value());
  CHECK(goal->metric == study::kValError);
  GoalSpec harder = *goal;
  harder.value *= 0.9;
  bool all_reach_harder = true;
  for (const study::BatchStudy& batch : study.batches) {
    CHECK(study::steps_to_result(batch, *goal).num_reached >= 5);
    all_reach_harder = all_reach_harder && study::steps_to_result(batch, harder).num_reached >= 5;
  }
  CHECK_FALSE(all_reach_harder);
  CHECK_FALSE(automatic_goal({}).has_value());
}

TEST_CASE("goals are rounded to where they are easier") {
  CHECK(round_digits(0.1234, 2, true) == 0.13);
  CHECK(round_digits(0.1234, 2, false) == 0.12);
  CHECK(round_digits(1234, 2, true) == 1300);
  CHECK(round_digits(0.12, 2, true) == 0.12);
  CHECK(round_digits(0, 2, true) == 0);
}

TEST_CASE("time to the goal: one line a number of workers, none without times") {
  const auto steps = study::steps_to_result(made_up_study(), kGoal);
  CHECK(figure_worth(study::worth_of_workers(steps, {}), kGoal).panels.empty());
  const study::Worth worth = study::worth_of_workers(steps, {{8, 1, 0.1, 0.09, 0.11}, {8, 2, 0.06, 0.05, 0.07}, {64, 1, 0.2, 0.19, 0.21}});
  const Figure figure = figure_worth(worth, kGoal);
  REQUIRE(figure.panels.size() == 1);
  REQUIRE(figure.panels[0].series.size() == 2);
  CHECK(figure.panels[0].series[0].name == "1 worker");
  CHECK(figure.panels[0].series[0].marks.size() == 2);
  CHECK(figure.panels[0].series[0].marks[0].y == doctest::Approx(0.1 * static_cast<double>(*steps[0].steps)));
}

}  // namespace
}  // namespace cohort::report
