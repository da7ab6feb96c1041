#include "cohort/report/study/study_page.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/text.h"
#include "cohort/report/study/study_csv.h"
#include "cohort/report/study/study_summary.h"
#include "tests/support/reported_study.h"
#include "tests/support/text.h"

namespace cohort::report {
namespace {

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
  // What to do stands first, in the largest letters.
  CHECK(std::regex_search(html, std::regex("<h1><span class=\"what\">[^<]*</span> [0-9]+ workers?, batch [0-9,]+: [^<]* to [^<]* "
                                           "<span class=\"rest\">Perfect scaling")));
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
  CHECK(lines[0].starts_with("panel,series,x,y,low,high,goal,steps,steps low,steps high,batch size,trial,learning_rate,momentum,status"));
  const auto& first = page.report.analysis.steps.front();
  CHECK(contains(lines[1], ",8," + std::to_string(*first.steps) + "," + std::to_string(*first.steps)));
}

/// The headings of a CSV's columns.
std::vector<std::string> columns_of(const std::string& csv) { return split(first_line(csv), ','); }

TEST_CASE("study page: no CSV has two columns of one name, whatever hyperparameters are called") {
  MadeUp what;
  what.has_smoothing = true;
  Page page(what);
  what.model = "cnn";
  page.options.studies.push_back({made_up_study(what), "runs/cnn"});
  page.options.times = {{8, 1, 0.001, 0.0009, 0.0011}, {8, 2, 0.0008, 0.0007, 0.0009}};
  for (study::BatchStudy& batch : page.options.studies[0].data.batches) {
    for (study::Trial& trial : batch.trials) trial.parameters["x"] = trial.parameters["low"] = 1;
  }
  page.write();
  CHECK(page.report.plots.size() == 1 + 7 + 2 + 7);  // Time, one study's own, models and scatter, the other's own.
  for (const std::string& plot : page.report.plots) {
    CAPTURE(plot);
    const std::vector<std::string> columns = columns_of(read_small_file(plot, 16 << 20));
    CHECK(std::set<std::string>(columns.begin(), columns.end()).size() == columns.size());
  }
  // In the relative panel y, low and high are shares, the steps stay steps.
  const std::vector<std::string> lines = split(read_small_file(page.folder / "plots/fig3_models.csv", 1 << 20), '\n');
  const std::vector<std::string> columns = columns_of(lines[0]);
  const auto cell = [&](const std::string& line, const std::string& name) {
    const std::string plain = std::regex_replace(line, std::regex("\"[^\"]*\""), "quoted");
    return split(plain, ',')[static_cast<size_t>(std::find(columns.begin(), columns.end(), name) - columns.begin())];
  };
  const auto relative = std::find_if(lines.begin(), lines.end(), [](const std::string& line) { return line.starts_with("Relative"); });
  REQUIRE(relative != lines.end());
  CHECK(cell(*relative, "y") == "1");
  CHECK(cell(*relative, "low") == "1");
  CHECK(cell(*relative, "steps low") == cell(lines[1], "low"));
  CHECK(std::stod(cell(*relative, "steps high")) == doctest::Approx(std::stod(cell(*relative, "high")) * std::stod(cell(lines[1], "y"))));
}

TEST_CASE("study page: every study of several has figures of its own, named after it") {
  MadeUp what;
  Page page(what);
  what.seed = 2;
  page.options.studies.push_back({made_up_study(what), "/somewhere/else/quick 2/"});
  what.model = "cnn";
  what.dataset = "mnist";
  what.optimizer = "sgd";
  page.options.studies.push_back({made_up_study(what), "mnist/cnn/sgd"});
  page.options.warnings = {"biased"};
  const std::string html = page.write();
  CHECK(is_balanced(html));
  REQUIRE(page.report.others.size() == 2);
  CHECK(page.report.others[1].analysis.steps.size() == 8);
  for (const char* figure :
       {"fig1_steps", "fig2_goals", "fig8_parameters", "fig9_scatter_steps", "fig10_scatter_epochs", "fig11_budgets"}) {
    for (const char* suffix : {"", "-2-quick_2", "-3-mnist_cnn_sgd"}) {
      CAPTURE(suffix);
      CHECK(contains(html, "<section id=\"" + std::string(figure) + suffix + "\">"));
      CHECK(std::filesystem::exists(page.folder / ("plots/" + std::string(figure) + suffix + ".csv")));
    }
  }
  CHECK(contains(html, "Steps to the goal: quick<"));
  CHECK(contains(html, "Steps to the goal: mnist/cnn/sgd<"));
  for (const char* figure : {"fig1_repeats", "fig3_studies", "fig10_scatter_studies"})
    CHECK(contains(html, "<section id=\"" + std::string(figure)));
  CHECK(contains(html, "class=\"banner\">biased"));
  std::multiset<std::string> ids;
  const std::regex id_pattern(" id=\"([^\"]*)\"");
  for (std::sregex_iterator at(html.begin(), html.end(), id_pattern), end; at != end; ++at) ids.insert((*at)[1]);
  for (const std::string& id : ids) CHECK_MESSAGE(ids.count(id) == 1, id);
  // A report of one study takes the figures of the others away again.
  page.options.studies.resize(1);
  page.write();
  for (const auto& entry : std::filesystem::directory_iterator(page.folder / "plots")) CHECK_FALSE(contains(entry.path(), "-2-"));
}

TEST_CASE("study page: names of figures are told from somebody's own") {
  for (const char* name : {"fig1_steps", "fig1_steps-2-quick2", "worth_time-12-a-b"}) CHECK(is_figure_name(name));
  for (const char* name : {"", "fig1", "fig1_steps2", "fig1_steps-old", "fig1_steps-2", "fig1_steps-a-2", "mine"})
    CHECK_FALSE(is_figure_name(name));
}

TEST_CASE("study page: of very many studies the first have figures of their own, and the page says so") {
  Page page(MadeUp{.num_batches = 3, .num_trials = 4, .num_measurements = 30});
  for (int i = 1; i < 14; ++i) page.options.studies.push_back({page.options.studies[0].data, "runs/" + std::to_string(i)});
  const std::string html = page.write();
  CHECK(page.report.others.size() == 11);
  CHECK(contains(html, "of 14 studies the first 12 have figures of their own"));
  CHECK(contains(html, "<section id=\"fig1_steps-12-11\">"));
  CHECK_FALSE(contains(html, "fig1_steps-13"));
}

TEST_CASE("study page: a goal that the first study does not measure is refused, another study's is said") {
  Page page;
  page.options.goal = study::GoalSpec{study::kTestPrecision, 0.5};
  CHECK_THROWS_WITH_AS(page.write(), doctest::Contains("this study does not measure test_precision; measured: val_loss, val_error"), Error);
  CHECK_FALSE(std::filesystem::exists(page.options.path));
  page.options.goal = study::GoalSpec{study::kValError, 0.12};
  page.options.studies.push_back({made_up_study(), "runs/loss"});
  study::StudyData& other = page.options.studies[1].data;
  other.goals = {{study::kValLoss, 0.36}};
  for (study::BatchStudy& batch : other.batches) {
    for (study::Trial& trial : batch.trials) {
      for (study::Measurement& measurement : trial.measurements) measurement.values[study::kValError] = std::nan("");
    }
  }
  const std::string html = page.write();
  CHECK(contains(html, "runs/loss does not measure val_error: its own goal replaces val_error&lt;0.12"));
  REQUIRE(page.report.others.size() == 1);
  CHECK(page.report.others[0].analysis.goal.metric == study::kValLoss);
}

TEST_CASE("study page: a place that can not be written is bad input, said before anything is made") {
  Page page;
  write_file_atomically(page.folder / "file", "");
  for (const std::string place : {"file/report.html", "file/below/report.html"}) {
    page.options.path = page.folder / place;
    try {
      page.write();
      FAIL("it was written");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kBadInput);
      CHECK(contains(error.what(), "Not a directory"));
    }
  }
  std::filesystem::rename(page.folder / "file", page.folder / "plots");
  page.options.path = page.folder / "report.html";
  CHECK_THROWS_AS(page.write(), Error);
}

TEST_CASE("study page: where one of its files can not be written there are none, and those of before stay") {
  Page page;
  const std::string good = page.options.path;
  page.options.path = page.folder / ("new/" + std::string(300, 'x') + ".html");
  CHECK_THROWS_AS(page.write(), Error);
  CHECK_FALSE(std::filesystem::exists(page.folder / "new"));
  page.options.path = good;
  page.write();
  std::filesystem::permissions(good, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const auto content = [&] {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(page.folder.path()))
      if (entry.is_regular_file()) files[entry.path().string()] = read_small_file(entry.path().string(), 1 << 24);
    return files;
  };
  const std::map<std::string, std::string> before = content();
  page.options.goal = study::GoalSpec{.metric = study::kValError, .value = 0.2};
  page.options.path = page.folder / (std::string(300, 'x') + ".html");
  CHECK_THROWS_AS(page.write(), Error);
  CHECK(content() == before);
  page.options.path = good;
  page.write();
  CHECK(content() != before);
  CHECK(std::filesystem::status(good).permissions() == (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
}

TEST_CASE("study page: CSVs of figures that are no longer made go, and nothing else does") {
  Page page;
  page.options.times = {{8, 1, 0.001, 0.0009, 0.0011}, {8, 2, 0.0008, 0.0007, 0.0009}};
  page.write();
  const std::vector<std::string> before = page.report.plots;
  for (const std::string& plot : before)
    CHECK(std::count(figure_names().begin(), figure_names().end(), std::filesystem::path(plot).stem()) == 1);
  const std::string plots = page.folder / "plots", worth = read_small_file(plots + "/worth_time.csv", 1 << 20);
  // A copy under a name of one's own, a table of one's own under a name of ours, another kind of file, a folder.
  write_file_atomically(plots + "/mine.csv", worth);
  write_file_atomically(plots + "/fig7_label_smoothing.csv", "panel,mine\n");
  write_file_atomically(plots + "/worth_time.txt", worth);
  std::filesystem::create_directory(plots + "/fig4_optimizers.csv");
  write_file_atomically(plots + "/fig1_steps-old.csv", worth);
  write_file_atomically(plots + "/fig5_datasets.csv", worth);  // As a report of several studies leaves it.
  write_file_atomically(plots + "/fig1_steps-2-other.csv", worth);
  page.options.times.clear();
  page.write();
  CHECK(page.report.plots.size() + 1 == before.size());
  std::set<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(plots)) left.insert(entry.path().string());
  for (const char* name : {"mine.csv", "fig7_label_smoothing.csv", "worth_time.txt", "fig4_optimizers.csv", "fig1_steps-old.csv"})
    CHECK(left.erase(plots + "/" + name) == 1);
  CHECK(left == std::set<std::string>(page.report.plots.begin(), page.report.plots.end()));
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

TEST_CASE("study summary: flags with advice, and the widened space") {
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
  CHECK(contains(markup, "[batch.64.search]\nlearning_rate = { type = "));
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
}  // namespace cohort::report
