#include "bench/program/bench_verb.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "bench/program/published/published_instances.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"

namespace cohort {
namespace {

struct Format {
  const char* name;
  std::vector<std::string> reads;  ///< Options that the format reads; others are refused.
  InstanceAnswer (*solve)(const std::string& path, const InstanceOptions& options);
  std::vector<InstanceAnswer> (*solve_rows)(const std::string& path, const InstanceOptions& options) = nullptr;  ///< For tables.
};

const std::vector<Format>& formats() {
  static const std::vector<Format> all = {
      {"dnn-partitioning", {"devices", "memory", "search-seed"}, solve_dnn_partitioning},
      {"pipedream", {"devices", "memory", "bandwidth", "machines"}, solve_pipedream},
      {"piper", {"devices", "memory", "bandwidth", "batch"}, solve_piper},
      {"cohort", {"devices", "memory", "bandwidth", "batch"}, solve_cohort_instance},
      {"zero-bubble", {"memory"}, nullptr, solve_zero_bubble},
  };
  return all;
}

const Format& format_of(const Arguments& arguments) {
  const std::string name = arguments.option("format", "");
  std::vector<std::string> names;
  for (const Format& format : formats()) {
    if (format.name == name) return format;
    names.emplace_back(format.name);
  }
  if (name.empty()) fail(ErrorCode::kBadInput, "bench plan: say what the files are: --format ", join(names, ", "));
  fail(ErrorCode::kBadInput, "bench plan: --format ", printable(name), ": expected one of ", join(names, ", "), did_you_mean(name, names));
}

void check_reads(const Format& format, const Arguments& arguments) {
  for (const char* name : {"devices", "memory", "bandwidth", "machines", "batch", "search-seed"})
    if (arguments.options.contains(name) && std::find(format.reads.begin(), format.reads.end(), name) == format.reads.end())
      fail(ErrorCode::kBadInput, "bench plan: --format ", format.name, " does not read --", name, "; it reads --",
           join(format.reads, ", --"));
}

double positive(const std::string& option, const std::string& text) {
  const auto value = parse_number(text);
  if (!value || !std::isfinite(*value) || *value <= 0)
    fail(ErrorCode::kBadInput, "--", option, " ", printable(text), ": expected a number above 0");
  return *value;
}

int whole(const std::string& option, const std::string& text, int64_t most) {
  const auto value = parse_integer(text);
  if (!value || *value < 1 || *value > most)
    fail(ErrorCode::kBadInput, "--", option, " ", printable(text), ": expected a whole number from 1 to ", most);
  return static_cast<int>(*value);
}

InstanceOptions options_of(const Arguments& arguments) {
  constexpr int kMostDevices = 4096;
  InstanceOptions options;
  if (const std::string text = arguments.option("devices", ""); !text.empty()) options.devices = whole("devices", text, kMostDevices);
  if (const std::string text = arguments.option("batch", ""); !text.empty()) options.batch = whole("batch", text, 1'000'000);
  if (const std::string text = arguments.option("memory", ""); !text.empty()) options.memory_bytes = positive("memory", text);
  options.search_seed = static_cast<uint64_t>(arguments.integer_option("search-seed", 1, 0, 1'000'000'000));
  for (const std::string& text : split(arguments.option("bandwidth", ""), ','))
    options.bytes_per_second.push_back(positive("bandwidth", text));
  for (const std::string& text : split(arguments.option("machines", ""), 'x'))
    options.machines.push_back(whole("machines", text, kMostDevices));
  return options;
}

void print(const std::string& file, const InstanceAnswer& answer, bool json) {
  if (json) {
    print_line(Json{{"event", "instance"},
                    {"file", file},
                    {"objective", answer.objective},
                    {"lower_bound", answer.lower_bound},
                    {"bound_by", answer.bound_by},
                    {"optimal", answer.optimal},
                    {"search_seconds", answer.search_seconds},
                    {"plan", answer.plan}},
               true);
  } else {
    const double gap = answer.objective > 0 ? 1 - answer.lower_bound / answer.objective : 0;
    std::printf("%s: %.8g, %s (bound %.8g by %s), found in %s\n", printable(file).c_str(), answer.objective,
                answer.optimal ? "optimal"
                : gap < 1      ? concat("at most ", std::round(1e4 * gap) / 100, " % above the best").c_str()
                               : "not proven",
                answer.lower_bound, answer.bound_by.c_str(), human_seconds(answer.search_seconds).c_str());
  }
  std::fflush(stdout);
}

void print_schedules(const Json& schedules) {
  std::printf("  %-24s %10s %10s %10s %10s\n", "schedule", "bubble", "longest", "memory", "found in");
  for (const Json& schedule : schedules)
    std::printf("  %-24s %10.4f %10.4f %10.3g %10s\n", schedule["name"].get<std::string>().c_str(), schedule["bubble"].get<double>(),
                schedule["bubble_of_longest_stage"].get<double>(), schedule["peak"].get<double>(),
                human_seconds(schedule["seconds"].get<double>()).c_str());
}

}  // namespace

std::vector<VerbOption> bench_plan_options() {
  return {{"format", "NAME",
           "what the files are. plan: dnn-partitioning, pipedream, piper, cohort or zero-bubble; forecast: vtrain, llm-foundry or sailor "
           "(folders)"},
          {"devices", "N", "plan: devices (default: the file's)"},
          {"memory", "BYTES", "plan: memory of a device (default: the file's); of zero-bubble in activations of one micro-batch"},
          {"bandwidth", "X[,X]", "plan: bytes a second of a link, of each level of machines; not for dnn-partitioning"},
          {"machines", "N[xN]", "plan: machines of each level, inner first; of pipedream alone"},
          {"search-seed", "N", "plan: what the search draws from, of dnn-partitioning alone (default: 1)"}};
}

int bench_plan_verb(const Arguments& arguments) {
  const Format& format = format_of(arguments);
  check_reads(format, arguments);
  const InstanceOptions options = options_of(arguments);
  const std::vector<std::string> files(arguments.positional.begin() + 1, arguments.positional.end());
  if (files.empty()) fail(ErrorCode::kBadInput, "bench plan: name at least one file");
  for (const std::string& file : files) {
    if (format.solve != nullptr) {
      print(file, format.solve(file, options), arguments.config.json);
      continue;
    }
    const std::vector<InstanceAnswer> answers = format.solve_rows(file, options);
    for (size_t row = 0; row < answers.size(); ++row) {
      print(concat(file, "#", row), answers[row], arguments.config.json);
      if (!arguments.config.json) print_schedules(answers[row].plan["schedules"]);
    }
  }
  return 0;
}

}  // namespace cohort
