#include <unistd.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string_view>
#include <thread>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/help/help_page.h"
#include "cohort/cli/options/verb.h"
#include "cohort/comm/rendezvous/refusal.h"
#include "cohort/job/option_rules.h"
#include "cohort/version.h"
#include "cohort/world/uncaught.h"

namespace cohort {
namespace {

/// The parser of one verb and the places its options are read into.
struct Parser {
  std::unique_ptr<CLI::App> app;
  std::map<std::string, std::string> values;
  std::map<std::string, bool> flags;
  std::vector<std::string> positional;
};

void add_option(Parser& parser, const std::string& name, const std::string& value_name) {
  if (value_name.empty()) {
    parser.app->add_flag(dashed(name), parser.flags[name]);
    return;
  }
  if (value_name.starts_with("[=")) {  // "true" without a value, or the word after '='.
    parser.app->add_flag(dashed(name), parser.values[name]);
    return;
  }
  CLI::Option* const option =
      parser.app->add_option(dashed(name), parser.values[name])->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  if (value_name.starts_with('[')) option->expected(0, 1)->default_str("0");  // The option without a value stands for 0.
}

/// An option of the verb may have the name of a setting, and is then no setting: --temperature of `sample`.
bool has_own(const Verb& verb, const std::string& name) {
  return std::any_of(verb.options.begin(), verb.options.end(), [&](const VerbOption& option) { return option.name == name; });
}

std::unique_ptr<Parser> make_parser(const Verb& verb) {
  auto parser = std::make_unique<Parser>();
  parser->app = std::make_unique<CLI::App>(verb.summary, "cohort " + verb.name);
  for (const VerbOption& option : verb.options) add_option(*parser, option.name, option.value_name);
  // Settings that the verb does not read are parsed too, so that they are refused by name.
  if (!verb.settings.empty())
    for (const Setting& setting : settings())
      if (!has_own(verb, setting.name)) add_option(*parser, setting.name, setting.value_name);
  if (verb.takes_program) parser->app->prefix_command();
  else if (!verb.positional_help.empty()) parser->app->add_option("arguments", parser->positional, verb.positional_help)->type_name("");
  return parser;
}

/// Reads a config.toml. It may have been written for another verb: settings that this one does not read are ignored, with a message.
Config read_file(const Verb& verb, const std::string& path) {
  Config config;
  read_config_file(path, config);
  std::vector<std::string> left;
  const std::set<std::string> given = config.given;
  for (const std::string& name : given) {
    if (has_name(verb.settings, name)) continue;
    const Setting& setting = *find_setting(name);
    if (setting.get(config) != setting.get(Config())) left.push_back(name);
    setting.copy(config, Config());
  }
  if (!left.empty()) log_info(concat(verb.name, " does not read these settings of ", path, ": ", join(left, ", ")));
  return config;
}

/// Refuses an empty value, unless empty is a value of the option or resets what the file sets.
void check_empty(const Verb& verb, const Config& file, const std::string& name) {
  std::string value_name;
  for (const VerbOption& option : verb.options)
    if (option.name == name) value_name = option.value_name;
  if (value_name.empty()) {
    const Setting& setting = *find_setting(name);
    for (const OptionRule& rule : option_rules())
      if (rule.name == name && rule.off == std::string("\"\"")) return;
    if (setting.get(Config()) == "\"\"" && setting.get(file) != "\"\"") return;
    value_name = setting.value_name;
  }
  fail(ErrorCode::kBadInput, dashed(name), " \"\": the value is empty; give ", dashed(name), " ", value_name, ", or leave it out");
}

Arguments read_arguments(const Verb& verb, Parser& parser) {
  Arguments arguments;
  arguments.positional = verb.takes_program ? parser.app->remaining() : parser.positional;
  if (verb.takes_file && !arguments.positional.empty() && arguments.positional.front().ends_with(".toml")) {
    arguments.file = arguments.positional.front();
    arguments.config = read_file(verb, arguments.file);
    arguments.positional.erase(arguments.positional.begin());
  }
  const Config file = arguments.config;
  const auto take = [&](const std::string& name, const std::string& value) {
    if (value.empty()) check_empty(verb, file, name);
    if (has_own(verb, name)) {
      arguments.options[name] = value;
      return;
    }
    find_setting(name)->set(arguments.config, value);
    arguments.given.insert(name);
  };
  for (const auto& [name, value] : parser.values)
    if (parser.app->count(dashed(name)) > 0) take(name, value);
  for (const auto& [name, on] : parser.flags)
    if (on) take(name, "true");
  if (const auto left = leave_out_overridden(arguments.config, file, arguments.given); !left.empty())
    log_info(concat("beside these options these settings of ", arguments.file, " mean nothing and are left out: ", join(left, ", ")));
  return arguments;
}

/// The row of the requested action and mode; null for an unknown action, which the verb itself reports.
const VerbAction* action_of(const Verb& verb, const Arguments& arguments) {
  const VerbAction* found = nullptr;
  for (const VerbAction& action : verb.actions)
    if (action.name == arguments.action && (action.mode.empty() ? !found : arguments.options.contains(action.mode))) found = &action;
  return found;
}

/// The actions that read this option, for the message of one that does not.
std::string readers_of(const Verb& verb, const std::string& option) {
  std::vector<std::string> names;
  for (const VerbAction& action : verb.actions)
    if (has_name(action.reads, option))
      names.push_back(verb.name + " " + action.name + (action.mode.empty() ? "" : " " + dashed(action.mode)));
  return names.empty() ? "train" : join(names, ", ");
}

/// Refuses options and words that would have no effect.
void check_arguments(const Verb& verb, const Arguments& arguments) {
  const auto given = [&](const std::string& name) { return arguments.options.contains(name) || arguments.given.contains(name); };
  for (const auto& [one, other] : verb.exclusive)
    if (given(one) && given(other)) fail(ErrorCode::kBadInput, verb.name, ": give ", dashed(one), " or ", dashed(other), ", not both");
  for (const std::string& name : arguments.given)
    if (!has_name(verb.settings, name))
      fail(ErrorCode::kBadInput, verb.name, " does not read --", name, ", an option of ", readers_of(verb, name), "; leave it out");
  if (!verb.takes_program && has_name(arguments.positional, ""))
    fail(ErrorCode::kBadInput, verb.name, ": one of its words is empty (\"\"); see `cohort ", verb.name, " -h`");
  const VerbAction* const action = action_of(verb, arguments);
  if (!verb.actions.empty() && !action) return;
  const size_t first = action ? 1 : 0, most = first + static_cast<size_t>(action ? action->most_words : verb.most_words);
  if (!verb.takes_program && arguments.positional.size() > most)
    fail(ErrorCode::kBadInput, verb.name, action ? " " + action->name : "", ": '", arguments.positional[most],
         verb.takes_file ? "' is neither an option nor a .toml file at the first place" : "' is one word too many", "; see `cohort ",
         verb.name, " -h`");
  if (!action) return;
  std::set<std::string> names = arguments.given;
  for (const auto& [name, value] : arguments.options) names.insert(name);
  for (const std::string& name : names)
    if (!has_name(action->reads, name) && name != action->mode)
      fail(ErrorCode::kBadInput, verb.name, " ", action->name, action->mode.empty() ? "" : " " + dashed(action->mode), " does not read ",
           dashed(name), ", an option of ", readers_of(verb, name), "; leave it out");
}

void print_overview(const std::vector<Verb>& verbs) {
  std::printf("Cohort %s: trains LibTorch models on many workers.\n\nExamples:\n", COHORT_VERSION);
  std::printf(
      "  cohort train --model cnn --data fashion-mnist --workers 2\n  cohort verify --model transformer --data text:FILE --workers 3\n");
  std::printf("  cohort VERB -h\n\nVerbs:\n");
  const int width = help_width();
  constexpr size_t kNames = 15;
  for (const Verb& verb : verbs) {
    std::string name = "  " + verb.name;
    name.resize(kNames, ' ');
    std::printf("%s%s", name.c_str(), wrapped(verb.summary, kNames, width).substr(kNames).c_str());
  }
  const std::string codes =
      "Exit codes: 0 done, 1 failed, 2 wrong usage or bad input, 3 no feasible plan, 4 environment (launcher, port, peer lost), 5 not "
      "proven "
      "(verify), 130 interrupted.";
  std::printf("\n%s", wrapped(codes, 0, width).c_str());
}

/// Names of the same options in other programs.
const std::map<std::string, std::string>& option_names_elsewhere() {
  static const std::map<std::string, std::string> names = {{"batch-size", "--global-batch"},
                                                           {"learning-rate", "--lr"},
                                                           {"betas", "--beta1 and --beta2"},
                                                           {"num-workers", "--workers"},
                                                           {"nproc-per-node", "--workers"},
                                                           {"amp", "--precision bf16"},
                                                           {"fp16", "--precision fp16"},
                                                           {"bf16", "--precision bf16"},
                                                           {"zero", "--layout zero=3"},
                                                           {"tp", "--layout tp=2"},
                                                           {"pp", "--layout pp=2"},
                                                           {"dp", "--workers"},
                                                           {"gradient-accumulation-steps", "--accumulate"},
                                                           {"max-grad-norm", "--clip-norm"},
                                                           {"scheduler", "--schedule-lr"},
                                                           {"lr-schedule", "--schedule-lr"},
                                                           {"lr-scheduler", "--schedule-lr"},
                                                           {"epoch", "--epochs"},
                                                           {"num-epochs", "--epochs"},
                                                           {"max-steps", "--steps"},
                                                           {"dataset", "--data"},
                                                           {"output-dir", "--run"}};
  return names;
}

/// " (did you mean ...?)" for the first unknown option of `words`, or "".
std::string suggestion(const Verb& verb, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (!word.starts_with("--")) continue;
    std::string name = word.substr(2, word.find('=') == std::string::npos ? std::string::npos : word.find('=') - 2);
    std::replace(name.begin(), name.end(), '_', '-');
    std::vector<std::string> names = verb.settings;
    for (const VerbOption& option : verb.options) names.push_back(option.name);
    if (word.substr(0, word.find('=')) == "--" + name && has_name(names, name)) continue;
    if (has_name(names, name)) return concat(" (did you mean '--", name, "'?)");
    if (const auto elsewhere = option_names_elsewhere().find(name);
        elsewhere != option_names_elsewhere().end() && has_name(names, "workers"))
      return concat(" (here it is ", elsewhere->second, ")");
    std::vector<std::string> as_typed;
    for (const std::string& known : names) as_typed.push_back(dashed(known));
    if (const std::string near = did_you_mean("--" + name, as_typed); !near.empty()) return near;
  }
  return "";
}

/// The last of an option counts, so that a script can append to a command; differing earlier values are reported.
void report_overridden(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::vector<std::string>& given = option->results();
    if (option->get_multi_option_policy() != CLI::MultiOptionPolicy::TakeLast || given.size() < 2) continue;
    if (std::set<std::string>(given.begin(), given.end()).size() > 1)
      log_info(concat(option->get_name(), " is given ", given.size(), " times (", join(given, ", "), "): the last counts"));
  }
}

/// The help of the first of `words` that is an action of the verb, or of the whole verb.
int print_help(const Verb& verb, std::vector<std::string> words) {
  if (verb.takes_all_words) {
    words.emplace_back("-h");
    return verb.run({.positional = std::move(words)});
  }
  const std::vector<std::string> actions = action_names(verb);
  const auto action = std::find_if(words.begin(), words.end(), [&](const std::string& word) { return has_name(actions, word); });
  std::printf("%s", help_page(verb, action == words.end() ? "" : *action, help_width()).c_str());
  return 0;
}

int parse_and_run(const Verb& verb, int argc, char** argv) {
  if (verb.takes_all_words) return verb.run({.positional = std::vector<std::string>(argv + 2, argv + argc)});
  const std::unique_ptr<Parser> parser = make_parser(verb);
  for (int i = 1; i < argc && !verb.takes_program; ++i)
    if (const std::string word = argv[i]; word.starts_with("--") && word.ends_with('='))
      fail(ErrorCode::kBadInput, word, ": nothing follows '='; give a value, or leave it out");
  try {
    parser->app->parse(argc - 1, argv + 1);
  } catch (const CLI::CallForHelp&) {
    return print_help(verb, std::vector<std::string>(argv + 2, argv + argc));
  } catch (const CLI::ParseError& error) {
    fail(ErrorCode::kBadInput, verb.name, ": ", error.what(), suggestion(verb, std::vector<std::string>(argv + 2, argv + argc)),
         "; see `cohort ", verb.name, " -h`");
  }
  report_overridden(*parser->app);
  Arguments arguments = read_arguments(verb, *parser);
  if (!verb.actions.empty() && !arguments.positional.empty()) arguments.action = arguments.positional.front();
  check_arguments(verb, arguments);
  return verb.run(arguments);
}

}  // namespace

bool Arguments::was_given(const std::string& setting) const { return given.contains(setting); }

std::string Arguments::option(const std::string& name, const std::string& fallback) const {
  const auto found = options.find(name);
  return found == options.end() ? fallback : found->second;
}

int64_t Arguments::integer_option(const std::string& name, int64_t fallback, int64_t minimum, int64_t maximum) const {
  const auto found = options.find(name);
  if (found == options.end()) return fallback;
  const auto value = parse_integer(found->second);
  if (!value || *value < minimum || *value > maximum)
    fail(ErrorCode::kBadInput, dashed(name), " ", found->second, ": expected a whole number from ", minimum, " to ", maximum);
  return *value;
}

double Arguments::number_option(const std::string& name, double fallback, double minimum, double maximum) const {
  const auto found = options.find(name);
  if (found == options.end()) return fallback;
  const auto value = parse_number(found->second);
  if (!value || !(*value >= minimum && *value <= maximum))
    fail(ErrorCode::kBadInput, "--", name, " ", found->second, ": expected a number from ", minimum, " to ", maximum);
  return *value;
}

std::vector<std::string> all_settings() { return settings_without({}); }

std::vector<std::string> settings_without(const std::set<std::string>& names) {
  std::vector<std::string> kept;
  for (const Setting& setting : settings())
    if (!names.contains(setting.name)) kept.push_back(setting.name);
  return kept;
}

namespace {

/// Cuts out the middle of a long message, which may hold a pasted value.
std::string shortened(const std::string& text) {
  constexpr size_t kMost = 2000;
  return text.size() <= kMost ? text : concat(text.substr(0, kMost / 2), " ... ", text.substr(text.size() - kMost / 2));
}

/// Reports an error. One of the options is an error of all ranks that a launcher started with them, and is printed once.
void print_error(const Error& error, const std::string& verb) {
  const std::string text = shortened(error.what());
  const auto print = [&] { log_failure(static_cast<int>(error.code()), text); };
  if (error.code() == ErrorCode::kInterrupted) return log_info(text);
  World world;
  try {
    world = world_from_environment();
  } catch (const Error&) {
    return print();
  }
  std::thread reporter;  // In these verbs other ranks may be waiting for this one.
  if (world.size > 1 && (verb == "train" || verb == "verify" || verb == "study"))
    reporter = std::thread([&] { report_refusal(world, error.code(), text); });
  if (error.code() == ErrorCode::kBadInput) print_once(world, text, print);
  else print();
  if (reporter.joinable()) reporter.join();
}

int run_one_of(const std::vector<Verb>& verbs, int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (std::any_of(argv, argv + argc, [](const char* word) { return std::string_view(word) == "--json"; })) set_failures_as_json();
  if (first.empty() || first == "-h" || first == "--help" || (first == "help" && argc == 2)) {
    print_overview(verbs);
    return first.empty() ? static_cast<int>(ErrorCode::kBadInput) : 0;
  }
  if (first == "--version" || first == "version") {
    std::printf("cohort %s (LibTorch %s)\n", COHORT_VERSION, COHORT_BUILT_WITH_TORCH);
    return 0;
  }
  try {
    std::vector<std::string> names;
    for (const Verb& verb : verbs) {
      if (first == "help" && verb.name == argv[2]) return print_help(verb, std::vector<std::string>(argv + 3, argv + argc));
      if (verb.name == first) return parse_and_run(verb, argc, argv);
      names.push_back(verb.name);
    }
    const std::string unknown = first == "help" ? argv[2] : first;
    names.insert(names.end(), {"help", "version"});
    fail(ErrorCode::kBadInput, "unknown verb '", unknown, "'", did_you_mean(unknown, names), "; verbs: ", join(names, " "));
  } catch (const Error& error) {
    if (*error.what() == 0) return static_cast<int>(error.code());  // Ranks have printed it.
    print_error(error, first);
    return static_cast<int>(error.code());
  } catch (const std::filesystem::filesystem_error& error) {
    const int code = static_cast<int>(error_code_of_errno(ErrorCode::kFailed, error.code().value()));
    log_failure(code, concat("cannot use ", error.path1().string(), ": ", error.code().message()));
    return code;
  } catch (const std::exception& error) {
    const ExitStatus ending = exit_status_of(error);
    log_failure(ending.code, ending.text);
    return ending.code;
  }
}

std::vector<Verb>& verbs_here() {
  static std::vector<Verb> verbs;
  return verbs;
}

}  // namespace

bool shows_progress(const Config& config) { return !config.json && !config.quiet && ::isatty(STDERR_FILENO) == 1; }

const std::vector<Verb>& verbs_in_use() { return verbs_here(); }

bool has_verb(const std::string& name) {
  return std::any_of(verbs_here().begin(), verbs_here().end(), [&](const Verb& verb) { return verb.name == name; });
}

int run_verbs(const std::vector<Verb>& verbs, int argc, char** argv) {
  verbs_here() = verbs;
  ::signal(SIGXFSZ, SIG_IGN);  // A write beyond the limit of file sizes returns an error instead.
  const int code = run_one_of(verbs, argc, argv);
  // Output that was lost (a full disk behind `>`, a closed standard output) makes the command fail.
  const bool is_lost = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !is_lost) return code;
  log_error(concat("cannot write standard output: ", std::strerror(errno), "; the output is lost"));
  return code == 0 ? static_cast<int>(ErrorCode::kFailed) : code;
}

}  // namespace cohort
