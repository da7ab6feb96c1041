// Data by name: `NAME[:ARGUMENT]`. A new kind of data is a line in the table.

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/data/images/cifar10.h"
#include "cohort/data/images/mnist.h"
#include "cohort/data/source.h"
#include "cohort/data/synthetic.h"
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
    {"text", "FILE-OR-DIR", false, open_text},
    {"synthetic", "SHAPE", false, open_synthetic},
};

std::string form_of(const Opener& opener) {
  const std::string argument = concat(":", opener.argument);
  return opener.name + (opener.argument_is_optional ? "[" + argument + "]" : argument);
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
  std::error_code ignored;
  if (!specification.empty() && std::filesystem::exists(specification, ignored))
    fail(ErrorCode::kBadInput, "data '", specification,
         "' is the name of a file or folder without what is in it; for text give text:", specification, "; all kinds: ", join(forms, ", "));
  fail(ErrorCode::kBadInput, "unknown data '", name, "'", did_you_mean(name, names), ": expected ", join(forms, ", "));
}

DataSet open_data(const Config& config) {
  return open_data(
      config.data,
      {.context = config.context, .image_size = config.image_size, .validation_samples = config.val_samples, .seed = config.seed});
}

}  // namespace cohort
