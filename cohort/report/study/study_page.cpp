#include "cohort/report/study/study_page.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/text/text.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/draw/page.h"
#include "cohort/report/study/files_at_once.h"
#include "cohort/report/study/study_csv.h"
#include "cohort/report/study/study_figures.h"
#include "cohort/report/study/study_further.h"
#include "cohort/report/study/study_style.h"
#include "cohort/report/study/study_summary.h"

namespace cohort::report {
namespace {

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

/// What to do: "2 workers, batch 64: 3.1 s to val_error<0.2". "" where no step time was measured.
std::string best_of_workers(const StudyReport& report) {
  const study::WorthRow* const best = best_worth(report.worth);
  if (!best) return "";
  return plural(best->num_workers, "worker") + ", batch " + count_text(best->best.batch_size) + ": " + seconds_text(best->best.seconds) +
         " to " + report.analysis.goal.text();
}

/// Where scaling ends, if that is known.
std::string scaling(const StudyReport& report) {
  const study::Regimes& regimes = report.analysis.regimes;
  if (!report.has_goal) return "Nothing measured yet";
  if (regimes.refused) return "No regime is named";
  std::string out;
  if (regimes.perfect_to) out = "Perfect scaling to batch " + plain_number(*regimes.perfect_to);
  if (regimes.flat_from) out += (out.empty() ? "Flat from " : ", flat from ") + plain_number(*regimes.flat_from);
  return out.empty() ? "Steps to " + report.analysis.goal.text() : out;
}

/// The largest letters on the page.
std::string headline(const StudyReport& report) {
  const std::string best = best_of_workers(report);
  return best.empty() ? scaling(report) : best;
}

std::string header(const StudyData& study, const StudyReport& report) {
  std::string banners;
  for (const std::string& warning : report.warnings) banners += "<p class=\"banner\">" + escape_html(warning) + "</p>\n";
  return "<header>\n<div class=\"top\"><span class=\"brand\">Cohort</span><span>batch-size study</span></div>\n<h1><span class=\"what\">" +
         escape_html(workload_name(study)) + "</span> " + escape_html(headline(report)) +
         (best_of_workers(report).empty() ? "" : " <span class=\"rest\">" + escape_html(scaling(report)) + "</span>") + "</h1>\n" +
         banners + "</header>\n";
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

/// Those of several studies together: 3 to 6, 10, repeats, all.
std::vector<Figure> joint_figures(const StudyReportOptions& options, const StudyReport& report) {
  std::vector<NamedStudy> named;
  std::vector<AnalysedStudy> analysed;
  for (size_t i = 0; i < options.studies.size(); ++i) {
    const ReportedStudy& study = options.studies[i];
    named.push_back({&study.data, study.name});
    if (i > report.others.size()) continue;
    const StudyReport& one = i == 0 ? report : report.others[i - 1];
    if (one.has_goal) analysed.push_back({&study.data, label_of(study), &one.analysis});
  }
  std::vector<Figure> figures = figures_of_studies(named, options.goal, options.reference_batch);
  figures.push_back(figure_scatter_studies(analysed));
  std::erase_if(figures, [](const Figure& figure) { return figure.panels.empty(); });
  return figures;
}

/// The figures of the first study, and of all together; those of the others are made when they are shown, one study in memory at a time.
struct Figures {
  std::vector<Figure> first, joint;
  Figure worth;

  Figures(const StudyReportOptions& options, const StudyReport& report) {
    const ReportedStudy& study = options.studies.front();
    first = own_figures(study.data, report, options);
    if (options.studies.size() > 1) {
      for (Figure& figure : first) figure.heading += ": " + label_of(study);
    }
    worth = figure_worth(report.worth, report.analysis.goal);
    joint = joint_figures(options, report);
  }

  std::vector<const Figure*> all() const {
    std::vector<const Figure*> out = {&worth};
    for (const Figure& figure : first) out.push_back(&figure);
    for (const Figure& figure : joint) out.push_back(&figure);
    std::erase_if(out, [](const Figure* figure) { return figure->panels.empty(); });
    return out;
  }
};

/// What came out of the second study, the third, ..., and its figures.
std::string further_sections(const ReportedStudy& study, const StudyReport& report, const std::vector<Figure>& figures, size_t number) {
  std::string text = paragraphs(report.sentences);
  if (report.has_goal) text += flags_section(study.data, report);
  std::string out =
      section("summary" + suffix_of(study, number), label_of(study) + ": what came out", workload_name(study.data),
              prose(text + paragraphs(work_sentences(study.data))) + (report.has_goal ? steps_table(study.data, report) : ""));
  for (const Figure& figure : figures) out += figure_section(figure);
  return out;
}

std::string body(const StudyReportOptions& options, const StudyReport& report, const Figures& figures,
                 const std::vector<std::string>& others) {
  const StudyData& study = options.studies.front().data;
  std::string out = mark_shapes() + "<main>\n" + header(study, report);
  out += section("summary", "What came out", "", prose(paragraphs(report.sentences)));
  const auto add_first = [&](bool is_steps) {
    for (const Figure& figure : figures.first) out += (figure.id == "fig1_steps") == is_steps ? figure_section(figure) : "";
  };
  add_first(true);
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
                   prose(text) + (figures.worth.panels.empty() ? "" : figure_markup(figures.worth)));
  if (const auto sentences = noise_sentences(options.noise_scales, report.analysis); !sentences.empty())
    out += section("noise", "Gradient noise scale", "", prose(paragraphs(sentences)));
  for (const Figure& figure : figures.joint) out += figure_section(figure);
  add_first(false);
  for (const std::string& sections : others) out += sections;
  return out + data_section(options) +
         "<footer>Written by <code>cohort study report</code> from the raw data of the study.</footer>\n</main>\n";
}

}  // namespace
}  // namespace cohort::report

namespace cohort::report {

StudyReport write_study_report(const StudyReportOptions& options) {
  if (options.studies.empty()) fail(ErrorCode::kBadInput, "study report: give at least one study");
  const std::string folder = parent_folder(options.path) + "/plots";
  check_writable_folder(folder);
  StudyReport report = report::analyse_reported(options.studies.front(), options.goal, options);
  report.path = options.path;
  if (report.has_goal) report.worth = study::worth_of_workers(report.analysis.steps, options.times);
  for (size_t i = 1; i < std::min(options.studies.size(), report::kMaxOwnFigures); ++i)
    report.others.push_back(report::analyse_reported(options.studies[i], options.goal, options));
  report.warnings = options.warnings;
  for (std::string& warning : report::warnings_of_several(options, report)) report.warnings.push_back(std::move(warning));
  const report::Figures figures(options, report);
  report::FilesAtOnce files;
  files.make_folder(folder);
  const auto write = [&](const report::Figure& figure) {
    report.plots.push_back(folder + "/" + figure.id + ".csv");
    files.write(report.plots.back(), report::plot_csv(figure.panels));
  };
  for (const report::Figure* figure : figures.all()) write(*figure);
  std::vector<std::string> others;
  for (size_t i = 0; i < report.others.size(); ++i) {
    const ReportedStudy& study = options.studies[i + 1];
    const auto its = report::further_figures(study, report.others[i], i + 2, options);
    for (const report::Figure& figure : its) write(figure);
    others.push_back(report::further_sections(study, report.others[i], its, i + 2));
  }
  const std::string title = report::headline(report) + ": " + report::workload_name(options.studies.front().data);
  files.write(options.path, report::study_document(title, report::body(options, report, figures, others)));
  files.show();
  report::remove_old_plots(folder, report.plots);
  return report;
}

}  // namespace cohort::report
