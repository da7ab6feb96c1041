#include "cohort/report/study_page.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include "cohort/base/error.h"
#include "cohort/base/file.h"
#include "cohort/base/text.h"
#include "cohort/report/study_summary.h"
#include "cohort/report/study_test_data.h"

namespace cohort::page {
namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t number = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++number;
  return number;
}
bool contains(const std::string& text, const std::string& part) { return count(text, part) > 0; }

struct Page {
  TemporaryFolder folder;
  StudyReportOptions options;
  StudyReport report;

  explicit Page(const MadeUp& what = {}) {
    options.num_resamples = 20;
    options.path = folder / "report.html";
    options.studies.push_back({made_up_study(what), "runs/quick"});
  }
  std::string write() {
    report = write_study_report(options);
    return read_small_file(options.path, 64 << 20);
  }
};

/// Every tag that is opened is closed, in order.
bool is_balanced(const std::string& html) {
  std::string text = html.substr(html.find("<body>"));
  text.erase(text.find("<script>"), text.find("</script>") - text.find("<script>"));
  std::vector<std::string> open;
  for (size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at + 1)) {
    const size_t end = text.find('>', at);
    if (end == std::string::npos) return false;
    std::string tag = text.substr(at + 1, end - at - 1);
    if (tag.back() == '/') continue;
    const bool closes = tag[0] == '/';
    tag = tag.substr(closes, tag.find(' ') == std::string::npos ? std::string::npos : tag.find(' ') - closes);
    if (!closes) open.push_back(tag);
    else if (open.empty() || open.back() != tag) return tag == "script" || tag == "body" || tag == "html";
    else open.pop_back();
  }
  return true;
}

TEST_CASE("study page: every figure with its CSV, marks that say their trial, nothing from the network") {
  Page page;
  page.options.times = {{8, 1, 0.001, 0.0009, 0.0011}, {8, 2, 0.0008, 0.0007, 0.0009}, {1024, 2, 0.01, 0.009, 0.011}};
  page.options.noise_scales = {{300, 100, 0.5}};
  page.options.raw_bytes = 3 << 20;
  page.options.commands = {"cohort study run runs/quick/study.toml --out runs/quick-again"};
  const std::string html = page.write();
  CHECK(is_balanced(html));
  CHECK_FALSE(std::regex_search(html, std::regex("[\"=( ](nan|-nan|inf|-inf)[\"%) ,]")));
  CHECK_FALSE(std::regex_search(html, std::regex("(src|href)=\"(https?:)?//")));
  for (const char* name :
       {"fig1_steps", "worth_time", "fig2_goals", "fig8_parameters", "fig9_scatter_steps", "fig10_scatter_epochs", "fig11_budgets"}) {
    CAPTURE(name);
    CHECK(contains(html, "href=\"plots/" + std::string(name) + ".csv\""));
    CHECK(std::filesystem::exists(page.folder / ("plots/" + std::string(name) + ".csv")));
  }
  CHECK(page.report.plots.size() == 7);
  CHECK(contains(html, "<section id=\"worth\">"));
  CHECK(contains(html, "Gradient noise scale 300 at step 100"));
  CHECK(contains(html, "Raw data: 3.0 MiB"));
  CHECK(contains(html, "3.0 MiB"));
  CHECK(contains(html, "cohort study run runs/quick/study.toml"));
  size_t num_trials = 0;
  for (const study::BatchStudy& batch : page.options.studies[0].data.batches) num_trials += batch.trials.size();
  CHECK(count(html, "outcome: ") == 2 * num_trials);
  // Ids are unique, and what refers to one finds it.
  std::multiset<std::string> ids;
  const std::regex id_pattern(" id=\"([^\"]*)\""), reference("(aria-labelledby|aria-describedby)=\"([^\"]*)\"");
  for (std::sregex_iterator at(html.begin(), html.end(), id_pattern), end; at != end; ++at) ids.insert((*at)[1]);
  for (const std::string& id : ids) CHECK_MESSAGE(ids.count(id) == 1, id);
  for (std::sregex_iterator at(html.begin(), html.end(), reference), end; at != end; ++at) CHECK(ids.count((*at)[2]) == 1);
}

TEST_CASE("study page: CSVs hold the points of their plots") {
  Page page;
  page.write();
  const std::string csv = read_small_file(page.folder / "plots/fig1_steps.csv", 1 << 20);
  const std::vector<std::string> lines = split(csv, '\n');
  CHECK(lines[0].starts_with("panel,series,x,y,low,high,goal,steps,low,high,batch size,trial,learning_rate,momentum,status"));
  const auto& first = page.report.analysis.steps.front();
  CHECK(contains(lines[1], ",8," + std::to_string(*first.steps) + "," + std::to_string(*first.steps)));
}

TEST_CASE("study page: the same page from the same data") {
  Page first, second;
  CHECK(first.write() == second.write());
}

TEST_CASE("study page: hostile names are text") {
  MadeUp what;
  const std::string bad = "<script>alert(1)</script>\"'& =cmd()";
  what.dataset = what.model = what.optimizer = bad;
  Page page(what);
  what.optimizer = "<img src=x onerror=alert(2)>";
  page.options.studies.push_back({made_up_study(what), "</section><script>"});
  page.options.commands = {"<script>alert(3)</script>"};
  page.options.warnings = {"<script>alert(4)</script>"};
  for (study::BatchStudy& batch : page.options.studies[0].data.batches) {
    for (study::Trial& trial : batch.trials) trial.parameters["</title><script>alert(5)</script>"] = 1;
  }
  const std::string html = page.write();
  CHECK(count(html, "<script") == 1);
  CHECK_FALSE(contains(html, "<img"));
  CHECK(is_balanced(html));
  CHECK(contains(html, "class=\"banner\">&lt;script&gt;alert(4)"));
}

TEST_CASE("study page: empty studies say so") {
  Page page;
  page.options.studies[0].data.batches.clear();
  std::string html = page.write();
  CHECK(contains(html, "This study has no batch size yet."));
  CHECK_FALSE(page.report.has_goal);
  CHECK(is_balanced(html));
  Page bare;
  bare.options.studies[0].data.goals.clear();
  for (study::BatchStudy& batch : bare.options.studies[0].data.batches) batch.trials.clear();
  html = bare.write();
  CHECK(contains(html, "no measurement of a trial that counts yet"));
  Page unreached;
  unreached.options.goal = study::GoalSpec{study::kValError, 1e-9};
  html = unreached.write();
  CHECK(contains(html, "0 of 8 batch sizes reached it"));
  CHECK(contains(html, "No point to show."));
  CHECK(is_balanced(html));
  StudyReportOptions none;
  CHECK_THROWS_AS(write_study_report(none), Error);
}

TEST_CASE("study page: without goals one is chosen, and the page says so") {
  Page page;
  page.options.studies[0].data.goals.clear();
  CHECK(contains(page.write(), "chosen because the study names none"));
}

TEST_CASE("study summary: regimes with rule and interval, or not reached, or refused") {
  const StudyReport base{.has_goal = true};
  study::StudyData data;
  data.batches.resize(1);
  const auto text = [&](const StudyReport& report) { return join(summary_sentences(data, report, false), "\n"); };
  StudyReport report = base;
  report.analysis.goal = {study::kValError, 0.1};
  report.analysis.steps = {{.batch_size = 8, .steps = 100}, {.batch_size = 16, .steps = 50}, {.batch_size = 64, .steps = 20}};
  report.analysis.regimes.perfect_to = 16;
  report.analysis.regimes.perfect_interval = std::pair(8.0, 16.0);
  CHECK(contains(text(report), "to batch size 16 (95 %: 8 to 16) (rule: the largest B with B S(B) at most 1.25 times"));
  CHECK(contains(text(report), "is not reached: steps still fall"));
  report.analysis.regimes.flat_from = 64;
  report.analysis.regimes.flat_interval = std::pair(64.0, std::numeric_limits<double>::infinity());
  CHECK(contains(text(report), "from batch size 64 (95 %: 64 to no end) on"));
  report.analysis.regimes.perfect_to = 64;
  CHECK(contains(text(report), "the largest studied: its end is not reached"));
  report.analysis.fits = {
      {.law = study::Law::kHyperbola, .parameters = {{"Smin", 10}, {"Bc", 80}}, .critical_batch_size = 80, .rms_log = 0.2},
      {.law = study::Law::kKnee, .parameters = {{"Smin", 10}, {"Bc", 80}, {"e", 3}}, .critical_batch_size = 80, .rms_log = 0.1}};
  CHECK(contains(text(report), "The law with a knee exponent fits better (rms 0.100 against 0.200)"));
  report.analysis.regimes.refused = true;
  CHECK(contains(text(report), "No regime is named"));
  CHECK_FALSE(contains(text(report), "batch size 64"));
}

TEST_CASE("study summary: flags with advice, the widened spec reads back") {
  MadeUp what;
  study::StudyData data = made_up_study(what);
  // The best trial of a batch size stands at the upper end of a space that ends there.
  study::BatchStudy& batch = data.batches[3];
  const study::StepsToResult result = study::steps_to_result(batch, data.goals[0]);
  double best = 0;
  for (const study::Trial& trial : batch.trials) best = trial.id == result.trial_id ? trial.parameters.at("learning_rate") : best;
  for (study::Trial& trial : batch.trials) trial.parameters["learning_rate"] = std::min(trial.parameters["learning_rate"], best);
  batch.space[0].maximum = best;
  StudyReport report{.has_goal = true};
  report.analysis.goal = data.goals[0];
  report.analysis.steps = study::steps_to_result(data, data.goals[0]);
  report.flags = {{.rule = "bound", .batch_size = 64, .evidence = "a <b", .advice = "widen it", .refuses = true}};
  const std::string markup = flags_section(data, report);
  CHECK(contains(markup, "<strong>No regime can be named:</strong> a &lt;b. <em>Widen it.</em>"));
  const std::string spec = widened_spec(data, report);
  CHECK(contains(spec, "[search]"));
  CHECK(contains(spec, "[batch.64.search]"));
  CHECK(contains(markup, "[batch.64.search]"));
}

TEST_CASE("study summary: work done and saved by stopping trials") {
  study::StudyData data;
  study::BatchStudy batch{.batch_size = 10, .num_trials = 2, .train_steps = 100};
  batch.trials = {{.id = 0, .status = study::TrialStatus::kComplete, .steps = 100},
                  {.id = 1, .status = study::TrialStatus::kCensored, .steps = 50},
                  {.id = 2, .status = study::TrialStatus::kInfeasible, .steps = 50}};
  data.batches = {batch};
  const auto sentences = work_sentences(data);
  REQUIRE(sentences.size() == 2);
  CHECK(sentences[0].starts_with("3 trials (1 diverged) at 1 batch size, 0 measurements, 200 training steps on 2,000 samples"));
  CHECK(contains(sentences[1], "1 trial stopped before the budget"));
  CHECK(contains(sentences[1], "1.25 times as many samples"));
}

}  // namespace
}  // namespace cohort::page
