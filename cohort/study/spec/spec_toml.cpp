// Writes a spec as TOML. Values that all batch sizes share are written once; others go into lists parallel to batch_sizes (trials, steps)
// or into [batch.N.search].

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/base/text/toml_text.h"
#include "cohort/study/spec/spec.h"

namespace cohort::study {

namespace {

template <typename Values, typename Text>
std::string list(const Values& values, const Text& text) {
  std::vector<std::string> parts;
  for (const auto& value : values) parts.push_back(text(value));
  return "[" + join(parts, ", ") + "]";
}

/// One number where all batch sizes have the same, else a list parallel to batch_sizes.
std::string per_batch(const std::vector<BatchSpec>& batches, int64_t BatchSpec::* member) {
  const bool same =
      std::all_of(batches.begin(), batches.end(), [&](const BatchSpec& batch) { return batch.*member == batches[0].*member; });
  if (same) return std::to_string(batches[0].*member);
  return list(batches, [&](const BatchSpec& batch) { return std::to_string(batch.*member); });
}

const Hyperparameter* find(const SearchSpace& space, const std::string& name) {
  const auto found = std::find_if(space.begin(), space.end(), [&](const Hyperparameter& parameter) { return parameter.name == name; });
  return found == space.end() ? nullptr : &*found;
}

/// The entry of the study's own [search]: that of the first batch size, where every batch size has one.
const Hyperparameter* shared(const StudySpec& spec, const std::string& name) {
  for (const BatchSpec& batch : spec.batches)
    if (!find(batch.space, name)) return nullptr;
  return spec.batches.empty() ? nullptr : find(spec.batches[0].space, name);
}

std::string search_text(const StudySpec& spec) {
  std::string out = "\n[search]\n";
  for (const std::string& name : trial_parameters())
    if (const Hyperparameter* parameter = shared(spec, name)) out += name + " = " + to_toml(*parameter) + "\n";
  for (const BatchSpec& batch : spec.batches) {
    std::string own;
    for (const Hyperparameter& parameter : batch.space) {
      const Hyperparameter* base = shared(spec, parameter.name);
      if (!base || to_toml(*base) != to_toml(parameter)) own += parameter.name + " = " + to_toml(parameter) + "\n";
    }
    if (!own.empty()) out += concat("\n[batch.", batch.batch_size, ".search]\n", own);
  }
  return out;
}

std::string workload_text(const StudySpec& spec) {
  std::string out = "[workload]\nname = " + toml_string(spec.name) + "\ndata = " + toml_string(spec.data) + "\n";
  if (!spec.synthetic.empty()) out += "synthetic = " + toml_string(spec.synthetic) + "\n";
  if (!spec.model.empty()) out += "model = " + toml_string(spec.model) + "\n";
  return concat(out, "optimizer = ", toml_string(spec.optimizer), "\ndataset_name = ", toml_string(spec.dataset_name),
                "\nmodel_name = ", toml_string(spec.model_name), "\ncontext = ", spec.context,
                spec.image_size == 0 ? "" : concat("\nimage_size = ", spec.image_size), "\nval_samples = ", spec.val_samples,
                "\ntrain_samples = ", spec.train_samples, "\nweight_decay = ", number_text(spec.weight_decay),
                spec.label_smoothing_over == "all" ? "" : "\nlabel_smoothing_over = " + toml_string(spec.label_smoothing_over), "\n");
}

std::string study_text(const StudySpec& spec) {
  const std::string sizes = list(spec.batches, [](const BatchSpec& batch) { return std::to_string(batch.batch_size); });
  return concat("\n[study]\ngoals = ", list(spec.goals, [](const GoalSpec& goal) { return toml_string(goal.text()); }),
                "\nbatch_sizes = ", sizes, "\ntrials = ", per_batch(spec.batches, &BatchSpec::num_trials),
                "\nsteps = ", per_batch(spec.batches, &BatchSpec::train_steps), "\nseed = ", spec.seed,
                "\nevaluation_ratio = ", number_text(spec.evaluation_ratio), "\nevaluate_train = ", spec.evaluate_train ? "true" : "false",
                "\nevaluate_test = ", spec.evaluate_test ? "true" : "false", "\nmax_draws_factor = ", spec.max_draws_factor,
                "\ndiverged_above = ", number_text(spec.diverged_above), "\n");
}

}  // namespace

std::string to_toml(const Hyperparameter& parameter) {
  if (parameter.type == Hyperparameter::Type::kDiscrete) {
    if (parameter.values.size() == 1) return number_text(parameter.values[0]);
    return "{ values = " + list(parameter.values, number_text) + " }";
  }
  return concat("{ type = \"", name_of(parameter.type), "\", scale = \"", name_of(parameter.scale),
                "\", min = ", number_text(parameter.minimum), ", max = ", number_text(parameter.maximum), " }");
}

std::string to_toml(const StudySpec& spec) {
  std::string out;
  if (!spec.unknown.empty()) {
    out = "unknown = [\n";
    for (const std::string& sentence : spec.unknown) out += "  " + toml_string(sentence) + ",\n";
    out += "]\n\n";
  }
  out += workload_text(spec) + study_text(spec) + search_text(spec);
  return concat(out, "\n[censoring]\nenabled = ", spec.censor ? "true" : "false", "\nmargin = ", number_text(spec.censor_margin),
                "\nhalving = ", spec.halving ? "true" : "false", "\n\n[machine]\nmax_batch_per_worker = ", spec.max_batch_per_worker,
                "\nmax_microbatch = ", spec.max_microbatch, "\n");
}

}  // namespace cohort::study
