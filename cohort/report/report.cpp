#include "cohort/report/report.h"

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/text.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/draw/page.h"
#include "cohort/report/run_reader.h"
#include "cohort/report/sections.h"

namespace cohort::report {
namespace {

std::string state_label(RunState state, bool is_live) {
  static constexpr const char* kClasses[] = {"open", "done", "interrupted", "failed"};
  const char* const text = is_live && state == RunState::kOpen ? "training" : state_text(state);
  return element("span", {{"class", concat("state ", kClasses[static_cast<int>(state)])}}, text);
}

/// Lets "after 1,720 steps, 2 workers" break at its commas only.
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

/// `begin` is the opening tag.
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

std::string write_report(const std::string& run) {
  const std::string path = run + "/report.html";
  write_file_atomically(path, report::report_page(report::read_run(run)));
  return path;
}

std::string sample_section(const RunRecord& run) {
  if (!run.sample) return "";
  const SampleRecord& sample = *run.sample;
  // The recorded text may include the prompt or not.
  const std::string& text = sample.text;
  const std::string rest = !sample.prompt.empty() && text.starts_with(sample.prompt) ? text.substr(sample.prompt.size()) : text;
  const std::string intro =
      "Generated at step " + with_commas(sample.step) + (sample.prompt.empty() ? "." : "; the coloured words are the prompt.");
  return section("sample", "Generated text", intro,
                 "<pre class=\"sample\">" + (sample.prompt.empty() ? "" : "<b>" + escape_html(sample.prompt) + "</b>") + escape_html(rest) +
                     "</pre>\n");
}

std::string configuration_section(const RunRecord& run, const Summary& summary) {
  std::string content;
  std::vector<std::pair<std::string, std::string>> facts = {{"run folder", run.folder}};
  if (run.start) {
    const StartRecord& start = *run.start;
    const auto add = [&](const char* name, const std::string& value) {
      if (!value.empty()) facts.push_back({name, value});
    };
    add("started", start.started);
    add("host", start.host);
    add("workers", with_commas(start.world_size));
    if (!start.devices.empty()) add("devices", join(start.devices, ", "));
    add("layout", run.layout.empty() ? "single" : run.layout);
    if (start.tensor_parallel) add("tensor parallelism", start.tensor_parallel->sentence);
    if (start.global_batch) add("global batch", count_text(start.global_batch));
    if (summary.planned_steps) add("planned steps", count_text(summary.planned_steps));
    add("Cohort", start.version);
    add("LibTorch", start.torch);
    add("command", start.command);
    add("git commit", start.commit);
    add("reproduce with", start.reproduce_with);
  }
  for (const ChangeRecord& change : run.changes)
    facts.push_back({"changed after step " + with_commas(change.step), change.setting + " " + change.from + " \u2192 " + change.to});
  content += definitions(facts);
  if (run.config.empty()) return section("run", "The run", "", content);
  std::vector<std::pair<std::string, std::string>> values;
  for (const ConfigValue& value : run.config) values.push_back({value.key, value.value});
  return section("run", "The run", "", content) +
         section("configuration", "Configuration", "As merged from the file and the command line.", definitions(values));
}

}  // namespace cohort::report
