// A page with what one compression did, layer by layer, and both models beside one another.

#include "cohort/base/fail.h"
#include "cohort/compress/compression_result.h"
#include "cohort/report/draw/page.h"

namespace cohort {
namespace {

using report::escape_html;

report::Table models_table(const CompressionResult& result, bool regression) {
  report::Table table{.columns = {{""}, {result.original_name, true}, {result.compressed_name, true}, {""}}, .rows = {}};
  for (const CompressionRow& row : result_rows(result, regression))
    table.rows.push_back({escape_html(row.name), escape_html(row.original), escape_html(row.compressed), escape_html(row.change)});
  return table;
}

report::Table layers_table(const CompressionResult& result) {
  report::Table table{.columns = {{"layer"}, {"bytes", true}, {"then", true}, {cost_heading(result), true}, {"done"}}, .rows = {}};
  for (const CompressionRow& row : layer_rows(result))
    table.rows.push_back(
        {escape_html(row.name), escape_html(row.original), escape_html(row.compressed), escape_html(row.change), escape_html(row.done)});
  return table;
}

}  // namespace

std::string result_page(const CompressionResult& result, bool regression, const std::string& headline) {
  std::string body = concat("<header>\n<div class=\"top\"><span class=\"brand\">Cohort</span><span>compression</span></div>\n<h1>",
                            escape_html(result.method), "</h1>\n<p>", escape_html(headline), "</p>\n</header>\n<main>\n");
  body += report::section("models", "Both models", "Seconds are medians of a forward, the two in turn.",
                          report::table(models_table(result, regression), "both models"));
  if (!result.layers.empty())
    body += report::section("layers", "Layer by layer",
                            cost_heading(result) == "loss" ? "loss: how much it rises where this layer alone is compressed." : "",
                            report::table(layers_table(result), "layer by layer"));
  return report::study_document(result.method, body + "</main>\n");
}

}  // namespace cohort
