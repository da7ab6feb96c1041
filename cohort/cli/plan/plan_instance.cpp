// `cohort plan --instance FILE`: an instance that has layers, devices, link and objective in one file (docs/formats/instance.md).

#include "cohort/cli/plan/plan.h"

#include <cstdio>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/plan/search/cohort_instance.h"

namespace cohort {
namespace {

void print_instance_json(const InstanceAnswer& answer) {
  print_line(Json{{"event", "plan"},
                  {"objective_seconds", answer.objective},
                  {"lower_bound_seconds", answer.lower_bound},
                  {"bound_by", answer.bound_by},
                  {"optimal", answer.optimal},
                  {"search_seconds", answer.search_seconds},
                  {"stages", answer.plan["stages"]}});
}

/// "0-3, 7"
std::string runs_of(const Json& numbers) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end].get<int>() == numbers[end - 1].get<int>() + 1) ++end;
    runs.push_back(end - i > 1 ? concat(numbers[i].get<int>(), "-", numbers[end - 1].get<int>()) : concat(numbers[i].get<int>()));
    i = end;
  }
  return join(runs, ", ");
}

void print_instance_table(const InstanceAnswer& answer) {
  std::printf("%s, %s; no plan is below %s (%s); found in %s\n\n", human_seconds(answer.objective).c_str(),
              answer.optimal ? "optimal" : "not proved optimal", human_seconds(answer.lower_bound).c_str(), answer.bound_by.c_str(),
              human_seconds(answer.search_seconds).c_str());
  std::printf("stage        load  devices     layers\n");
  int number = 0;
  for (const Json& stage : answer.plan["stages"])
    std::printf("%5d  %10s  %-10s  %s\n", number++, human_seconds(stage["load_seconds"].get<double>()).c_str(),
                runs_of(stage["devices"]).c_str(), runs_of(stage["layers"]).c_str());
}

}  // namespace

int plan_instance(const Arguments& arguments) {
  for (const auto& [name, value] : arguments.options)
    if (name != "instance")
      fail(ErrorCode::kBadInput, "--", name, " is for a plan from a profile and a cluster; an --instance says all itself");
  for (const std::string& name : arguments.given)
    if (name != "json")
      fail(ErrorCode::kBadInput, "--", name, " is for a plan from a profile and a cluster; an --instance says all itself");
  const InstanceAnswer answer = solve_cohort_instance(arguments.option("instance", ""), {});
  arguments.config.json ? print_instance_json(answer) : print_instance_table(answer);
  return 0;
}

}  // namespace cohort
