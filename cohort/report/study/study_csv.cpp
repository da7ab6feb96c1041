#include "cohort/report/study/study_csv.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "cohort/base/text/text.h"

namespace cohort::report {
namespace {

constexpr std::string_view kColumns = "panel,series,x,y,low,high";

/// Prefixes text that a spreadsheet would interpret as a formula with an apostrophe, as names may come from untrusted files.
std::string harmless(const std::string& text) {
  const bool is_formula = !text.empty() && std::string_view("=+-@\t\r").find(text.front()) != std::string_view::npos && !parse_number(text);
  return is_formula ? "'" + text : text;
}

std::string cell(const std::string& any_text) {
  const std::string text = harmless(any_text);
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char character : text) {
    if (character == '"') out += '"';
    out += character;
  }
  return out + "\"";
}

/// Infinite ends of intervals become "inf".
std::string number(double value) { return number_field("", value).exact; }

/// The heading of a field's column: its name, made unique (an archive may have a hyperparameter "x").
std::string heading_for(std::string name, const std::vector<std::string>& taken) {
  while (std::find(taken.begin(), taken.end(), name) != taken.end()) name += " of the point";
  return name;
}

template <typename Visit>
void for_each_mark(const std::vector<StudyChart>& panels, const Visit& visit) {
  for (const StudyChart& panel : panels)
    for (const PlotSeries& series : panel.series)
      for (const Mark& mark : series.marks) visit(panel, series, mark);
}

}  // namespace

std::string plot_csv(const std::vector<StudyChart>& panels) {
  std::vector<std::string> names;
  for_each_mark(panels, [&](const StudyChart&, const PlotSeries&, const Mark& mark) {
    for (const Field& field : mark.fields)
      if (std::find(names.begin(), names.end(), field.name) == names.end()) names.push_back(field.name);
  });
  std::vector<std::string> headings = split(std::string(kColumns), ',');
  for (const std::string& name : names) headings.push_back(cell(heading_for(name, headings)));
  std::string out = join(headings, ",") + "\n";
  for_each_mark(panels, [&](const StudyChart& panel, const PlotSeries& series, const Mark& mark) {
    std::vector<std::string> row = {cell(panel.title),
                                    cell(series.name),
                                    number(mark.x),
                                    number(mark.y),
                                    mark.bar ? number(mark.bar->first) : "",
                                    mark.bar ? number(mark.bar->second) : ""};
    for (const std::string& name : names) {
      const auto field = std::find_if(mark.fields.begin(), mark.fields.end(), [&](const Field& one) { return one.name == name; });
      row.push_back(field == mark.fields.end() ? "" : cell(field->exact));
    }
    out += join(row, ",") + "\n";
  });
  return out;
}

const std::vector<std::string>& figure_names() {
  static const std::vector<std::string> names = {"fig1_steps",
                                                 "fig1_repeats",
                                                 "fig2_goals",
                                                 "fig3_models",
                                                 "fig3_studies",
                                                 "fig4_optimizers",
                                                 "fig5_datasets",
                                                 "fig6_data_sizes",
                                                 "fig7_label_smoothing",
                                                 "fig8_parameters",
                                                 "fig9_scatter_steps",
                                                 "fig10_scatter_epochs",
                                                 "fig10_scatter_studies",
                                                 "fig11_budgets",
                                                 "worth_time"};
  return names;
}

bool is_figure_name(const std::string& name) {
  return std::any_of(figure_names().begin(), figure_names().end(), [&](const std::string& figure) {
    if (!name.starts_with(figure)) return false;
    const std::string_view rest = std::string_view(name).substr(figure.size());
    if (rest.empty()) return true;
    const size_t digits = rest.find_first_not_of("0123456789", 1);
    return rest[0] == '-' && digits > 1 && digits != std::string_view::npos && rest[digits] == '-';
  });
}

void remove_old_plots(const std::string& folder, const std::vector<std::string>& kept) {
  std::vector<std::filesystem::path> old;
  std::error_code ignored;  // Files that cannot be read or removed are kept.
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::filesystem::path& path = entry.path();
    if (path.extension() != ".csv" || !is_figure_name(path.stem().string()) || !entry.is_regular_file(ignored)) continue;
    if (std::find(kept.begin(), kept.end(), folder + "/" + path.filename().string()) != kept.end()) continue;
    std::string start(kColumns.size(), ' ');
    std::ifstream(path, std::ios::binary).read(start.data(), static_cast<std::streamsize>(start.size()));
    if (start == kColumns) old.push_back(path);
  }
  for (const std::filesystem::path& path : old) std::filesystem::remove(path, ignored);
}

}  // namespace cohort::report
