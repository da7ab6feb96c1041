#include "bench/program/bench_verb.h"

#include <cmath>
#include <cstdio>

#include "bench/program/published/forecast/forecast.h"
#include "bench/program/published/forecast/public_runs.h"
#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"

namespace cohort {
namespace {

void print_row(const std::string& file, const ForecastRow& row) {
  print_line(Json{{"event", "forecast"},
                  {"file", file},
                  {"row", row.row},
                  {"predicted_seconds", row.predicted_seconds},
                  {"measured_seconds", row.measured_seconds},
                  {"interval", {row.low_seconds, row.high_seconds}},
                  {"fitted", row.was_fitted}});
}

std::vector<double> memory_errors(const std::vector<MeasuredMemory>& rows) {
  std::vector<double> errors;
  for (const MeasuredMemory& row : rows) errors.push_back(std::abs(row.predicted_bytes / row.measured_bytes - 1));
  return errors;
}

void print_memory(const std::string& file, const std::vector<MeasuredMemory>& rows, bool json) {
  for (const MeasuredMemory& row : rows)
    if (json)
      print_line(Json{{"event", "memory_forecast"},
                      {"file", file},
                      {"model", row.model},
                      {"tp", row.tp},
                      {"predicted_bytes", row.predicted_bytes},
                      {"measured_bytes", row.measured_bytes}},
                 true);
  if (json || rows.empty()) return;
  const std::vector<double> errors = memory_errors(rows);
  std::printf("  Memory of a rank's layers, %zu shapes, nothing fitted. Error: median %.1f %%, 90 %% of them below %.1f %%.\n", rows.size(),
              100 * quantile(errors, 0.5), 100 * quantile(errors, 0.9));
}

void print_errors(const std::string& file, const ForecastErrors& errors, size_t num_rows, const std::vector<MeasuredMemory>& memory,
                  bool json) {
  if (json) {
    Json line = {{"event", "forecasts"},
                 {"file", file},
                 {"rows", errors.num_rows},
                 {"median_error", errors.median_error},
                 {"p90_error", errors.p90_error},
                 {"mean_error", errors.mean_error},
                 {"bias", errors.bias},
                 {"covered", errors.covered},
                 {"groups", errors.num_choices},
                 {"mean_regret", errors.mean_regret},
                 {"max_regret", errors.max_regret}};
    if (!memory.empty()) {
      const std::vector<double> wrong = memory_errors(memory);
      line.update(
          {{"memory_rows", wrong.size()}, {"memory_median_error", quantile(wrong, 0.5)}, {"memory_p90_error", quantile(wrong, 0.9)}});
    }
    print_line(line, true);
    return;
  }
  std::printf("%s: %lld of %zu rows were not fitted. Error: median %.1f %%, 90 %% of them below %.1f %%, mean %.1f %%, bias %+.1f %%;\n",
              file.c_str(), static_cast<long long>(errors.num_rows), num_rows, 100 * errors.median_error, 100 * errors.p90_error,
              100 * errors.mean_error, 100 * errors.bias);
  std::printf("  %.1f %% took a time inside of the interval that is to hold 90 %%.", 100 * errors.covered);
  if (errors.num_choices > 0)
    std::printf(" Choosing by forecast costs %.1f %% on average, %.1f %% at most, over the best measured plan of %lld trainings.",
                100 * errors.mean_regret, 100 * errors.max_regret, static_cast<long long>(errors.num_choices));
  std::printf("\n");
}

}  // namespace

std::vector<VerbOption> bench_forecast_options() {
  return {{"fit", "FRACTION",
           "forecast: rows of each machine that its constants are fitted to, 0 to 0.5 (default 0.5); errors are of the others"}};
}

int bench_forecast_verb(const Arguments& arguments) {
  const std::string format = arguments.option("format", ""), text = arguments.option("fit", "0.5");
  const std::vector<std::string> files(arguments.positional.begin() + 1, arguments.positional.end());
  if (format.empty() || files.empty())
    fail(ErrorCode::kBadInput, "bench forecast needs --format vtrain or llm-foundry or sailor, and files of that format (sailor: folders)");
  const auto fraction = parse_number(text);
  if (!fraction || *fraction < 0 || *fraction > 0.5)
    fail(ErrorCode::kBadInput, "--fit ", text, ": expected a fraction from 0 to 0.5; what is fitted proves nothing");
  for (const std::string& file : files) {
    const std::vector<ForecastRow> rows = forecast_public_runs(read_public_runs(format, file), *fraction);
    if (arguments.config.json)
      for (const ForecastRow& row : rows) print_row(file, row);
    const std::vector<MeasuredMemory> memory = format == "sailor" ? forecast_sailor_memory(file) : std::vector<MeasuredMemory>{};
    if (arguments.config.json) print_memory(file, memory, true);
    print_errors(file, errors_of(rows), rows.size(), memory, arguments.config.json);
    if (!arguments.config.json) print_memory(file, memory, false);
  }
  std::fflush(stdout);
  return 0;
}

}  // namespace cohort
