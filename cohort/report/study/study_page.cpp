// Assembles the report of studies: analyses each study, draws its figures, and writes page and CSVs together. Figures of further studies
// are drawn and written one study at a time, to bound memory.
#include "cohort/report/study/study_page.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/text/text.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/draw/page.h"
#include "cohort/report/study/study_csv.h"
#include "cohort/report/study/study_figures.h"
#include "cohort/report/study/study_summary.h"
#include "cohort/study/analysis/steps_to_result.h"

namespace cohort::report {
namespace {

constexpr size_t kMaxNameBytes = 80;  // File names have at most 255 bytes.
/// Further studies have no figures of their own, as the page of a whole archive would have hundreds of megabytes; they are in the overlaid
/// figures, and the page has a warning.
constexpr size_t kMaxOwnFigures = 12;

/// Replaces several files together, so that a full disk changes none of them. Each is written to a temporary file beside it; commit()
/// renames them all. Without commit() the temporary files and created folders are removed on destruction. Used by one thread.
class FileTransaction {
 public:
  FileTransaction() = default;
  ~FileTransaction();
  FileTransaction(const FileTransaction&) = delete;
  FileTransaction& operator=(const FileTransaction&) = delete;

  /// Creates the folder and its parents. Error(kBadInput) where that fails, kFailed for a full disk.
  void make_folder(const std::string& folder);
  /// Writes the temporary file durably.
  void write(const std::string& path, const std::string& content);
  /// Renames all files to their final paths.
  void commit();

 private:
  std::vector<std::string> folders_;                        // Created folders, the deepest first.
  std::vector<std::pair<std::string, std::string>> files_;  // Temporary and final paths.
};

FileTransaction::~FileTransaction() {
  for (const auto& [temporary, path] : files_) ::unlink(temporary.c_str());
  for (const std::string& folder : folders_) ::rmdir(folder.c_str());  // Fails where it is not empty.
}

void FileTransaction::make_folder(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> missing;
  for (std::string place = folder; !std::filesystem::exists(place, error) && !error; place = parent_folder(place)) missing.push_back(place);
  folders_.insert(folders_.begin(), missing.begin(), missing.end());
  std::filesystem::create_directories(folder, error);
  const ErrorCode code = error == std::errc::no_space_on_device ? ErrorCode::kFailed : ErrorCode::kBadInput;
  if (error) fail(code, "cannot create the folder ", folder, ": ", error.message());
}

void FileTransaction::write(const std::string& path, const std::string& content) {
  check_replaceable_file(path);
  const std::string& temporary = files_.emplace_back(temporary_name(path), path).first;
  struct stat replaced{};
  const bool has_mode = ::stat(path.c_str(), &replaced) == 0;
  UniqueDescriptor descriptor = open_file(temporary, O_WRONLY | O_CREAT | O_EXCL);
  if (has_mode) ::fchmod(descriptor.get(), replaced.st_mode & 0777);  // Keeps its permissions.
  write_all(descriptor.get(), content.data(), content.size(), temporary);
  sync_descriptor(descriptor.get(), temporary);
  if (::close(descriptor.release()) < 0 && errno != EINTR) fail_errno(ErrorCode::kFailed, "close", temporary, errno);
}

void FileTransaction::commit() {
  std::set<std::string> changed;
  folders_.clear();
  while (!files_.empty()) {
    const auto& [temporary, path] = files_.back();
    if (::rename(temporary.c_str(), path.c_str()) < 0) fail_errno(ErrorCode::kFailed, "rename " + temporary + " to", path, errno);
    changed.insert(parent_folder(path));
    files_.pop_back();
  }
  for (const std::string& folder : changed) sync_folder(folder);
}

/// The name of the folder, or DATASET/MODEL/OPTIMIZER of an archive.
std::string label_of(const ReportedStudy& study) {
  if (study.name == join({study.data.dataset, study.data.model, study.data.optimizer}, "/")) return study.name;
  const size_t end = study.name.find_last_not_of('/');
  if (end == std::string::npos) return study.name;
  const size_t slash = study.name.find_last_of('/', end);
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  return study.name.substr(begin, end + 1 - begin);
}

/// The suffix of section ids and CSV names of a further study: "-2-quick2" for the second one. Letters, digits, '.', '_' and '-' only.
std::string suffix_of(const ReportedStudy& study, size_t number) {
  std::string name = label_of(study).substr(0, kMaxNameBytes);
  for (char& character : name) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte >= 128 || (std::isalnum(byte) == 0 && character != '.' && character != '-')) character = '_';
  }
  return concat('-', number, '-', name);
}

/// The requested goal, or the study's own; none where one has to be chosen.
std::optional<GoalSpec> goal_of(const StudyData& study, const std::optional<GoalSpec>& requested, bool is_first) {
  if (requested && (is_first || study::can_answer(study, *requested))) return requested;
  if (!study.goals.empty() && (is_first || study::can_answer(study, study.goals.front()))) return study.goals.front();
  return std::nullopt;
}

/// Sets goal (`requested` where the study measures it, else its own, else an automatic one), analysis, flags and sentences; not path, plots
/// and worth.
StudyReport analyse_reported(const ReportedStudy& study, const std::optional<GoalSpec>& requested, const StudyReportOptions& options) {
  const StudyData& data = study.data;
  StudyReport report{.name = study.name};
  const bool is_first = &study == &options.studies.front();
  std::optional<GoalSpec> goal = goal_of(data, requested, is_first);
  const bool is_automatic = !goal;
  if (!goal) goal = automatic_goal(data);
  report.has_goal = goal.has_value() && !data.batches.empty();
  if (report.has_goal) {
    report.analysis = study::analyse(data, *goal, {.reference_batch = options.reference_batch, .num_resamples = options.num_resamples});
    report.flags = study::self_checks(data, *goal, report.analysis.steps);
  }
  report.sentences = summary_sentences(data, report, is_automatic);
  return report;
}

std::vector<Figure> own_figures(const StudyData& study, const StudyReport& report, const StudyReportOptions& options) {
  if (!report.has_goal) return {};
  return figures_of_study({study, report.analysis, options.goals, options.budgets});
}

/// The figures of a further study (`number` from 2), with its name in headings, section ids and plot ids.
std::vector<Figure> further_figures(const ReportedStudy& study, const StudyReport& report, size_t number,
                                    const StudyReportOptions& options) {
  std::vector<Figure> figures = own_figures(study.data, report, options);
  for (Figure& figure : figures) {
    figure.id += suffix_of(study, number);
    figure.heading += ": " + label_of(study);
    for (StudyChart& chart : figure.panels) chart.id += concat("-of-", number);
  }
  return figures;
}

/// Warnings of studies that do not measure the requested goal, and of studies without figures of their own.
std::vector<std::string> warnings_of_several(const StudyReportOptions& options, const StudyReport& report) {
  std::vector<std::string> warnings;
  for (const ReportedStudy& study : options.studies) {
    if (!options.goal || study::can_answer(study.data, *options.goal)) continue;
    warnings.push_back(
        concat(study.name, " does not measure ", study::name_of(options.goal->metric), ": its own goal replaces ", options.goal->text()));
  }
  if (const size_t num_own = report.others.size() + 1; options.studies.size() > num_own)
    warnings.push_back(concat("of ", options.studies.size(), " studies the first ", num_own,
                              " have figures of their own; name others first to see theirs"));
  return warnings;
}

std::string paragraphs(const std::vector<std::string>& sentences) {
  std::string out;
  for (const std::string& sentence : sentences) out += "<p>" + escape_html(sentence) + "</p>\n";
  return out;
}

std::string prose(const std::string& markup) { return markup.empty() ? "" : "<div class=\"prose\">\n" + markup + "</div>\n"; }

/// All panels have one size and form a grid.
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

/// The best configuration: "2 workers, batch 64: 3.1 s to val_error<0.2"; "" where no step time was measured.
std::string best_of_workers(const StudyReport& report) {
  const study::WorthRow* const best = best_worth(report.worth);
  if (!best) return "";
  return plural(best->num_workers, "worker") + ", batch " + count_text(best->best.batch_size) + ": " + seconds_text(best->best.seconds) +
         " to " + report.analysis.goal.text();
}

/// The ends of the scaling regimes, where known.
std::string scaling(const StudyReport& report) {
  const study::Regimes& regimes = report.analysis.regimes;
  if (!report.has_goal) return "Nothing measured yet";
  if (regimes.refused) return "No regime is named";
  std::string out;
  if (regimes.perfect_to) out = "Perfect scaling to batch " + plain_number(*regimes.perfect_to);
  if (regimes.flat_from) out += (out.empty() ? "Flat from " : ", flat from ") + plain_number(*regimes.flat_from);
  return out.empty() ? "Steps to " + report.analysis.goal.text() : out;
}

/// The headline of the page.
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

/// The figures of several studies: 3 to 6, 10, repeated studies, all.
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

/// The figures of the first study, and those of all studies together.
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

/// Results and figures of a further study.
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
    out += section("checks", "Self-checks", "Checks that authors of such studies make by eye, with evidence and advice.",
                   prose(flags_section(study, report)));
    out += section("steps", "Steps to the goal at each batch size",
                   "The first evaluated step beyond the goal, least of all trials that count. Resolution is half the distance between two "
                   "evaluations there.",
                   steps_table(study, report));
  }
  if (const std::string text = worth_text(report); !text.empty())
    out += section("worth", "How many workers", "Steps to the goal combined with step times measured on this machine.",
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

StudyReport write_study_report(const StudyReportOptions& options) {
  if (options.studies.empty()) fail(ErrorCode::kBadInput, "study report: give at least one study");
  const std::string folder = parent_folder(options.path) + "/plots";
  check_writable_folder(folder);
  StudyReport report = analyse_reported(options.studies.front(), options.goal, options);
  report.path = options.path;
  if (report.has_goal) report.worth = study::worth_of_workers(report.analysis.steps, options.times);
  for (size_t i = 1; i < std::min(options.studies.size(), kMaxOwnFigures); ++i)
    report.others.push_back(analyse_reported(options.studies[i], options.goal, options));
  report.warnings = options.warnings;
  for (std::string& warning : warnings_of_several(options, report)) report.warnings.push_back(std::move(warning));
  const Figures figures(options, report);
  FileTransaction files;
  files.make_folder(folder);
  const auto write = [&](const Figure& figure) {
    report.plots.push_back(folder + "/" + figure.id + ".csv");
    files.write(report.plots.back(), plot_csv(figure.panels));
  };
  for (const Figure* figure : figures.all()) write(*figure);
  std::vector<std::string> others;
  for (size_t i = 0; i < report.others.size(); ++i) {
    const ReportedStudy& study = options.studies[i + 1];
    const auto its = further_figures(study, report.others[i], i + 2, options);
    for (const Figure& figure : its) write(figure);
    others.push_back(further_sections(study, report.others[i], its, i + 2));
  }
  const std::string title = headline(report) + ": " + workload_name(options.studies.front().data);
  files.write(options.path, study_document(title, body(options, report, figures, others)));
  files.commit();
  remove_old_plots(folder, report.plots);
  return report;
}

}  // namespace cohort::report
