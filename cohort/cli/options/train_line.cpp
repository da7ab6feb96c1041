#include "cohort/cli/options/train_line.h"

#include <algorithm>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/data/model/model_options.h"
#include "cohort/job/option_rules.h"
#include "cohort/plan/profile/analytic_profile.h"

namespace cohort {
namespace {

/// Model, data, context and image size as typed, or as the profile was measured (plan_machine.cpp writes its source).
struct Workload {
  std::string model, data, context, image_size, vocabulary;
};

std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const size_t from = text.find(begin);
  if (from == std::string::npos) return "";
  const size_t start = from + begin.size();
  return text.substr(start, text.find(end, start) - start);
}

Workload workload_of(const Arguments& arguments, const ModelProfile& profile) {
  const Config& config = arguments.config;
  Workload out;
  if (arguments.was_given("model")) {
    out.model = config.model;
    if (arguments.was_given("data")) out.data = config.data;
    if (arguments.was_given("context")) out.context = std::to_string(config.context);
    if (config.image_size > 0) out.image_size = std::to_string(config.image_size);
  } else if (profile.source.starts_with("measured on this machine: --model ")) {
    out.model = between(profile.source, "--model ", " --data ");
    out.data = between(profile.source, " --data ", " --context ");
    if (is_text_data(out.data) == true) out.context = between(profile.source, " --context ", " ");
    out.image_size = between(profile.source, " --image-size ", " ");
  } else {
    const std::vector<std::string> known = analytic_models();
    if (std::find(known.begin(), known.end(), profile.model.substr(0, profile.model.find(':'))) != known.end()) out.model = profile.model;
  }
  if (out.model.empty()) return out;
  ModelSpecification model = parse_model(out.model);
  const size_t before = model.values.size();
  if (const auto context = model.values.extract("context"); !context.empty()) out.context = context.mapped();
  if (const auto vocabulary = model.values.extract("vocabulary"); !vocabulary.empty()) out.vocabulary = vocabulary.mapped();
  if (model.values.size() == before) return out;
  std::vector<std::string> pairs;
  for (const auto& [key, value] : model.values) pairs.push_back(concat(key, "=", value));
  out.model = pairs.empty() ? model.name : concat(model.name, ":", join(pairs, ","));
  return out;
}

}  // namespace

std::string train_line(const Arguments& arguments, const ModelProfile& profile, const TrainLine& what) {
  const Config& config = arguments.config;
  const Workload workload = workload_of(arguments, profile);
  std::string line = "cohort train";
  const auto add = [&](const std::string& name, const std::string& value) {
    const std::string option = concat("--", name, " ");
    const bool is_over = what.options.starts_with(option) || what.options.find(" " + option) != std::string::npos;
    if (!value.empty() && !is_over) line += concat(" ", option, value);
  };
  std::vector<std::string> behind;
  if (config.study.empty()) {
    add("model", workload.model.empty() ? "MODEL" : shell_quoted(workload.model));
    add("data", workload.data.empty() ? "DATA" : shell_quoted(workload.data));
    if (workload.model.empty()) behind.push_back(concat("MODEL is the model whose layers '", profile.model, "' describes"));
    if (workload.data.empty()) behind.emplace_back("DATA is what you train on: text:FILE, fashion-mnist, ... (cohort train -h)");
    if (!workload.vocabulary.empty() && workload.vocabulary != "256" && workload.data.find(",vocabulary=") == std::string::npos)
      behind.push_back(concat("the vocabulary of ", workload.vocabulary, " is the data's to say: text is read as 256 bytes"));
  } else {
    add("study", shell_quoted(config.study));
  }
  if (what.num_ranks > 1 || config.workers > 0) add("workers", std::to_string(what.num_ranks));
  add("global-batch", std::to_string(what.global_batch));
  for (const char* name : {"optimizer", "precision", "weights", "bucket-bytes"}) {
    if (!arguments.was_given(name) || (what.acts && !what.acts(name))) continue;
    if (!config.study.empty() && name == std::string("optimizer")) continue;
    add(name, plain_value(*find_setting(name), config));
  }
  if (config.study.empty()) add("context", workload.context);
  add("image-size", workload.image_size);
  if (config.memory_limit > 0) add("memory-limit", std::to_string(config.memory_limit));
  if (!what.options.empty()) line += " " + what.options;
  if (!what.one_host)
    behind.push_back(concat("several hosts: start the ranks with a launcher, one for each device, as in `mpirun -n ", what.num_ranks,
                            " --hostfile HOSTS cohort train ...`"));
  for (const std::string& sentence : behind) line += "\n# " + sentence;
  return line;
}

}  // namespace cohort
