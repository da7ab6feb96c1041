#include "cohort/base/text/text.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/sections.h"

namespace cohort::report {

std::string sample_section(const RunRecord& run) {
  if (!run.sample) return "";
  const SampleRecord& sample = *run.sample;
  // A writer may give the text with or without its prompt.
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
    add("the same once more", start.reproduce_with);
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
