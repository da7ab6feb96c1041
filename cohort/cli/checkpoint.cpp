#include <algorithm>
#include <cstdio>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/checkpoint/names.h"
#include "cohort/checkpoint/retention.h"
#include "cohort/checkpoint/tools.h"
#include "cohort/cli/options/output.h"
#include "cohort/cli/options/verb.h"
#include "cohort/cli/trained/trained.h"
#include "cohort/infer/trained_file.h"

namespace cohort {
namespace {

/// "64x1x3x3"; "one number" for a scalar.
std::string shape_text(const Json& shape) {
  std::vector<std::string> sizes;
  for (const Json& size : shape) sizes.push_back(size.dump());
  return sizes.empty() ? "one number" : join(sizes, "x");
}

/// Prints the tensors of a checkpoint, a line each, then the other checkpoints beside it and which of them are damaged.
void print_info(const Json& info) {
  const auto bytes_of = [](const Json& line) { return human_bytes(line.value("bytes", int64_t{0})); };
  std::printf("%s: step %lld, %s, %zu tensors in %zu %s\n\n", info.value("path", "").c_str(),
              static_cast<long long>(info.value("step", int64_t{0})), bytes_of(info).c_str(), info.at("tensors").size(),
              info.at("files").size(), info.at("files").size() == 1 ? "file" : "files");
  const auto name_of = [](const Json& tensor) { return printable(tensor.value("name", "")); };  // A file may hold any name.
  size_t longest = 6;
  for (const Json& tensor : info.at("tensors")) longest = std::max(longest, name_of(tensor).size());
  const int width = static_cast<int>(std::min<size_t>(longest, 60));
  std::printf("%-*s  %-5s %-18s %10s  %s\n", width, "tensor", "type", "shape", "size", "pieces");
  for (const Json& tensor : info.at("tensors"))
    std::printf("%-*s  %-5s %-18s %10s  %s\n", width, name_of(tensor).c_str(), tensor.value("dtype", "").c_str(),
                shape_text(tensor.at("shape")).c_str(), bytes_of(tensor).c_str(), tensor.at("pieces").dump().c_str());
  if (info.at("state").is_object() && !info.at("state").empty()) std::printf("\nstate:\n");
  for (const auto& [key, value] : info.at("state").items()) std::printf("  %s: %s\n", printable(key).c_str(), value.dump().c_str());
  std::printf("\ncheckpoints here, the newest first:\n");
  for (const Json& line : info.at("checkpoints"))
    std::printf("  %s: %s\n", line.value("path", "").c_str(),
                line.value("ok", false) ? concat("step ", line.value("step", int64_t{0}), ", ", bytes_of(line)).c_str()
                                        : concat("damaged: ", line.value("error", "")).c_str());
}

int run_checkpoint(const Arguments& arguments) {
  const std::string& action = arguments.action;
  if (action != "info" && action != "verify" && action != "export")
    fail(ErrorCode::kBadInput, "checkpoint: '", action, "' is not an action", did_you_mean(action, {"info", "verify", "export"}),
         "; actions: info verify export");
  if (arguments.positional.size() != 2)
    fail(ErrorCode::kBadInput, "checkpoint ", action, ": give one run folder, checkpoints folder or step folder");
  const std::string& path = arguments.positional[1];
  const int indent = arguments.options.contains("json") ? -1 : 2;
  if (action != "export" && is_exported_file(path))
    fail(ErrorCode::kBadInput, "checkpoint ", action, ": ", path,
         " is a file, and checkpoints are folders of a run; for an exported file use `cohort evaluate ", path, "`");
  if (action == "info") {
    const Json info = checkpoint_info(path);
    if (indent < 0) print_line(info);
    else print_info(info);
    return 0;
  }
  if (action == "verify") {
    const Json result = checkpoint_verify(path);
    std::printf("%s\n", result.dump(indent).c_str());
    return result.value("ok", false) ? 0 : static_cast<int>(ErrorCode::kFailed);
  }
  const std::string out = out_file(arguments, "checkpoint export");
  check_export_name(out);
  check_writable_file(out);
  check_holds_kind(out, "{", 8, "a safetensors file");
  const Checkpoint chosen = open_selected_checkpoint(path, arguments.option("checkpoint", "latest"));
  const ExportResult result = checkpoint_export(
      chosen, out, {.with_aliases = !arguments.options.contains("without-aliases"), .metadata = exported_metadata(chosen)});
  if (arguments.options.contains("json"))
    print_line(Json{{"event", "export"}, {"step", result.step}, {"tensors", result.num_tensors}, {"bytes", result.bytes}, {"out", out}});
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
                       "cohort checkpoint verify runs/x/checkpoints", "cohort checkpoint export runs/x --out model.safetensors",
                       "cohort checkpoint export runs/x --checkpoint best --out best.safetensors"},
          .positional_help = "info|verify|export, then a run folder, a checkpoints folder or a step folder",
          .options = {{"out", "FILE.safetensors", "export: the file to write"},
                      checkpoint_option(),
                      {"without-aliases", "", "export: tied parameters once, under their first name only"},
                      {"json", "", "one line of JSON"}},
          .actions = {{.name = "info", .most_words = 1, .reads = {"json"}},
                      {.name = "verify", .most_words = 1, .reads = {"json"}},
                      {.name = "export", .most_words = 1, .reads = {"out", "checkpoint", "without-aliases", "json"}}},
          .run = run_checkpoint};
}

}  // namespace cohort
