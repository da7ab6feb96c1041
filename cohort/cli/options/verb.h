#pragma once
// The description of a verb, from which parser, help and completion are made. run_cli.cpp has the table of all; no parser's header is
// needed to write one.

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/job/job.h"

namespace cohort {

/// What the user typed, parsed.
struct COHORT_PROGRAM_API Arguments {
  Config config;                ///< Defaults, then the file, then options; only where the verb takes settings.
  std::set<std::string> given;  ///< Names of the settings that were given as options.
  std::string action;           ///< The first word, of verbs that have actions; `positional` begins with it too.
  std::vector<std::string> positional;
  std::string file;                            ///< The config.toml that stood first, "" for none.
  std::map<std::string, std::string> options;  ///< The verb's own options that were given; flags as "true".

  bool was_given(const std::string& setting) const;
  std::string option(const std::string& name, const std::string& fallback) const;
  int64_t integer_option(const std::string& name, int64_t fallback, int64_t minimum, int64_t maximum) const;
  double number_option(const std::string& name, double fallback, double minimum, double maximum) const;
};

struct VerbOption {
  std::string name, value_name, help;  ///< An empty value_name makes a flag.
};

/// One action of a verb: the options and settings that it reads (others are refused), and how many words may follow it.
struct VerbAction {
  std::string name;
  std::string mode;  ///< An option that makes it another action ("--faults") with a row of its own; "" for the plain one.
  int most_words = 0;
  std::vector<std::string> reads;
};

struct Verb {
  std::string name, summary;
  std::vector<std::string> examples;        ///< Whole commands; the help begins with them.
  std::string positional_help;              ///< "" where none is taken.
  std::vector<std::string> settings;        ///< Settings of `train` that it reads.
  std::set<std::string> defaults_from_run;  ///< Settings whose default is the value of the trained run.
  bool takes_file = false;                  ///< A config.toml as first positional.
  bool takes_program = false;               ///< Everything from the first positional on belongs to another program.
  bool takes_all_words = false;             ///< Nothing is parsed, not even -h: run() receives every word as a positional.
  int most_words = 0;                       ///< Positionals (after the file), of a verb without actions.
  std::vector<VerbOption> options;
  std::vector<VerbAction> actions;                             ///< Empty where the verb has none.
  std::vector<std::pair<std::string, std::string>> exclusive;  ///< Options of which one may be given.
  std::function<int(const Arguments&)> run;
};

std::vector<std::string> all_settings();
std::vector<std::string> settings_without(const std::set<std::string>& names);

/// Parses argv[1...] against the verbs and runs one. Returns the exit code; prints help and one-line complaints itself.
int run_verbs(const std::vector<Verb>& verbs, int argc, char** argv);
/// The verbs that run_verbs() was called with, while it runs.
const std::vector<Verb>& verbs_in_use();
/// Whether run_verbs() runs here and has that verb: only then can this program be started again with it.
bool has_verb(const std::string& name);
/// Whether progress lines are drawn: standard error is a terminal, and neither --json nor --quiet was given.
bool shows_progress(const Config& config);

/// A program that has only this verb: argv[1...] are the words that follow `cohort VERB`.
COHORT_PROGRAM_API int run_verb(const Verb& verb, int argc, char** argv);

// One function a verb, each in its own file.
Verb train_verb();
Verb verify_verb();
Verb evaluate_verb();
Verb predict_verb();
Verb sample_verb();
Verb compress_verb();
Verb launch_verb();
Verb join_verb();
Verb doctor_verb();
Verb checkpoint_verb();
Verb report_verb();
Verb simulate_verb();
Verb plan_verb();
Verb study_verb();
Verb vocabulary_verb();
Verb completion_verb();
Verb benchmarks_verb();

/// The job of these arguments, with the number of ranks of the launcher or of --workers.
Job job_from_arguments(const Arguments& arguments);
/// Runs `body` in each rank of the job: in this process under a launcher, else in ranks that are forked here. Returns the job's exit code;
/// `failure` receives the error line of a rank that failed here.
int run_job(const Job& job, const std::function<int(const struct World&)>& body, std::string* failure = nullptr);
/// Loads --plugin, so that its models are registered.
void load_plugin(const Config& config);

}  // namespace cohort
