#include "cohort/base/layout.h"

#include <map>
#include <vector>

#include "cohort/base/error.h"
#include "cohort/base/json.h"
#include "cohort/base/text.h"

namespace cohort {
namespace {

const std::vector<std::string> kKeys = {"dp", "pp", "tp", "zero", "sync", "schedule", "microbatches", "recompute", "compress", "split"};

int integer_value(const std::string& key, const std::string& value, int64_t minimum, int64_t maximum) {
  const auto number = parse_integer(value);
  if (!number || *number < minimum || *number > maximum)
    fail(ErrorCode::kBadInput, "--layout: ", key, "=", value, " is not a whole number from ", minimum, " to ", maximum);
  return static_cast<int>(*number);
}

// One row for each thing that a layout can ask for and this version cannot do.
void refuse_what_is_not_built(const Layout& layout) {
  const auto refuse = [](bool asked, const std::string& what, const std::string& instead) {
    if (asked) fail(ErrorCode::kBadInput, "--layout: ", what, " is not built yet; ", instead);
  };
  refuse(layout.pp > 1, concat("pp=", layout.pp, " (pipeline stages)"), "use dp=N, data parallelism");
  refuse(layout.tp > 1, concat("tp=", layout.tp, " (tensor parallelism)"), "use dp=N, data parallelism");
  refuse(layout.sync != "step", concat("sync=", layout.sync), "use sync=step, where ranks agree after every step");
  refuse(layout.zero > 0 && layout.compress != "none", concat("zero=", layout.zero, " with compress=", layout.compress),
         "use zero=0 with compression, or compress=none");
  refuse(layout.recompute != "none", concat("recompute=", layout.recompute), "use recompute=none, or a smaller batch with --accumulate");
  refuse(layout.microbatches > 1, concat("microbatches=", layout.microbatches), "use --accumulate N, which divides each rank's batch");
}

}  // namespace

Layout parse_layout(const std::string& text, int workers) {
  Layout layout;
  if (text == "auto" || text.empty()) {
    layout.dp = workers > 0 ? workers : 1;
    return layout;
  }
  bool size_given = text == "single";
  if (text != "single") {
    if (text.size() > 5 && text.ends_with(".json"))
      fail(ErrorCode::kBadInput, "--layout ", text, ": reading a layout from a file is not built yet; use auto, single or dp=N");
    for (const std::string& part : split(text, ',')) {
      const size_t equals = part.find('=');
      const std::string key = trim(part.substr(0, equals));
      if (equals == std::string::npos)
        fail(ErrorCode::kBadInput, "--layout: '", part, "' is not KEY=VALUE; a layout is auto, single, or for example dp=2");
      const std::string value = trim(part.substr(equals + 1));
      if (key == "dp") layout.dp = integer_value(key, value, 1, 1 << 20), size_given = true;
      else if (key == "pp") layout.pp = integer_value(key, value, 1, 1 << 20), size_given = true;
      else if (key == "tp") layout.tp = integer_value(key, value, 1, 1 << 20), size_given = true;
      else if (key == "zero") layout.zero = integer_value(key, value, 0, 3);
      else if (key == "microbatches") layout.microbatches = integer_value(key, value, 1, 1 << 20);
      else if (key == "sync") layout.sync = value;
      else if (key == "schedule") layout.schedule = value;
      else if (key == "recompute") layout.recompute = value;
      else if (key == "compress") layout.compress = value;
      else if (key == "split") layout.split = value;
      else fail(ErrorCode::kBadInput, "--layout: unknown key '", key, "'", did_you_mean(key, kKeys), "; keys: ", join(kKeys, " "));
    }
  }
  refuse_what_is_not_built(layout);
  if (!size_given && workers > 0) layout.dp = workers;
  if (workers > 0 && layout.num_ranks() != workers)
    fail(ErrorCode::kBadInput, "--layout ", text, " needs ", layout.num_ranks(), " ranks (dp x pp x tp) and there are ", workers,
         "; give --workers ", layout.num_ranks(), " or a layout of ", workers, " ranks");
  return layout;
}

std::string to_text(const Layout& layout) {
  std::vector<std::string> parts;
  if (layout.dp > 1) parts.push_back(concat("dp=", layout.dp));
  if (layout.pp > 1) parts.push_back(concat("pp=", layout.pp));
  if (layout.tp > 1) parts.push_back(concat("tp=", layout.tp));
  if (layout.zero > 0) parts.push_back(concat("zero=", layout.zero));
  if (layout.compress != "none") parts.push_back("compress=" + layout.compress);
  return parts.empty() ? "single" : join(parts, ",");
}

Json to_json(const Layout& layout) {
  return Json{{"dp", layout.dp},
              {"pp", layout.pp},
              {"tp", layout.tp},
              {"zero", layout.zero},
              {"sync", layout.sync},
              {"schedule", layout.schedule},
              {"microbatches", layout.microbatches},
              {"recompute", layout.recompute},
              {"compress", layout.compress},
              {"split", layout.split}};
}

}  // namespace cohort
