#include "cohort/report/study_csv.h"

#include <algorithm>

#include "cohort/base/text.h"

namespace cohort::page {
namespace {

std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char character : text) {
    if (character == '"') out += '"';
    out += character;
  }
  return out + "\"";
}

/// Infinite ends of intervals as "inf".
std::string number(double value) { return number_field("", value).exact; }

std::vector<std::string> field_names(const std::vector<StudyChart>& panels) {
  std::vector<std::string> names;
  for (const StudyChart& panel : panels) {
    for (const PlotSeries& series : panel.series) {
      for (const Mark& mark : series.marks) {
        for (const Field& field : mark.fields) {
          if (std::find(names.begin(), names.end(), field.name) == names.end()) names.push_back(field.name);
        }
      }
    }
  }
  return names;
}

}  // namespace

std::string plot_csv(const std::vector<StudyChart>& panels) {
  const std::vector<std::string> names = field_names(panels);
  std::string out = "panel,series,x,y,low,high";
  for (const std::string& name : names) out += "," + cell(name);
  out += "\n";
  for (const StudyChart& panel : panels) {
    for (const PlotSeries& series : panel.series) {
      for (const Mark& mark : series.marks) {
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
      }
    }
  }
  return out;
}

}  // namespace cohort::page
