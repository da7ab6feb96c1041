// The errors of a model: the confusion matrix, and the images with the most confident wrong predictions.

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/base64.h"
#include "cohort/base/text/text.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/sections.h"

namespace cohort::report {
namespace {

constexpr size_t kMaxHeatMapClasses = 40;
constexpr size_t kMaxListedClasses = 60;
constexpr size_t kMaxListedErrors = 3;
constexpr double kDarkCell = 0.75;  // From this strength on the blue of a right cell needs light text; the orange never does.

double row_sum(const ConfusionRecord& confusion, size_t row) {
  double sum = 0;
  for (const int64_t count : confusion.counts[row]) sum += static_cast<double>(count);
  return sum;
}

std::string cell(const ConfusionRecord& confusion, size_t row, size_t column, double sum) {
  const int64_t count = confusion.counts[row][column];
  const bool is_right = row == column;
  if (count == 0) return element("td", {{"class", is_right ? "right zero" : "zero"}}, is_right ? "0" : "\u00b7");
  const double share = static_cast<double>(count) / sum;
  const double strength = is_right ? 0.1 + 0.8 * share : 0.8 * std::sqrt(share);
  std::string css = is_right ? "right" : "";
  if (is_right && strength >= kDarkCell) css += " dark";
  return element(
      "td",
      {{"class", css},
       {"style", "--a:" + coordinate(strength, 2)},
       {"title", concat(confusion.classes[row], is_right ? " recognized: " : " taken for ",
                        is_right ? "" : confusion.classes[column] + ": ", with_commas(count), " of ", with_commas(std::llround(sum)))}},
      with_commas(count));
}

std::string heat_map(const ConfusionRecord& confusion) {
  std::string head = "<th class=\"corner\" scope=\"col\">true\u00a0\u2193 predicted\u00a0\u2192</th>", body;
  for (const std::string& name : confusion.classes) head += element("th", {{"scope", "col"}}, "<span>" + escape_html(name) + "</span>");
  for (size_t row = 0; row < confusion.classes.size(); ++row) {
    const double sum = row_sum(confusion, row);
    body += "<tr>" + element("th", {{"scope", "row"}, {"title", confusion.classes[row]}}, escape_html(confusion.classes[row]));
    for (size_t column = 0; column < confusion.classes.size(); ++column) body += cell(confusion, row, column, sum);
    body += "</tr>\n";
  }
  return scroll_box("Confusion matrix", "<table class=\"heat\"><thead><tr>" + head + "</tr></thead>\n<tbody>" + body + "</tbody></table>");
}

/// The recall of each class, the worst first.
std::string recall_list(const ConfusionRecord& confusion) {
  std::vector<std::pair<double, size_t>> classes;
  for (size_t row = 0; row < confusion.classes.size(); ++row) {
    const double sum = row_sum(confusion, row);
    if (sum > 0) classes.push_back({static_cast<double>(confusion.counts[row][row]) / sum, row});
  }
  std::sort(classes.begin(), classes.end());
  const size_t num_shown = std::min(classes.size(), kMaxListedClasses);
  std::string out;
  for (size_t i = 0; i < num_shown; ++i) {
    const auto& [share, row] = classes[i];
    out += element("span", {{"class", "name"}, {"title", confusion.classes[row]}}, escape_html(confusion.classes[row])) +
           "<svg aria-hidden=\"true\"><rect class=\"track\" width=\"100%\" height=\"100%\"/><rect class=\"bar\" width=\"" +
           coordinate(100 * share, 2) + "%\" height=\"100%\"/></svg><span class=\"number\">" + percent_text(share) + "</span>\n";
  }
  std::string heading = "<h3>Accuracy of each class</h3>";
  if (num_shown < classes.size()) heading = concat("<h3>The ", num_shown, " hardest classes</h3>");
  return "<div>" + heading + "<div class=\"recall\">" + out + "</div></div>\n";
}

/// "Shirt taken for T-shirt (132), ...".
std::string worst_errors(const ConfusionRecord& confusion) {
  struct Mistake {
    int64_t count;
    size_t row, column;
  };
  std::vector<Mistake> errors;
  for (size_t row = 0; row < confusion.classes.size(); ++row) {
    for (size_t column = 0; column < confusion.classes.size(); ++column) {
      if (row != column && confusion.counts[row][column] > 0) errors.push_back({confusion.counts[row][column], row, column});
    }
  }
  if (errors.empty()) return "No sample was taken for another class.";
  const size_t num_shown = std::min(errors.size(), kMaxListedErrors);
  std::partial_sort(
      errors.begin(), errors.begin() + static_cast<std::ptrdiff_t>(num_shown), errors.end(),
      [](const Mistake& a, const Mistake& b) { return std::tie(b.count, a.row, a.column) < std::tie(a.count, b.row, b.column); });
  std::vector<std::string> parts;
  for (size_t i = 0; i < num_shown; ++i)
    parts.push_back(
        concat(confusion.classes[errors[i].row], " for ", confusion.classes[errors[i].column], " (", with_commas(errors[i].count), ")"));
  return "Most often mistaken: " + join(parts, ", ") + ".";
}

constexpr size_t kMaxPictures = 24;
constexpr size_t kMaxBase64Bytes = size_t{64} * 1024;  // Per image; those that Cohort writes have a quarter of it.
constexpr std::string_view kPngSignature("\x89PNG\r\n\x1a\n", 8);

/// Only small PNG images are embedded, whatever the file contains.
bool is_small_png(const std::string& text) {
  if (text.size() > kMaxBase64Bytes) return false;
  const std::optional<std::string> bytes = from_base64(text);
  return bytes && bytes->starts_with(kPngSignature);
}

std::string figure(const MistakeRecord& mistake) {
  const std::string sentence = concat(mistake.label, " taken for ", mistake.predicted);
  return element(
      "figure", {},
      element("img", {{"alt", sentence}, {"src", "data:image/png;base64," + mistake.png}}) +
          element("figcaption", {},
                  element("b", {}, escape_html(mistake.label)) + " taken for " + element("b", {}, escape_html(mistake.predicted)) +
                      element("small", {}, concat(percent_text(mistake.probability, 1), ", sample ", with_commas(mistake.sample)))));
}

}  // namespace

std::string confusion_section(const RunRecord& run) {
  if (!run.confusion || run.confusion->classes.empty()) return "";
  const ConfusionRecord& confusion = *run.confusion;
  const bool has_map = confusion.classes.size() <= kMaxHeatMapClasses;
  const std::string content =
      has_map ? element("div", {{"class", "confusion"}}, heat_map(confusion) + recall_list(confusion)) : recall_list(confusion);
  return section("confusion", "Confusion matrix",
                 concat("Validation samples at step ", with_commas(confusion.step), ". ", worst_errors(confusion)), content + "\n");
}

std::string mistakes_section(const RunRecord& run) {
  if (!run.mistakes) return "";
  std::string content;
  size_t count = 0;
  for (const MistakeRecord& mistake : run.mistakes->pictures) {
    if (count == kMaxPictures || !is_small_png(mistake.png)) continue;
    content += figure(mistake) + "\n";
    ++count;
  }
  if (count == 0) return "";
  return section("mistakes", "Confident errors",
                 concat("The ", count == 1 ? "validation picture" : concat(count, " validation pictures"), " of step ",
                        with_commas(run.mistakes->step), " with the most confident wrong predictions."),
                 element("div", {{"class", "mistakes"}}, content) + "\n");
}

}  // namespace cohort::report
