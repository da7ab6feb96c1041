#include "cohort/report/study_page.h"

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "cohort/base/error.h"
#include "cohort/base/file.h"
#include "cohort/base/text.h"
#include "cohort/report/format.h"
#include "cohort/report/page.h"
#include "cohort/report/study_csv.h"
#include "cohort/report/study_figures.h"
#include "cohort/report/study_style.h"
#include "cohort/report/study_summary.h"

namespace cohort::page {
namespace {

using study::StudyData;

std::string paragraphs(const std::vector<std::string>& sentences) {
  std::string out;
  for (const std::string& sentence : sentences) out += "<p>" + escape_html(sentence) + "</p>\n";
  return out;
}

std::string prose(const std::string& markup) { return markup.empty() ? "" : "<div class=\"prose\">\n" + markup + "</div>\n"; }

/// Panels stand in a grid, all of one size.
std::string figure_markup(const Figure& figure) {
  std::string charts;
  for (const StudyChart& chart : figure.panels) charts += study_chart(chart);
  const StudyChart::Size size = figure.panels.front().size;
  if (size == StudyChart::Size::kSmall) charts = "<div class=\"panels\">" + charts + "</div>\n";
  else if (size == StudyChart::Size::kHalf) charts = "<div class=\"charts\">" + charts + "</div>\n";
  if (figure.shares_legend) charts = "<div class=\"keys\">" + legend_of(figure.panels.front().series) + "</div>\n" + charts;
  const std::string file = "plots/" + figure.id + ".csv";
  return charts + "<p class=\"csv\">Data of this plot: " + element("a", {{"href", file}}, escape_html(file)) + "</p>\n";
}

std::string figure_section(const Figure& figure) {
  return figure.panels.empty() ? "" : section(figure.id, figure.heading, figure.intro, figure_markup(figure));
}

std::string workload_name(const StudyData& study) {
  std::vector<std::string> names;
  for (const std::string& name : {study.model, study.dataset, study.optimizer}) {
    if (!name.empty()) names.push_back(name);
  }
  return names.empty() ? "batch-size study" : join(names, ", ");
}

/// The largest letters on the page: where scaling ends, if that is known.
std::string headline(const StudyReport& report) {
  const study::Regimes& regimes = report.analysis.regimes;
  if (!report.has_goal) return "Nothing measured yet";
  if (regimes.refused) return "No regime is named";
  std::string out;
  if (regimes.perfect_to) out = "Perfect scaling to batch " + plain_number(*regimes.perfect_to);
  if (regimes.flat_from) out += (out.empty() ? "Flat from " : ", flat from ") + plain_number(*regimes.flat_from);
  return out.empty() ? "Steps to " + report.analysis.goal.text() : out;
}

std::string header(const StudyData& study, const StudyReport& report, const std::vector<std::string>& warnings) {
  std::string banners;
  for (const std::string& warning : warnings) banners += "<p class=\"banner\">" + escape_html(warning) + "</p>\n";
  return "<header>\n<div class=\"top\"><span class=\"brand\">Cohort</span><span>batch-size study</span></div>\n<h1><span class=\"what\">" +
         escape_html(workload_name(study)) + "</span> " + escape_html(headline(report)) + "</h1>\n" + banners + "</header>\n";
}

std::string data_section(const StudyReportOptions& options) {
  const StudyData& study = options.studies.front().data;
  std::vector<std::string> sentences = work_sentences(study);
  if (options.raw_bytes > 0) sentences.push_back("Raw data: " + bytes_text(options.raw_bytes) + "; every plot is made from it alone.");
  std::string out = paragraphs(sentences);
  if (!options.commands.empty())
    out += "<h3>To repeat it</h3>\n<pre tabindex=\"0\">" + escape_html(join(options.commands, "\n")) + "</pre>\n";
  return section("data", "Work and raw data", "", prose(out));
}

std::vector<NamedStudy> named(const std::vector<ReportedStudy>& studies) {
  std::vector<NamedStudy> out;
  for (const ReportedStudy& study : studies) out.push_back({&study.data, study.name});
  return out;
}

/// Figures in their order; without a goal there is nothing to draw.
std::vector<Figure> all_figures(const StudyReportOptions& options, const StudyReport& report) {
  std::vector<Figure> figures;
  if (!report.has_goal) return figures;
  const StudyData& study = options.studies.front().data;
  const study::GoalSpec& goal = report.analysis.goal;
  figures.push_back(figure_goals(study, goal));
  for (Figure& figure : figures_of_studies(named(options.studies), options.goal)) figures.push_back(std::move(figure));
  figures.push_back(figure_label_smoothing(study, goal));
  figures.push_back(figure_parameters(study, report.analysis));
  for (Figure& figure : figures_scatter(study, report.analysis)) figures.push_back(std::move(figure));
  figures.push_back(figure_budgets(study, goal));
  std::erase_if(figures, [](const Figure& figure) { return figure.panels.empty(); });
  return figures;
}

std::string body(const StudyReportOptions& options, const StudyReport& report, const Figure& steps, const Figure& worth,
                 const std::vector<Figure>& others) {
  const StudyData& study = options.studies.front().data;
  std::string out = mark_shapes() + "<main>\n" + header(study, report, options.warnings);
  out += section("summary", "What came out", "", prose(paragraphs(report.sentences)));
  out += figure_section(steps);
  if (report.has_goal) {
    out += section("checks", "Self-checks", "What the authors of such studies check by eye, with the evidence and what to do.",
                   prose(flags_section(study, report)));
    out += section("steps", "Steps to the goal at each batch size",
                   "The first evaluated step beyond the goal, least of all trials that count. Resolution is half the distance between two "
                   "evaluations there.",
                   steps_table(study, report));
  }
  if (const std::string text = worth_text(report); !text.empty())
    out += section("worth", "How many workers", "Steps to the goal joined with step times measured on this machine.",
                   prose(text) + (worth.panels.empty() ? "" : figure_markup(worth)));
  if (const auto sentences = noise_sentences(options.noise_scales, report.analysis); !sentences.empty())
    out += section("noise", "Gradient noise scale", "", prose(paragraphs(sentences)));
  for (const Figure& figure : others) out += figure_section(figure);
  return out + data_section(options) +
         "<footer>Written by <code>cohort study report</code> from the raw data of the study.</footer>\n</main>\n";
}

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(ErrorCode::kFailed, "cannot make the folder ", folder, ": ", error.message());
}

}  // namespace
}  // namespace cohort::page

namespace cohort {

StudyReport write_study_report(const StudyReportOptions& options) {
  if (options.studies.empty()) fail(ErrorCode::kBadInput, "study report: give at least one study");
  const study::StudyData& study = options.studies.front().data;
  StudyReport report{.path = options.path};
  std::optional<study::GoalSpec> goal = options.goal;
  if (!goal && !study.goals.empty()) goal = study.goals.front();
  const bool is_automatic = !goal;
  if (!goal) goal = page::automatic_goal(study);
  page::Figure steps, worth;
  report.has_goal = goal.has_value() && !study.batches.empty();
  if (report.has_goal) {
    report.analysis = study::analyse(study, *goal, {.reference_batch = options.reference_batch, .num_resamples = options.num_resamples});
    report.flags = study::self_checks(study, *goal, report.analysis.steps);
    report.worth = study::worth_of_workers(report.analysis.steps, options.times);
    steps = page::figure_steps(study, report.analysis);
    worth = page::figure_worth(report.worth, *goal);
  }
  report.sentences = page::summary_sentences(study, report, is_automatic);
  const std::vector<page::Figure> others = page::all_figures(options, report);
  const std::string folder = parent_folder(options.path) + "/plots";
  page::make_folder(folder);
  const auto write_csv = [&](const page::Figure& figure) {
    if (figure.panels.empty()) return;
    report.plots.push_back(folder + "/" + figure.id + ".csv");
    write_file_atomically(report.plots.back(), page::plot_csv(figure.panels));
  };
  write_csv(steps);
  write_csv(worth);
  for (const page::Figure& figure : others) write_csv(figure);
  const std::string title = page::headline(report) + ": " + page::workload_name(study);
  write_file_atomically(options.path, page::study_document(title, page::body(options, report, steps, worth, others)));
  return report;
}

}  // namespace cohort
