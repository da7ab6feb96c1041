#include "cohort/job/layout.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json_fields.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/job/refusals.h"
#include "cohort/job/specs/devices.h"
#include "cohort/job/specs/sync_mode.h"

namespace cohort {
namespace {

const std::vector<std::string> kLayoutKeys = {"dp",       "pp",           "tp",         "zero",      "sync",
                                              "schedule", "microbatches", "accumulate", "precision", "recompute",
                                              "shares",   "compress",     "split",      "order",     "sequence"};
constexpr const char* kPlanFormat = "cohort-plan";
constexpr int kMostRanks = 1 << 20, kMostLayers = 1 << 20;

int integer_value(const std::string& key, const std::string& value, int64_t minimum, int64_t maximum) {
  const auto number = parse_integer(value, minimum, maximum);
  if (!number)
    fail(ErrorCode::kBadInput, name_settings("--layout: "), key, "=", value, " is not a whole number from ", minimum, " to ", maximum);
  return static_cast<int>(*number);
}

std::string choice(const std::string& key, const std::string& value, const std::vector<std::string>& allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) == allowed.end())
    fail(ErrorCode::kBadInput, name_settings("--layout: "), key, "=", value, did_you_mean(value, allowed), "; ", key,
         " is one of: ", join(allowed, " "));
  return value;
}

bool is_recompute_word(const std::string& value) { return value == "none" || value == "all" || value == "auto"; }

/// First and last layer of each run in "0-5/9"; the numbers rise.
std::vector<std::pair<int64_t, int64_t>> layer_runs(const std::string& value) {
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (const std::string& part : split(value, '/')) {
    const auto [from, to] = split_once(part, '-');
    const auto first = parse_integer(from, runs.empty() ? 0 : runs.back().second + 1, kMostLayers);
    const auto last = first ? parse_integer(to.value_or(from), *first, kMostLayers) : std::nullopt;
    if (!last)
      fail(ErrorCode::kBadInput, name_settings("--layout: recompute="), value,
           ": expected none, all, auto, or rising numbers of layers from 0, such as 0-5/9");
    runs.emplace_back(*first, *last);
  }
  return runs;
}

std::string recompute_value(const std::string& value) {
  if (!is_recompute_word(value)) layer_runs(value);  // Throws for invalid ones.
  return value;
}

std::string split_value(const std::string& value) {
  if (value == "auto" || value == "even" || value == "branches") return value;
  int64_t before = 0;
  for (const std::string& part : split(value, '/')) {
    const auto cut = parse_integer(part);
    if (!cut || *cut <= before)
      fail(ErrorCode::kBadInput, name_settings("--layout: split="), value,
           ": expected auto, even, branches, or rising layer numbers above 0 such as 3/7");
    before = *cut;
  }
  return value;
}

/// Returns whether the key is dp, which otherwise follows from the number of ranks.
bool set_key(Layout& layout, const std::string& key, const std::string& value) {
  if (key == "dp") layout.dp = integer_value(key, value, 1, kMostRanks);
  else if (key == "pp") layout.pp = integer_value(key, value, 1, kMostRanks);
  else if (key == "tp") layout.tp = integer_value(key, value, 1, kMostRanks);
  else if (key == "zero") layout.zero = integer_value(key, value, 0, 3);
  else if (key == "microbatches") layout.microbatches = integer_value(key, value, 1, 4096);
  else if (key == "sync") layout.sync = parse_sync(to_text(parse_sync(value)));  // Rounded as a resumed run will read it.
  else if (key == "schedule") layout.schedule = value;
  else if (key == "recompute") layout.recompute = recompute_value(value);
  else if (key == "accumulate") layout.accumulate = integer_value(key, value, 1, 1 << 20);
  else if (key == "precision") layout.precision = choice(key, value, {"fp32", "bf16", "fp16"});
  else if (key == "shares") layout.shares = (parse_shares(value), value);
  else if (key == "compress") layout.compress = value;
  else if (key == "split") layout.split = split_value(value);
  else if (key == "order") layout.order = choice(key, value, {"dp-pp-tp", "dp-tp-pp", "pp-dp-tp", "pp-tp-dp", "tp-dp-pp", "tp-pp-dp"});
  else if (key == "sequence") layout.sequence = integer_value(key, value, 0, 1) == 1;
  else
    fail(ErrorCode::kBadInput, name_settings("--layout: unknown key '"), key, "'", did_you_mean(key, kLayoutKeys),
         "; keys: ", join(kLayoutKeys, " "));
  return key == "dp";
}

bool parse_pairs(Layout& layout, const std::string& text) {
  bool dp_given = false;
  std::set<std::string> given;
  for (const std::string& part : split(text, ',')) {
    const auto [name, value] = split_once(part, '=');
    if (!value)
      fail(ErrorCode::kBadInput, name_settings("--layout: '"), part,
           "' is not KEY=VALUE; a layout is auto, single, FILE.json, or for example dp=2");
    const std::string key = trim(name);
    dp_given |= set_key(layout, key, trim(*value));
    if (!given.insert(key).second) fail(ErrorCode::kBadInput, name_settings("--layout "), text, ": ", key, " is given twice");
  }
  return dp_given;
}

[[noreturn]] void bad_file(const std::string& where, const std::string& what) {
  fail(ErrorCode::kBadInput, name_settings("--layout "), where, ": ", what);
}

LayoutStage parse_stage(const std::string& where, const Json& json, size_t index) {
  const std::string name = concat(name_settings("--layout "), where, ": stages[", index, "]");
  const JsonFields fields(json, name);
  LayoutStage stage{{}, static_cast<int>(index), 1};
  for (const auto& [key, value] : json.items()) {
    if (key == "layers") stage.layers = fields.texts("layers", kMostLayers);
    else if (key == "worker") stage.worker = static_cast<int>(fields.natural("worker", kMostRanks));
    else if (key == "dp") stage.dp = static_cast<int>(fields.natural("dp", kMostRanks));
    else fields.refuse("unknown key '", key, "'; keys: layers worker dp");
  }
  if (stage.dp < 1) fields.refuse("expected 1 or more in \"dp\", found ", stage.dp);
  if (stage.layers.empty()) fields.refuse("has no layers");
  return stage;
}

/// Checks that workers are 0, 1, ... without gaps, each with one degree.
void check_stages(Layout& layout, const std::string& where) {
  std::map<int, int> degrees;
  for (size_t i = 0; i < layout.stages.size(); ++i) {
    const LayoutStage& stage = layout.stages[i];
    const auto [known, is_new] = degrees.emplace(stage.worker, stage.dp);
    if (!is_new && known->second != stage.dp)
      bad_file(where, concat("stages[", i, "].dp is ", stage.dp, ", but worker ", stage.worker, " has ", known->second));
  }
  const int workers = static_cast<int>(degrees.size());
  if (degrees.rbegin()->first != workers - 1) bad_file(where, concat("the stages' workers are not 0 to ", workers - 1, " without gaps"));
  if (layout.pp != 1 && layout.pp != workers) bad_file(where, concat("pp is ", layout.pp, ", but its stages have ", workers, " workers"));
  layout.pp = workers;
  const bool equal = std::all_of(degrees.begin(), degrees.end(), [&](const auto& entry) { return entry.second == degrees[0]; });
  if (equal && degrees[0] == 1) {
    for (LayoutStage& stage : layout.stages) stage.dp = layout.dp;
  } else {
    if (layout.dp != 1 && !(equal && degrees[0] == layout.dp))
      bad_file(where, concat("dp is ", layout.dp, ", but its stages have degrees of their own; leave one of the two out"));
    if (equal) layout.dp = degrees[0];
  }
}

bool parse_object(Layout& layout, const Json& json, const std::string& where) {
  if (!json.is_object()) bad_file(where, "a layout is a JSON object");
  bool dp_given = false;
  for (const auto& [key, value] : json.items()) {
    if (key == "stages") {
      if (!value.is_array() || value.empty()) bad_file(where, "stages is not a list of stages");
      for (size_t i = 0; i < value.size(); ++i) layout.stages.push_back(parse_stage(where, value[i], i));
      dp_given = true;
    } else if (value.is_string()) {
      dp_given |= set_key(layout, key, value.get<std::string>());
    } else if (value.is_number_integer()) {
      dp_given |= set_key(layout, key, std::to_string(value.get<int64_t>()));
    } else if (value.is_boolean()) {
      dp_given |= set_key(layout, key, value.get<bool>() ? "1" : "0");
    } else {
      bad_file(where, concat("the value of '", key, "' is neither a string nor a whole number"));
    }
  }
  if (!layout.stages.empty()) check_stages(layout, where);
  return dp_given;
}

/// Parses a layout, or the layout of a plan (docs/formats/plan.md).
bool parse_json(Layout& layout, const std::string& text, const std::string& where) {
  const Json json = parse_strict_ordered_json(text, {.path = where});
  if (!json.is_object() || !json.contains("format")) return parse_object(layout, json, where);
  if (json["format"] != kPlanFormat || !json.contains("layout"))
    bad_file(where, concat("its format is ", json["format"].dump(), "; expected a layout, or a plan with \"format\": \"", kPlanFormat,
                           "\" and a \"layout\""));
  return parse_object(layout, json["layout"], where);
}

}  // namespace

bool is_layout_file(const std::string& text) {
  // A schedule's file may end KEY=VALUE pairs too.
  const bool has_key = std::find(kLayoutKeys.begin(), kLayoutKeys.end(), trim(text.substr(0, text.find('=')))) != kLayoutKeys.end();
  return text.size() > 5 && text.ends_with(".json") && !has_key;
}

std::vector<bool> recomputed_layers(const std::string& recompute, size_t num_layers) {
  std::vector<bool> layers(num_layers, recompute == "all");
  if (is_recompute_word(recompute)) return layers;
  for (const auto& [first, last] : layer_runs(recompute)) {
    if (last >= std::ssize(layers))
      fail(ErrorCode::kBadInput, name_settings("--layout: recompute="), recompute, " names layer ", last,
           ", and the model has layers 0 to ", num_layers - 1);
    std::fill(layers.begin() + first, layers.begin() + last + 1, true);
  }
  return layers;
}

std::string recompute_text(const std::vector<bool>& layers) {
  std::vector<std::string> runs;
  for (size_t first = 0; first < layers.size(); ++first) {
    if (!layers[first]) continue;
    size_t last = first;
    while (last + 1 < layers.size() && layers[last + 1]) ++last;
    runs.push_back(last > first ? concat(first, "-", last) : concat(first));
    if (first == 0 && last + 1 == layers.size()) return "all";
    first = last;
  }
  return runs.empty() ? "none" : join(runs, "/");
}

std::vector<int> Layout::data_degrees() const {
  std::vector<int> degrees(static_cast<size_t>(pp), dp);
  for (const LayoutStage& stage : stages) degrees.at(static_cast<size_t>(stage.worker)) = stage.dp;
  return degrees;
}

bool Layout::is_even() const {
  const std::vector<int> degrees = data_degrees();
  return std::all_of(degrees.begin(), degrees.end(), [&](int degree) { return degree == degrees.front(); });
}

int num_pipelines(const Layout& layout) { return layout.is_even() ? layout.data_degrees().front() : 1; }

int Layout::num_ranks() const {
  int64_t ranks = 0;
  for (const int degree : data_degrees()) ranks += static_cast<int64_t>(degree) * tp;
  if (ranks > kMostRanks) fail(ErrorCode::kBadInput, name_settings("--layout: "), ranks, " ranks are more than ", kMostRanks);
  return static_cast<int>(ranks);
}

Layout parse_layout(const std::string& text, int workers) {
  Layout layout;
  if (text == "auto")
    fail(ErrorCode::kBadInput, name_settings("--layout auto is chosen by `cohort train`, before ranks are started; name a layout here"));
  if (text == "dp" || text.empty()) {
    layout.dp = workers > 0 ? workers : 1;
    return layout;
  }
  if (printable(text) != text)
    fail(ErrorCode::kBadInput, name_settings("--layout "), printable(text), ": some bytes of it (shown as ?) are not UTF-8");
  bool dp_given = true;
  if (text.front() == '{') dp_given = parse_json(layout, text, "{...}");
  else if (is_layout_file(text)) dp_given = parse_json(layout, read_small_file(text, size_t{1} << 24), text);
  else if (text != "single") dp_given = parse_pairs(layout, text);
  if (!dp_given && workers % (static_cast<int64_t>(layout.pp) * layout.tp) == 0) layout.dp = std::max(1, workers / (layout.pp * layout.tp));
  // Combinations that depend on the configuration (--virtual) are checked with it.
  Layout alone = layout;
  if (!is_step(layout.sync) && !is_local(layout.sync)) alone.sync = {};
  check_refusals({.config = Config(), .layout = alone});
  if (workers > 0 && layout.num_ranks() != workers)
    fail(ErrorCode::kBadInput, name_settings("--layout "), text, " needs ", layout.num_ranks(), " ranks (dp x pp x tp) and there are ",
         workers, name_settings("; give --workers "), layout.num_ranks(), " or a layout of ", workers, " ranks");
  return layout;
}

std::string to_text(const Layout& layout) {
  if (!layout.stages.empty()) return to_json(layout).dump();
  std::vector<std::string> parts;
  if (layout.dp > 1) parts.push_back(concat("dp=", layout.dp));
  if (layout.pp > 1) {
    parts.push_back(concat("pp=", layout.pp));
    parts.push_back("schedule=" + layout.schedule);
    parts.push_back(concat("microbatches=", layout.microbatches));
    if (layout.split != "auto") parts.push_back("split=" + layout.split);
  }
  if (layout.tp > 1) parts.push_back(concat("tp=", layout.tp));
  if (layout.sequence) parts.push_back("sequence=1");
  if (layout.zero > 0) parts.push_back(concat("zero=", layout.zero));
  if (!is_step(layout.sync)) parts.push_back(concat("sync=", layout.sync));
  if (layout.accumulate > 0) parts.push_back(concat("accumulate=", layout.accumulate));
  if (!layout.precision.empty()) parts.push_back("precision=" + layout.precision);
  if (!layout.shares.empty()) parts.push_back("shares=" + layout.shares);
  if (layout.recompute != "none") parts.push_back("recompute=" + layout.recompute);
  if (layout.compress != "none") parts.push_back("compress=" + layout.compress);
  if (layout.order != "dp-pp-tp") parts.push_back("order=" + layout.order);
  return parts.empty() ? "single" : join(parts, ",");
}

Json to_json(const Layout& layout) {
  Json json{{"dp", layout.dp},
            {"pp", layout.pp},
            {"tp", layout.tp},
            {"zero", layout.zero},
            {"sync", to_text(layout.sync)},
            {"schedule", layout.schedule},
            {"microbatches", layout.microbatches},
            {"recompute", layout.recompute},
            {"compress", layout.compress},
            {"split", layout.split},
            {"order", layout.order},
            {"sequence", layout.sequence ? 1 : 0}};
  if (layout.accumulate > 0) json["accumulate"] = layout.accumulate;
  if (!layout.precision.empty()) json["precision"] = layout.precision;
  if (!layout.shares.empty()) json["shares"] = layout.shares;
  if (!layout.stages.empty()) {
    Json stages = Json::array();
    for (const LayoutStage& stage : layout.stages) stages.push_back({{"layers", stage.layers}, {"worker", stage.worker}, {"dp", stage.dp}});
    json["stages"] = std::move(stages);
  }
  return json;
}

}  // namespace cohort
