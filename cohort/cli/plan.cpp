#include <cstdio>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/verb.h"
#include "cohort/plan/public/public_instance.h"

namespace cohort {
namespace {

void print_json(const InstanceAnswer& answer) {
  std::printf("%s\n", Json{{"event", "plan"},
                           {"objective_seconds", answer.objective},
                           {"lower_bound_seconds", answer.lower_bound},
                           {"bound_by", answer.bound_by},
                           {"optimal", answer.optimal},
                           {"search_seconds", answer.search_seconds},
                           {"stages", answer.plan["stages"]}}
                          .dump()
                          .c_str());
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

void print_table(const InstanceAnswer& answer) {
  std::printf("%s, %s; no plan is below %s (%s); found in %s\n\n", human_seconds(answer.objective).c_str(),
              answer.optimal ? "optimal" : "not proved optimal", human_seconds(answer.lower_bound).c_str(), answer.bound_by.c_str(),
              human_seconds(answer.search_seconds).c_str());
  std::printf("stage        load  devices     layers\n");
  int number = 0;
  for (const Json& stage : answer.plan["stages"])
    std::printf("%5d  %10s  %-10s  %s\n", number++, human_seconds(stage["load_seconds"].get<double>()).c_str(),
                runs_of(stage["devices"]).c_str(), runs_of(stage["layers"]).c_str());
}

int run_plan(const Arguments& arguments) {
  const std::string path = arguments.option("instance", "");
  if (path.empty())
    fail(ErrorCode::kBadInput,
         "plan: give --instance FILE.json; a plan for a model, from a profile and a cluster, is not built yet (where to cut is found by "
         "`cohort train --layout pp=N`)");
  const InstanceAnswer answer = solve_cohort_instance(path, {});
  arguments.config.json ? print_json(answer) : print_table(answer);
  return 0;
}

}  // namespace

Verb plan_verb() {
  return {.name = "plan",
          .summary =
              "Finds the best pipeline for layers, devices and a link that a file describes, with what no plan can be below. Plans from a "
              "model's profile and a cluster are not built yet.",
          .examples = {"cohort plan --instance examples/instances/branches.json",
                       "cohort plan --instance examples/instances/branches.json --json"},
          .settings = {"json"},
          .options = {{"instance", "FILE.json", "Layers, edges, devices, link, objective (docs/formats/instance.md)"}},
          .run = run_plan};
}

}  // namespace cohort
