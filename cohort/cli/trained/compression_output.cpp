#include "cohort/cli/trained/compress.h"

#include <cmath>
#include <cstdio>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/train/evaluation_text.h"

namespace cohort {

void check_compression_report(const Arguments& arguments) {
  const std::string report = arguments.option("report", "");
  if (report.empty()) return;
  if (!report.ends_with(".html"))
    fail(ErrorCode::kBadInput, "--report ", quote_text(report), ": it is a page; give a name that ends in .html");
  check_writable_file(report);
}

namespace {

constexpr double kMuchError = 0.1;  // Ten points more, of the error of classes.

}  // namespace

void print_compression(const Arguments& arguments, const CompressionResult& result, const DataSource& validation,
                       const std::string& headline) {
  const bool regression = validation.shape().regression;
  if (arguments.options.contains("report"))
    write_file_atomically(arguments.option("report", ""), result_page(result, regression, headline));
  if (!regression && (result.compressed.error - result.original.error > kMuchError || !std::isfinite(result.compressed.loss)))
    log_warning(concat("the error rose by ", static_cast<int64_t>(std::lround(100 * (result.compressed.error - result.original.error))),
                       " points: most of what the model had learnt is lost; compress less, or train with more --steps or a smaller --lr"));
  const Guessing guessing = result.trained ? compare_with_guessing(validation, result.compressed.error) : Guessing();
  if (arguments.config.json) {
    for (const Json& line : layer_lines(result)) print_line(line);
    Json line = result_line(result);
    if (!guessing.sentence.empty()) line["learnt_nothing"] = guessing.sentence;
    print_line(line);
    return;
  }
  std::printf("%s\n\n%s\nwrote %s\n", printable(headline).c_str(), result_table(result, regression).c_str(), result.out.c_str());
  std::fflush(stdout);
  if (!guessing.sentence.empty()) log_warning(guessing.sentence);
}

}  // namespace cohort
