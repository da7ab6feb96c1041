#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "cohort/base/error.h"
#include "cohort/base/log.h"
#include "cohort/base/text.h"
#include "cohort/cli/verb.h"
#include "cohort/version.h"

namespace cohort {
namespace {

/// The parser of one verb and the places its options are read into.
struct Parser {
  std::unique_ptr<CLI::App> app;
  std::map<std::string, std::string> values;
  std::map<std::string, bool> flags;
  std::vector<std::string> positional;
};

void add_option(Parser& parser, const std::string& name, const std::string& value_name, const std::string& help, const std::string& group) {
  if (value_name.empty()) {
    parser.app->add_flag((name.size() == 1 ? "-" : "--") + name, parser.flags[name], help)->group(group);
    return;
  }
  // The last one counts, so that a script can append to a command.
  parser.app->add_option((name.size() == 1 ? "-" : "--") + name, parser.values[name], help)
      ->type_name(value_name)
      ->group(group)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

std::unique_ptr<Parser> make_parser(const Verb& verb) {
  auto parser = std::make_unique<Parser>();
  std::string head = "Examples:\n";
  for (const std::string& example : verb.examples) head += "  " + example + "\n";
  parser->app = std::make_unique<CLI::App>(head + "\n" + verb.summary, "cohort " + verb.name);
  parser->app->get_formatter()->column_width(34);
  for (const VerbOption& option : verb.options) add_option(*parser, option.name, option.value_name, option.help, "Options of " + verb.name);
  if (verb.takes_settings)
    for (const Setting& setting : settings()) add_option(*parser, setting.name, setting.value_name, setting.help, setting.group);
  if (verb.takes_program) parser->app->prefix_command();
  else if (!verb.positional_help.empty()) parser->app->add_option("arguments", parser->positional, verb.positional_help)->type_name("");
  return parser;
}

Arguments read_arguments(const Verb& verb, Parser& parser) {
  Arguments arguments;
  arguments.positional = verb.takes_program ? parser.app->remaining() : parser.positional;
  if (verb.takes_settings && !arguments.positional.empty() && arguments.positional.front().ends_with(".toml")) {
    arguments.file = arguments.positional.front();
    read_config_file(arguments.file, arguments.config);
    arguments.positional.erase(arguments.positional.begin());
  }
  const auto take = [&](const std::string& name, const std::string& value) {
    const bool own = std::any_of(verb.options.begin(), verb.options.end(), [&](const VerbOption& option) { return option.name == name; });
    if (own) {
      arguments.options[name] = value;
      return;
    }
    find_setting(name)->set(arguments.config, value);
    arguments.given.push_back(name);
  };
  for (const auto& [name, value] : parser.values)
    if (parser.app->count((name.size() == 1 ? "-" : "--") + name) > 0) take(name, value);
  for (const auto& [name, on] : parser.flags)
    if (on) take(name, "true");
  return arguments;
}

void print_overview(const std::vector<Verb>& verbs) {
  std::printf("Cohort %s: trains LibTorch models on many workers.\n\nExamples:\n", COHORT_VERSION);
  std::printf(
      "  cohort train --model cnn --data fashion-mnist --workers 2\n  cohort verify --model transformer --data text:FILE --workers 3\n");
  std::printf("  cohort VERB -h\n\nVerbs:\n");
  for (const Verb& verb : verbs) std::printf("  %-12s %s\n", verb.name.c_str(), verb.summary.c_str());
  std::printf(
      "\nExit codes: 0 done, 1 failed, 2 wrong usage or bad input, 3 no feasible plan, 4 environment (launcher, port, peer lost), 130 "
      "interrupted.\n");
}

int parse_and_run(const Verb& verb, int argc, char** argv) {
  const std::unique_ptr<Parser> parser = make_parser(verb);
  try {
    parser->app->parse(argc - 1, argv + 1);
  } catch (const CLI::CallForHelp&) {
    std::printf("%s", parser->app->help().c_str());
    return 0;
  } catch (const CLI::ParseError& error) {
    fail(ErrorCode::kBadInput, verb.name, ": ", error.what(), "; see `cohort ", verb.name, " -h`");
  }
  return verb.run(read_arguments(verb, *parser));
}

}  // namespace

bool Arguments::was_given(const std::string& setting) const { return std::find(given.begin(), given.end(), setting) != given.end(); }

std::string Arguments::option(const std::string& name, const std::string& fallback) const {
  const auto found = options.find(name);
  return found == options.end() ? fallback : found->second;
}

int64_t Arguments::integer_option(const std::string& name, int64_t fallback, int64_t minimum, int64_t maximum) const {
  const auto found = options.find(name);
  if (found == options.end()) return fallback;
  const auto value = parse_integer(found->second);
  if (!value || *value < minimum || *value > maximum)
    fail(ErrorCode::kBadInput, name.size() == 1 ? "-" : "--", name, " ", found->second, ": expected a whole number from ", minimum, " to ",
         maximum);
  return *value;
}

int run_verbs(const std::vector<Verb>& verbs, int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first.empty() || first == "-h" || first == "--help" || first == "help") {
    print_overview(verbs);
    return first.empty() ? static_cast<int>(ErrorCode::kBadInput) : 0;
  }
  if (first == "--version") {
    std::printf("cohort %s (LibTorch %s)\n", COHORT_VERSION, COHORT_BUILT_WITH_TORCH);
    return 0;
  }
  try {
    std::vector<std::string> names;
    for (const Verb& verb : verbs) {
      if (verb.name == first) return parse_and_run(verb, argc, argv);
      names.push_back(verb.name);
    }
    for (const char* later : {"plan", "study", "compress"})
      if (first == later) fail(ErrorCode::kBadInput, "the verb '", first, "' is not built yet; there are: ", join(names, " "));
    fail(ErrorCode::kBadInput, "unknown verb '", first, "'", did_you_mean(first, names), "; verbs: ", join(names, " "));
  } catch (const Error& error) {
    log_error(error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    const std::string text = error.what();
    log_error(text.substr(0, text.find("\nException raised from")));
    return static_cast<int>(ErrorCode::kFailed);
  }
}

}  // namespace cohort
