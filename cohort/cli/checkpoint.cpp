#include <cstdio>

#include "cohort/base/fail.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/checkpoint/tools.h"
#include "cohort/cli/verb.h"

namespace cohort {
namespace {

int run_checkpoint(const Arguments& arguments) {
  const std::string& action = arguments.action;
  if (action != "info" && action != "verify" && action != "export")
    fail(ErrorCode::kBadInput, "checkpoint: '", action, "' is not an action", did_you_mean(action, {"info", "verify", "export"}),
         "; actions: info verify export");
  if (arguments.positional.size() != 2)
    fail(ErrorCode::kBadInput, "checkpoint ", action, ": give one run folder, checkpoints folder or step folder");
  const std::string& path = arguments.positional[1];
  const int indent = arguments.options.contains("json") ? -1 : 2;
  if (action == "info") {
    std::printf("%s\n", checkpoint_info(path).dump(indent).c_str());
    return 0;
  }
  if (action == "verify") {
    const Json result = checkpoint_verify(path);
    std::printf("%s\n", result.dump(indent).c_str());
    return result.value("ok", false) ? 0 : static_cast<int>(ErrorCode::kFailed);
  }
  const std::string out = arguments.option("out", "");
  if (out.empty()) fail(ErrorCode::kBadInput, "checkpoint export: --out FILE.safetensors is missing");
  check_writable_file(out);
  const ExportResult result = checkpoint_export(path, out, {.with_aliases = !arguments.options.contains("without-aliases")});
  if (arguments.options.contains("json"))
    std::printf("%s\n",
                Json{{"event", "export"}, {"step", result.step}, {"tensors", result.num_tensors}, {"bytes", result.bytes}, {"out", out}}
                    .dump()
                    .c_str());
  else
    std::printf("wrote %s: step %lld, %lld tensors, %s\n", out.c_str(), static_cast<long long>(result.step),
                static_cast<long long>(result.num_tensors), human_bytes(result.bytes).c_str());
  return 0;
}

}  // namespace

Verb checkpoint_verb() {
  return {.name = "checkpoint",
          .summary = "Reads checkpoints of any layout: info, verify, export to one plain safetensors file.",
          .examples = {"cohort train --model cnn --data fashion-mnist --steps 100 --run runs/x", "cohort checkpoint info runs/x",
                       "cohort checkpoint verify runs/x/checkpoints", "cohort checkpoint export runs/x --out model.safetensors"},
          .positional_help = "info|verify|export, then a run folder, a checkpoints folder or a step folder",
          .options = {{"out", "FILE", "export: the file to write"},
                      {"without-aliases", "", "export: tied parameters once, under their first name only"},
                      {"json", "", "one line of JSON"}},
          .actions = {{.name = "info", .most_words = 1, .reads = {"json"}},
                      {.name = "verify", .most_words = 1, .reads = {"json"}},
                      {.name = "export", .most_words = 1, .reads = {"out", "without-aliases", "json"}}},
          .run = run_checkpoint};
}

}  // namespace cohort
