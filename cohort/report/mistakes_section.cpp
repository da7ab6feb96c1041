// The pictures on which the model was most sure, and wrong, inside of the page.

#include "cohort/base/fail.h"
#include "cohort/base/text/base64.h"
#include "cohort/base/text/text.h"
#include "cohort/report/draw/format.h"
#include "cohort/report/sections.h"

namespace cohort::report {
namespace {

constexpr size_t kMostPictures = 24;
constexpr size_t kMostLetters = size_t{64} * 1024;  // Of one picture; those that Cohort writes have a quarter of them.
constexpr std::string_view kPngSignature("\x89PNG\r\n\x1a\n", 8);

/// Whatever the file says, nothing but a small PNG gets into the page.
bool is_small_png(const std::string& text) {
  if (text.size() > kMostLetters) return false;
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

std::string mistakes_section(const RunRecord& run) {
  if (!run.mistakes) return "";
  std::string content;
  size_t count = 0;
  for (const MistakeRecord& mistake : run.mistakes->pictures) {
    if (count == kMostPictures || !is_small_png(mistake.png)) continue;
    content += figure(mistake) + "\n";
    ++count;
  }
  if (count == 0) return "";
  return section("mistakes", "Surely wrong",
                 concat("The ", count == 1 ? "validation picture" : concat(count, " validation pictures"), " of step ",
                        with_commas(run.mistakes->step), " on which the model was most sure of a class that is not theirs."),
                 element("div", {{"class", "mistakes"}}, content) + "\n");
}

}  // namespace cohort::report
