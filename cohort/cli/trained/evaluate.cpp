#include <cmath>
#include <cstdio>

#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/cli/options/verb.h"
#include "cohort/cli/trained/trained.h"
#include "cohort/data/source/source.h"
#include "cohort/infer/evaluate_trained.h"
#include "cohort/infer/trained_file.h"

namespace cohort {
namespace {

void print_json(const Evaluation& found, const std::vector<ClassResult>& classes, const Json& last) {
  if (!classes.empty()) {
    Json names = Json::array();
    for (const ClassResult& each : classes) names.push_back(printable(each.name));
    print_line(Json{{"event", "confusion"}, {"classes", names}, {"counts", found.confusion}});
    for (const ClassResult& each : classes)
      print_line(Json{{"event", "class"},
                      {"class", printable(each.name)},
                      {"samples", each.samples},
                      {"right", each.right},
                      {"taken_for", each.taken_for}});
  }
  print_line(last);
}

int run_evaluate(const Arguments& arguments) {
  const TrainedFile file = open_trained(arguments, "evaluate");
  DataDescription trained;
  const DataSet data = data_of_trained(arguments, file, trained);
  check_same_kind(trained, data);
  const std::string split = arguments.option("split", "val");
  const std::shared_ptr<const DataSource> part = with_training_normalisation(trained, part_of(data, split));
  const auto [found, has_own_loss] = evaluate_trained(file, trained, *part, arguments.config.threads, arguments.config.metrics);
  const std::vector<ClassResult> classes = class_results(found, trained.class_names);
  if (arguments.config.json) {
    Json last{{"event", "evaluate"},
              {"split", split},
              {"samples", part->num_samples()},
              {"loss", finite_json(found.loss)},
              {"error", finite_json(found.error)},
              {"step", file.step()},
              {"model", file.config().model},
              {"data", data.name},
              {"path", file.path()}};
    if (trained.labels) last["precision"] = finite_json(found.precision);
    for (const auto& [name, value] : found.metrics) last["metrics"][name] = finite_json(value);
    print_json(found, classes, last);
    return 0;
  }
  std::printf("%s, step %lld of %s, on %s, split %s: %s samples\n", file.config().model.c_str(), static_cast<long long>(file.step()),
              file.given().c_str(), data.name.c_str(), split.c_str(), with_commas(part->num_samples()).c_str());
  std::printf("loss %.6g", found.loss);
  if (trained.regression && found.has_error()) std::printf(", error %.4g of a deviation of the training's targets", found.error);
  else if (trained.labels && found.has_error())
    std::printf(", error %.4g %% of the labels, average precision %.4g", 100 * found.error, found.precision);
  else if (found.has_error()) std::printf(", error %.4g %%, accuracy %.4g %%", 100 * found.error, 100 * (1 - found.error));
  if (trained.input == DataDescription::Input::kText && !has_own_loss)
    std::printf(", %.4g bits a %s", found.loss / std::log(2.0), trained.vocabulary ? "piece" : "byte");
  for (const auto& [name, value] : found.metrics) std::printf(", %s %.4g", name.c_str(), value);
  std::printf("\n");
  if (classes.empty()) return 0;
  std::printf("\n%s", class_table(classes).c_str());
  if (const std::string table = confusion_table(found, classes); !table.empty()) std::printf("\n%s", table.c_str());
  return 0;
}

}  // namespace

Verb evaluate_verb() {
  return {.name = "evaluate",
          .summary = "Loss, error and confusion matrix of a trained model on any part of its data, or on others.",
          .examples = {"cohort train --model cnn --data fashion-mnist --steps 100 --run runs/x", "cohort evaluate runs/x",
                       "cohort evaluate runs/x --split test --metrics f1,top5-error",
                       "cohort evaluate runs/x --split test --checkpoint best --json",
                       "cohort checkpoint export runs/x --out model.safetensors",
                       "cohort evaluate model.safetensors --data fashion-mnist --split train"},
          .positional_help = "run folder (or one of its checkpoints), or a FILE.safetensors that checkpoint export or compress wrote",
          .settings = {"data", "val-samples", "metrics", "skip-bad", "plugin", "threads", "json"},
          .defaults_from_run = {"data", "val-samples"},
          .most_words = 1,
          .options = {{"split", "PART", "val (the default), train, test, or all: training and validation samples"}, checkpoint_option()},
          .run = run_evaluate};
}

}  // namespace cohort
