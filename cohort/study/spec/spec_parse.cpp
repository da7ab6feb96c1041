// Parses a spec from TOML: first a reader of tables whose errors name file, line and key, then the tables of a spec. Checks within one
// table are here, checks between tables in spec.cpp.
#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/base/text/toml_text.h"
#include "cohort/data/source/source.h"
#include "cohort/study/spec/spec.h"

namespace cohort::study {
namespace {

/// One table of a TOML file. All errors have the form "FILE:LINE: [TABLE] KEY: what was expected, what was found".
class TomlTable {
 public:
  /// The root table. Error(kBadInput) for keys that are not in `known`, with the nearest known one.
  TomlTable(std::string file, const toml::table& root, const std::vector<std::string>& known);

  bool has(const std::string& key) const { return table_ && table_->contains(key); }
  std::vector<std::string> keys() const;
  /// An empty table where the key is missing. With an empty `known` any key is valid. `or_else`: other accepted types, for the error
  /// message.
  TomlTable table(const std::string& key, const std::vector<std::string>& known, const std::string& or_else = "") const;
  bool is_number(const std::string& key) const { return has(key) && table_->get(key)->is_number(); }
  bool is_list(const std::string& key) const { return has(key) && table_->get(key)->is_array(); }

  std::string text(const std::string& key, const std::string& fallback) const;
  int64_t whole(const std::string& key, int64_t fallback, int64_t minimum, int64_t maximum) const;
  double number(const std::string& key, double fallback, double minimum, double maximum) const;
  bool flag(const std::string& key, bool fallback) const;
  std::vector<std::string> texts(const std::string& key) const;
  std::vector<int64_t> wholes(const std::string& key, int64_t minimum, int64_t maximum) const;
  std::vector<double> numbers(const std::string& key) const;

  /// Error(kBadInput) at the line of the key, or of the table's heading where there is no such key ("": the heading).
  template <typename... Parts>
  [[noreturn]] void fail_at(const std::string& key, const Parts&... parts) const {
    fail(ErrorCode::kBadInput, place(has(key) ? table_->get(key) : nullptr), title(), has(key) ? printable_key(key) + ": " : "", parts...);
  }
  /// Runs `check` and gives its Error the place of the key.
  template <typename Check>
  void at(const std::string& key, const Check& check) const {
    try {
      check();
    } catch (const Error& error) {
      fail(error.code(), place(has(key) ? table_->get(key) : nullptr), title(), error.what());
    }
  }

 private:
  TomlTable(std::string file, std::string name, const toml::table* table, int64_t line)
      : file_(std::move(file)), name_(std::move(name)), table_(table), line_(line) {}
  static std::string printable_key(const std::string& key);
  void refuse_unknown(const std::vector<std::string>& known) const;
  std::string place(const toml::node* node) const;
  std::string title() const { return name_.empty() ? "" : "[" + name_ + "] "; }
  [[noreturn]] void fail_type(const std::string& key, const toml::node& node, const std::string& expected) const;
  /// The value of a key, or `fallback`; `convert` returns none for invalid nodes.
  template <typename Value, typename Convert>
  Value scalar(const std::string& key, const Value& fallback, const std::string& expected, const Convert& convert) const;
  template <typename Value, typename Convert>
  std::vector<Value> list(const std::string& key, const std::string& expected, const Convert& convert) const;

  std::string file_, name_;
  const toml::table* table_;  // Null where the file has no such table.
  int64_t line_ = 0;          // Line of the heading; 0 where unknown.
};

std::string describe(const toml::node& node) {
  if (const auto* text = node.as_string()) return quote_text(text->get());
  if (const auto* whole = node.as_integer()) return std::to_string(whole->get());
  if (const auto* number = node.as_floating_point()) return number_text(number->get());
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (node.is_array()) return "a list";
  if (node.is_table()) return "a table";
  return "a date or time";
}

std::optional<std::string> text_of(const toml::node& node) { return node.value_exact<std::string>(); }

std::optional<int64_t> whole_of(const toml::node& node, int64_t minimum, int64_t maximum) {
  const std::optional<int64_t> value = node.value_exact<int64_t>();
  return value && *value >= minimum && *value <= maximum ? value : std::nullopt;
}

/// Finite numbers; also converts whole numbers.
std::optional<double> number_of(const toml::node& node, double minimum, double maximum) {
  const auto* whole = node.as_integer();
  const std::optional<double> value = whole ? std::optional(static_cast<double>(whole->get())) : node.value_exact<double>();
  return value && *value >= minimum && *value <= maximum ? value : std::nullopt;
}

bool is_name_character(unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; }
bool is_bare_key(const std::string& key) { return !key.empty() && std::all_of(key.begin(), key.end(), is_name_character); }

TomlTable::TomlTable(std::string file, const toml::table& root, const std::vector<std::string>& known)
    : file_(std::move(file)), table_(&root) {
  refuse_unknown(known);
}

std::string TomlTable::printable_key(const std::string& key) { return is_bare_key(key) && key.size() <= 100 ? key : quote_text(key); }

void TomlTable::refuse_unknown(const std::vector<std::string>& known) const {
  if (!table_) return;
  for (const auto& [key, node] : *table_) {
    const std::string name(key.str());
    if (std::find(known.begin(), known.end(), name) == known.end())
      fail(ErrorCode::kBadInput, place(&node), title(), "unknown key ", printable_key(name), did_you_mean(name, known),
           "; known: ", join(known, " "));
  }
}

std::string TomlTable::place(const toml::node* node) const {
  int64_t line = node ? static_cast<int64_t>(node->source().begin.line) : 0;
  if (line == 0) line = line_;
  return line > 0 ? concat(file_, ":", line, ": ") : file_ + ": ";
}

std::vector<std::string> TomlTable::keys() const {
  std::vector<std::string> names;
  if (table_)
    for (const auto& [key, node] : *table_) names.emplace_back(key.str());
  return names;
}

TomlTable TomlTable::table(const std::string& key, const std::vector<std::string>& known, const std::string& or_else) const {
  const std::string name = (name_.empty() ? "" : name_ + ".") + printable_key(key);
  if (!has(key)) return {file_, name, nullptr, line_};
  const toml::node& node = *table_->get(key);
  const toml::table* table = node.as_table();
  if (!table) fail_type(key, node, (or_else.empty() ? "" : or_else + " or ") + "a table, [" + name + "]");
  const int64_t line = static_cast<int64_t>(table->source().begin.line);
  TomlTable found(file_, name, table, line > 0 ? line : line_);
  if (!known.empty()) found.refuse_unknown(known);
  return found;
}

void TomlTable::fail_type(const std::string& key, const toml::node& node, const std::string& expected) const {
  fail(ErrorCode::kBadInput, place(&node), title(), printable_key(key), ": expected ", expected, ", found ", describe(node));
}

template <typename Value, typename Convert>
Value TomlTable::scalar(const std::string& key, const Value& fallback, const std::string& expected, const Convert& convert) const {
  if (!has(key)) return fallback;
  const toml::node& node = *table_->get(key);
  const std::optional<Value> value = convert(node);
  if (!value) fail_type(key, node, expected);
  return *value;
}

template <typename Value, typename Convert>
std::vector<Value> TomlTable::list(const std::string& key, const std::string& expected, const Convert& convert) const {
  std::vector<Value> values;
  if (!has(key)) return values;
  const toml::node& node = *table_->get(key);
  if (!node.is_array()) fail_type(key, node, expected);
  for (const toml::node& item : *node.as_array()) {
    const std::optional<Value> value = convert(item);
    if (!value) fail_type(key, item, expected);
    values.push_back(*value);
  }
  return values;
}

std::string TomlTable::text(const std::string& key, const std::string& fallback) const {
  return scalar(key, fallback, "a text in quotes", text_of);
}

int64_t TomlTable::whole(const std::string& key, int64_t fallback, int64_t minimum, int64_t maximum) const {
  return scalar(key, fallback, concat("a whole number from ", minimum, " to ", maximum),
                [&](const toml::node& node) { return whole_of(node, minimum, maximum); });
}

double TomlTable::number(const std::string& key, double fallback, double minimum, double maximum) const {
  return scalar(key, fallback, "a number from " + number_text(minimum) + " to " + number_text(maximum),
                [&](const toml::node& node) { return number_of(node, minimum, maximum); });
}

bool TomlTable::flag(const std::string& key, bool fallback) const {
  return scalar(key, fallback, "true or false", [](const toml::node& node) { return node.value_exact<bool>(); });
}

std::vector<std::string> TomlTable::texts(const std::string& key) const {
  return list<std::string>(key, "a list of texts in quotes", text_of);
}

std::vector<int64_t> TomlTable::wholes(const std::string& key, int64_t minimum, int64_t maximum) const {
  return list<int64_t>(key, concat("a list of whole numbers from ", minimum, " to ", maximum),
                       [&](const toml::node& node) { return whole_of(node, minimum, maximum); });
}

std::vector<double> TomlTable::numbers(const std::string& key) const {
  constexpr double kMax = std::numeric_limits<double>::max();
  return list<double>(key, "a list of finite numbers", [](const toml::node& node) { return number_of(node, -kMax, kMax); });
}

// The tables of SPEC.toml.

constexpr size_t kMaxFileBytes = 1 << 20, kMaxBatchSizes = 100, kMaxNameLength = 100;
constexpr int64_t kMaxBatchSize = 1'000'000'000, kMaxTrials = 1'000'000, kMaxSteps = 1'000'000'000'000, kMaxSamples = 2'000'000'000;
constexpr double kLargest = 1e300;

using Type = Hyperparameter::Type;
using Scale = Hyperparameter::Scale;

/// Replaces every run of characters that names may not have by one '-'.
std::string as_name(const std::string& text) {
  std::string name;
  for (const char c : text) {
    if (is_name_character(static_cast<unsigned char>(c))) name += c;
    else if (!name.empty() && name.back() != '-') name += '-';
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  name.resize(std::min(name.size(), kMaxNameLength));
  return name.empty() ? "study" : name;
}

std::string read_name(const TomlTable& table, const std::string& key, const std::string& fallback) {
  const std::string name = table.text(key, fallback);
  if (!is_bare_key(name) || name.size() > kMaxNameLength)
    table.fail_at(key, "expected 1 to ", kMaxNameLength, " letters, digits, - and _, found ", quote_text(name));
  return name;
}

template <typename Value>
Value choose(const TomlTable& table, const std::string& key, const std::map<std::string, Value>& choices, Value fallback) {
  if (!table.has(key)) return fallback;
  const std::string text = table.text(key, "");
  const auto found = choices.find(text);
  if (found != choices.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, value] : choices) names.push_back(name);
  table.fail_at(key, quote_text(text), " is none of: ", join(names, " "), did_you_mean(text, names));
}

void require(const TomlTable& table, const std::string& key) {
  if (!table.has(key)) table.fail_at("", key, " is missing");
}

void read_workload(const TomlTable& table, const std::string& file, StudySpec& spec) {
  require(table, "data");
  require(table, "optimizer");
  spec.name = read_name(table, "name", as_name(std::filesystem::path(file).stem().string()));
  spec.data = table.text("data", "");
  if (spec.data.empty()) table.fail_at("data", "is empty");
  const std::map<std::string, std::string> optimizers = {
      {"sgd", "sgd"}, {"momentum", "momentum"}, {"nesterov", "nesterov"}, {"adam", "adam"}, {"adamw", "adamw"}};
  spec.optimizer = choose<std::string>(table, "optimizer", optimizers, "");
  spec.model = table.text("model", "");
  if (spec.model.empty() && !spec.is_noisy_quadratic()) table.fail_at("model", "a study on ", quote_text(spec.data), " needs a model");
  if (!spec.model.empty() && spec.is_noisy_quadratic())
    table.fail_at("model", "the noisy quadratic model is data and model in one; leave it out");
  if (spec.is_noisy_quadratic() && spec.optimizer.starts_with("adam"))
    table.fail_at("optimizer", "the noisy quadratic model has sgd, momentum and nesterov");
  spec.dataset_name = read_name(table, "dataset_name", as_name(spec.data.substr(0, spec.data.find(':'))));
  spec.model_name = read_name(table, "model_name", as_name(spec.model.empty() ? "quadratic" : spec.model));
  spec.context = table.whole("context", spec.context, 1, 1 << 20);
  spec.val_samples = table.whole("val_samples", spec.val_samples, 0, kMaxSamples);
  spec.train_samples = table.whole("train_samples", spec.train_samples, 0, kMaxSamples);
  spec.image_size = table.whole("image_size", spec.image_size, 0, 4096);
  const auto is_of = [&](const char* kind) { return spec.data.starts_with(kind); };
  if (spec.image_size > 0 &&
      (spec.is_noisy_quadratic() || is_of("synthetic:") || is_of("text:") || is_of("csv:") || is_of("npy:") || is_of("safetensors:")))
    table.fail_at("image_size", "is for image files, and data is ", quote_text(spec.data), "; leave it out");
  spec.weight_decay = table.number("weight_decay", spec.weight_decay, 0, 1e3);
  if (table.has("label_smoothing_over"))
    spec.label_smoothing_over = choose<std::string>(table, "label_smoothing_over", {{"all", "all"}, {"others", "others"}}, "all");
  spec.synthetic = table.text("synthetic", "");
  if (!spec.synthetic.empty()) {
    if (!spec.synthetic.starts_with("synthetic:"))
      table.fail_at("synthetic", "expected synthetic:SHAPE, found ", quote_text(spec.synthetic));
    table.at("synthetic", [&] { open_data(spec.synthetic, {.context = spec.context}); });  // Opening generates no samples, so it is cheap.
  }
}

Hyperparameter read_range(const TomlTable& table, const std::string& name, Type type) {
  for (const char* key : {"min", "max"}) require(table, key);
  if (!table.has("scale") && type == Type::kDouble) table.fail_at("", "scale is missing: linear, log or reverse-log");
  Hyperparameter parameter{name, type, Scale::kLinear, 0, 0, {}};
  const std::map<std::string, Scale> scales = {{"linear", Scale::kLinear}, {"log", Scale::kLog}, {"reverse-log", Scale::kReverseLog}};
  parameter.scale = choose(table, "scale", scales, Scale::kLinear);
  parameter.minimum = table.number("min", 0, -kLargest, kLargest);
  parameter.maximum = table.number("max", 0, -kLargest, kLargest);
  return parameter;
}

Hyperparameter read_choice(const TomlTable& table, const std::string& name) {
  if (table.has("value") == table.has("values")) table.fail_at("", "expected either value or values");
  for (const char* key : {"scale", "min", "max"})
    if (table.has(key)) table.fail_at(key, "does not go with given values");
  Hyperparameter parameter{name, Type::kDiscrete, Scale::kLinear, 0, 0, {}};
  if (table.has("value")) parameter.values = {table.number("value", 0, -kLargest, kLargest)};
  else parameter.values = table.numbers("values");
  return parameter;
}

Hyperparameter read_hyperparameter(const TomlTable& search, const std::string& name) {
  if (search.is_number(name)) return {name, Type::kDiscrete, Scale::kLinear, 0, 0, {search.number(name, 0, -kLargest, kLargest)}};
  const TomlTable table = search.table(name, {"type", "scale", "min", "max", "value", "values"}, "a number");
  const bool given = table.has("value") || table.has("values");
  const Type usual = given ? Type::kDiscrete : is_whole_parameter(name) ? Type::kInteger : Type::kDouble;
  const std::map<std::string, Type> types = {{"double", Type::kDouble}, {"integer", Type::kInteger}, {"discrete", Type::kDiscrete}};
  const Type type = choose(table, "type", types, usual);
  if (given && type != Type::kDiscrete) table.fail_at("type", "given values make it discrete");
  return type == Type::kDiscrete ? read_choice(table, name) : read_range(table, name, type);
}

/// Hyperparameters by name.
std::map<std::string, Hyperparameter> read_search(const TomlTable& table, const StudySpec& spec) {
  std::map<std::string, Hyperparameter> search;
  for (const std::string& name : table.keys()) {
    table.at(name, [&] { is_whole_parameter(name); });  // Refuses unknown names.
    Hyperparameter parameter = read_hyperparameter(table, name);
    table.at(name, [&] { check_trial_parameter(spec, parameter); });
    search[name] = std::move(parameter);
  }
  return search;
}

/// One number for all batch sizes, or a list parallel to batch_sizes.
std::vector<int64_t> read_per_batch(const TomlTable& table, const std::string& key, size_t num_batches, int64_t maximum) {
  if (!table.is_list(key)) return std::vector<int64_t>(num_batches, table.whole(key, 0, 1, maximum));  // 0: not given.
  std::vector<int64_t> values = table.wholes(key, 1, maximum);
  if (values.size() != num_batches) table.fail_at(key, values.size(), " numbers for ", num_batches, " batch sizes");
  return values;
}

std::vector<int64_t> read_batch_sizes(const TomlTable& table) {
  require(table, "batch_sizes");
  const std::vector<int64_t> sizes = table.wholes("batch_sizes", 1, kMaxBatchSize);
  if (sizes.empty() || sizes.size() > kMaxBatchSizes)
    table.fail_at("batch_sizes", "expected 1 to ", kMaxBatchSizes, " batch sizes, found ", sizes.size());
  for (size_t i = 1; i < sizes.size(); ++i)
    if (sizes[i] <= sizes[i - 1]) table.fail_at("batch_sizes", "must rise, but ", sizes[i], " comes after ", sizes[i - 1]);
  return sizes;
}

void read_goals(const TomlTable& table, StudySpec& spec) {
  require(table, "goals");
  for (const std::string& text : table.texts("goals")) {
    table.at("goals", [&] {
      spec.goals.push_back(parse_goal_spec(text));
      check_goal(spec, spec.goals.back());
    });
  }
  if (spec.goals.empty()) table.fail_at("goals", "a study needs at least one goal, such as \"val_error<0.12\"");
}

void read_study(const TomlTable& table, StudySpec& spec) {
  spec.seed = static_cast<uint64_t>(table.whole("seed", static_cast<int64_t>(spec.seed), 0, 9'000'000'000'000'000));
  spec.evaluation_ratio = table.number("evaluation_ratio", spec.evaluation_ratio, 1, 10);
  spec.evaluate_train = table.flag("evaluate_train", spec.evaluate_train);
  spec.evaluate_test = table.flag("evaluate_test", spec.evaluate_test);
  if (spec.evaluate_test && spec.is_noisy_quadratic())
    table.fail_at("evaluate_test", "the noisy quadratic has one loss, and no samples to test it on; leave evaluate_test out");
  spec.max_draws_factor = table.whole("max_draws_factor", spec.max_draws_factor, 1, 1000);
  spec.diverged_above = table.number("diverged_above", spec.diverged_above, 1e-300, kLargest);
  read_goals(table, spec);
  const std::vector<int64_t> sizes = read_batch_sizes(table);
  const std::vector<int64_t> trials = read_per_batch(table, "trials", sizes.size(), kMaxTrials);
  const std::vector<int64_t> steps = read_per_batch(table, "steps", sizes.size(), kMaxSteps);
  for (size_t i = 0; i < sizes.size(); ++i) spec.batches.push_back({sizes[i], trials[i], steps[i], {}});
}

/// [batch.N]: the settings that differ at batch size N.
struct Override {
  int64_t num_trials = 0, train_steps = 0;
  std::map<std::string, Hyperparameter> search;
};

std::map<int64_t, Override> read_overrides(const TomlTable& batches, const StudySpec& spec) {
  std::map<int64_t, Override> overrides;
  for (const std::string& key : batches.keys()) {
    const auto size = parse_integer(key);
    const bool known =
        size && std::to_string(*size) == key &&
        std::any_of(spec.batches.begin(), spec.batches.end(), [&](const BatchSpec& batch) { return batch.batch_size == *size; });
    if (!known) batches.fail_at(key, "is none of batch_sizes");
    const TomlTable table = batches.table(key, {"steps", "trials", "search"});
    Override& own = overrides[*size];
    own.num_trials = table.whole("trials", 0, 1, kMaxTrials);
    own.train_steps = table.whole("steps", 0, 1, kMaxSteps);
    own.search = read_search(table.table("search", {}), spec);
  }
  return overrides;
}

void fill_batches(const TomlTable& root, StudySpec& spec) {
  const TomlTable search_table = root.table("search", {}), study_table = root.table("study", {});
  const std::map<std::string, Hyperparameter> search = read_search(search_table, spec);
  std::map<int64_t, Override> overrides = read_overrides(root.table("batch", {}), spec);
  for (BatchSpec& batch : spec.batches) {
    Override& own = overrides[batch.batch_size];
    if (own.num_trials > 0) batch.num_trials = own.num_trials;
    if (own.train_steps > 0) batch.train_steps = own.train_steps;
    for (const char* key : {"trials", "steps"})
      if ((key[0] == 't' ? batch.num_trials : batch.train_steps) == 0)
        study_table.fail_at("", key, " is missing, and [batch.", batch.batch_size, "] has none");
    own.search.insert(search.begin(), search.end());  // Its own entries have priority.
    for (const std::string& name : trial_parameters())
      if (const auto found = own.search.find(name); found != own.search.end()) batch.space.push_back(found->second);
    study_table.at("evaluation_ratio", [&] { evaluation_steps(spec.evaluation_ratio, batch.train_steps); });
    search_table.at("", [&] {
      try {
        check_space(spec, batch.space);
      } catch (const Error& error) {
        fail(error.code(), "at batch size ", batch.batch_size, ": ", error.what());
      }
    });
  }
}

StudySpec read_tables(const TomlTable& root, const std::string& file) {
  for (const char* name : {"workload", "study", "search"})
    if (!root.has(name) && !(std::string(name) == "search" && root.has("batch"))) root.fail_at("", "there is no table [", name, "]");
  StudySpec spec;
  spec.unknown = root.texts("unknown");
  read_workload(root.table("workload", {"name", "data", "synthetic", "model", "optimizer", "dataset_name", "model_name", "context",
                                        "image_size", "val_samples", "train_samples", "weight_decay", "label_smoothing_over"}),
                file, spec);
  read_study(root.table("study", {"goals", "batch_sizes", "trials", "steps", "seed", "evaluation_ratio", "evaluate_train", "evaluate_test",
                                  "max_draws_factor", "diverged_above"}),
             spec);
  const TomlTable censoring = root.table("censoring", {"enabled", "margin", "halving"});
  spec.censor = censoring.flag("enabled", spec.censor);
  spec.censor_margin = censoring.number("margin", spec.censor_margin, 1, 1e6);
  spec.halving = censoring.flag("halving", spec.halving);
  const TomlTable machine = root.table("machine", {"max_batch_per_worker", "max_microbatch"});
  spec.max_batch_per_worker = machine.whole("max_batch_per_worker", spec.max_batch_per_worker, 1, kMaxBatchSize);
  spec.max_microbatch = machine.whole("max_microbatch", spec.max_microbatch, 0, kMaxBatchSize);
  fill_batches(root, spec);
  return spec;
}

}  // namespace

StudySpec parse_spec(const std::string& toml, const std::string& name_in_errors) {
  if (toml.size() > kMaxFileBytes)
    fail(ErrorCode::kBadInput, name_in_errors, ": ", toml.size(), " bytes; a spec has at most ", kMaxFileBytes);
  check_toml_dots(toml, name_in_errors);
  toml::table table;
  try {
    table = toml::parse(toml);
  } catch (const toml::parse_error& error) {
    std::string description(error.description());
    std::replace_if(description.begin(), description.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
    fail(ErrorCode::kBadInput, name_in_errors, ":", error.source().begin.line, ": ", description);
  }
  const TomlTable root(name_in_errors, table, {"unknown", "workload", "study", "search", "batch", "censoring", "machine"});
  return read_tables(root, name_in_errors);
}

StudySpec read_spec(const std::string& path) { return parse_spec(read_small_file(path, kMaxFileBytes), path); }

}  // namespace cohort::study
