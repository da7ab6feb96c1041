// Opens data by name: `NAME[:ARGUMENT]`. New kinds of data are added to the table, or registered by a program or plug-in.

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/text.h"
#include "cohort/data/images/mnist.h"
#include "cohort/data/registered_data.h"
#include "cohort/data/source/description_json.h"
#include "cohort/data/source/openers.h"
#include "cohort/data/source/source.h"
#include "cohort/data/tensors/tensor_data.h"
#include "cohort/data/text_source.h"
#include "cohort/job/config.h"

namespace cohort {
namespace {

struct Opener {
  const char* name;
  const char* argument;  // As help shows it.
  bool argument_is_optional;
  DataSet (*open)(const std::string& argument, const DataOptions& options);
};

constexpr Opener kOpeners[] = {
    {"fashion-mnist", "DIR", true, open_fashion_mnist},
    {"mnist", "DIR", false, open_mnist},
    {"cifar10", "DIR", false, open_cifar10},
    {"text", "FILE-OR-DIR[,vocabulary=FILE]", false, open_text},
    {"folder", "DIR", false, open_picture_folder},
    {"csv", "FILE,target=COLUMN", false, open_csv},
    {"npy", "DIR", false, open_npy},
    {"safetensors", "FILE", false, open_safetensors},
    {"synthetic", "SHAPE", false, open_synthetic},
};

std::string form_of(const Opener& opener) {
  const std::string argument = concat(":", opener.argument);
  return opener.name + (opener.argument_is_optional ? "[" + argument + "]" : argument);
}

/// The likely specification for an existing path.
std::string likely_form(const std::string& path) {
  std::error_code ignored;
  const std::string ending = std::filesystem::path(path).extension().string();
  if (ending == ".csv" || ending == ".tsv") return concat("csv:", path, ",target=COLUMN");
  if (ending == ".safetensors") return concat("safetensors:", path);
  bool has_folders = false, has_arrays = false;
  for (const auto& entry : std::filesystem::directory_iterator(path, ignored)) {
    has_folders = has_folders || entry.is_directory(ignored);
    has_arrays = has_arrays || entry.path().extension() == ".npy";
  }
  if (has_arrays) return concat("npy:", path);
  if (has_folders) return concat("folder:", path, " (class folders of pictures), or for text text:", path);
  return concat("for text text:", path);
}

}  // namespace

DataSet open_data(const std::string& specification, const DataOptions& options) {
  const size_t colon = specification.find(':');
  const std::string name = specification.substr(0, colon);
  const std::string argument = colon == std::string::npos ? "" : specification.substr(colon + 1);
  std::vector<std::string> names, forms;
  for (const Opener& opener : kOpeners) {
    if (name != opener.name) {
      names.emplace_back(opener.name);
      forms.push_back(form_of(opener));
      continue;
    }
    if (argument.empty() && !(opener.argument_is_optional && colon == std::string::npos)) {
      fail(ErrorCode::kBadInput, "data '", specification, "': expected ", form_of(opener));
    }
    DataSet data = opener.open(argument, options);
    data.name = specification;
    return data;
  }
  for (const auto& [known, entry] : registered_data()) {
    names.push_back(known);
    forms.push_back(known + "[:ARGUMENT]");
    if (name == known) return open_registered(entry, specification, argument, options);
  }
  std::error_code ignored;
  if (!specification.empty() && std::filesystem::exists(specification, ignored))
    fail(ErrorCode::kBadInput, "data '", specification, "' is the name of a file or folder without what is in it; give ",
         likely_form(specification), "; all kinds: ", join(forms, ", "));
  fail(ErrorCode::kBadInput, "unknown data '", name, "'", did_you_mean(name, names), ": expected ", join(forms, ", "));
}

DataSet open_data(const Config& config) {
  constexpr int kMostThreads = 8;
  DataOptions options{.context = config.context,
                      .image_size = config.image_size,
                      .validation_samples = config.val_samples,
                      .seed = config.seed,
                      .skip_bad = config.skip_bad,
                      .threads = std::clamp(num_usable_cores() / std::max(1, config.workers), 1, kMostThreads)};
  const std::string path = (std::filesystem::path(config.run) / kDataFile).string();
  std::error_code ignored;
  if (config.resume && !config.run.empty() && std::filesystem::exists(path, ignored))
    options.kept = std::make_shared<const DataDescription>(read_description(path));
  return open_data(config.data, options);
}

bool is_built_in_data(const std::string& name) {
  return std::any_of(std::begin(kOpeners), std::end(kOpeners), [&](const Opener& opener) { return name == opener.name; });
}

}  // namespace cohort
