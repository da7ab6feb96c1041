#include "cohort/report/report.h"

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/report/draw/page.h"
#include "cohort/report/run_reader.h"
#include "cohort/report/sections.h"
#include "cohort/report/summary.h"

namespace cohort::report {
namespace {

std::string state_label(RunState state, bool is_live) {
  if (is_live && state == RunState::kOpen) return "<span class=\"state open\">training</span>";
  switch (state) {
    case RunState::kDone:
      return "<span class=\"state done\">finished</span>";
    case RunState::kInterrupted:
      return "<span class=\"state interrupted\">interrupted</span>";
    case RunState::kFailed:
      return "<span class=\"state failed\">failed</span>";
    case RunState::kOpen:
      break;
  }
  return "<span class=\"state open\">no end recorded</span>";
}

/// "after 1,720 steps, 2 workers" breaks at its commas only.
std::string keep_phrases_whole(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ' ' && i > 0 && text[i - 1] != ',') out += "\u00a0";
    else out += text[i];
  }
  return out;
}

std::string header(const RunRecord& run, const Summary& summary, bool is_live) {
  const Headline line = headline(run, summary);
  std::string out = "<header>\n<div class=\"top\"><span class=\"brand\">Cohort</span>" + state_label(run.state, is_live);
  if (run.start && !run.start->started.empty()) out += "<span>started " + escape_html(run.start->started) + "</span>";
  out += "</div>\n<h1><span class=\"what\">" + escape_html(line.what) + "</span> " + escape_html(line.result);
  if (!line.rest.empty()) out += " <span class=\"rest\">" + escape_html(keep_phrases_whole(line.rest)) + "</span>";
  out += "</h1>\n";
  if (const std::string notice = is_live && run.state == RunState::kOpen ? "" : state_notice(run, summary); !notice.empty())
    out += "<p class=\"banner\">" + escape_html(notice) + "</p>\n";
  return out + tiles(key_figures(run, summary)) + "</header>\n";
}

/// `begin`: the tag of the main part.
std::string main_part(const RunRecord& run, const Summary& summary, const std::string& begin, bool is_live) {
  return begin + "\n" + header(run, summary, is_live) + curves_section(run, summary) + async_section(run) + noise_section(run) +
         sample_section(run) + confusion_section(run) + mistakes_section(run) + step_time_section(run, summary) +
         forecast_section(run, summary) + pipeline_section(run, summary) + parts_section(run, summary) + workers_section(run, summary) +
         configuration_section(run, summary) +
         "<footer>Written by <code>cohort report</code> from metrics.jsonl and config.toml.</footer>\n</main>\n";
}

}  // namespace

std::string report_page(const RunRecord& run) {
  const Summary summary = summarize(run);
  return document(headline(run, summary).text(), main_part(run, summary, "<main>", /*is_live=*/false));
}

std::string live_page(const RunRecord& run, int64_t version, const std::string& script) {
  const Summary summary = summarize(run);
  return document(headline(run, summary).text(), main_part(run, summary, concat("<main data-version=\"", version, "\">"), /*is_live=*/true),
                  script);
}

}  // namespace cohort::report

namespace cohort::report {

std::string write_report(const std::string& run) {
  const std::string path = run + "/report.html";
  write_file_atomically(path, report::report_page(report::read_run(run)));
  return path;
}

}  // namespace cohort::report
