// What verbs say that they read, and what the command line makes of it. No verb is run: all is refused before.
#include "cohort/cli/options/verb.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "bench/program/bench_verb.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/cli/help/help_page.h"
#include "cohort/job/config.h"

namespace cohort {
namespace {

std::vector<Verb> all_verbs() {
  return {train_verb(),  evaluate_verb(), predict_verb(),    sample_verb(), compress_verb(), verify_verb(),
          launch_verb(), join_verb(),     checkpoint_verb(), report_verb(), bench_verb(),    simulate_verb(),
          plan_verb(),   study_verb(),    vocabulary_verb(), doctor_verb()};
}

const VerbOption* own_option(const Verb& verb, const std::string& name) {
  const auto found = std::find_if(verb.options.begin(), verb.options.end(), [&](const VerbOption& option) { return option.name == name; });
  return found == verb.options.end() ? nullptr : &*found;
}

/// The exit code of these words; the verb's own work is replaced by 77.
int code_of(Verb verb, std::vector<std::string> words) {
  verb.run = [](const Arguments&) { return 77; };
  words.insert(words.begin(), {"cohort", verb.name});
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  return run_verbs({verb}, static_cast<int>(pointers.size()), pointers.data());
}

TEST_CASE("verbs: what is read is an option or a setting, and every option is read by some action") {
  for (const Verb& verb : all_verbs()) {
    CAPTURE(verb.name);
    for (const std::string& name : verb.settings) CHECK(find_setting(name) != nullptr);
    std::vector<std::string> read;
    for (const VerbAction& action : verb.actions) {
      for (const std::string& name : action.reads) CHECK((own_option(verb, name) != nullptr || has_name(verb.settings, name)));
      CHECK((action.mode.empty() || own_option(verb, action.mode) != nullptr));
      read.insert(read.end(), action.reads.begin(), action.reads.end());
      read.push_back(action.mode);
    }
    if (verb.actions.empty()) continue;
    for (const VerbOption& option : verb.options) CHECK(has_name(read, option.name));
    for (const std::string& name : verb.settings) CHECK(has_name(read, name));
    for (const auto& [one, other] : verb.exclusive)
      for (const std::string& name : {one, other}) CHECK((own_option(verb, name) != nullptr || has_name(verb.settings, name)));
  }
}

TEST_CASE("verbs: each action takes what it reads, and refuses every other option of its verb and every setting") {
  for (const Verb& verb : all_verbs())
    for (const VerbAction& action : verb.actions) {
      CAPTURE(verb.name);
      CAPTURE(action.name);
      std::vector<std::string> words = {action.name};
      if (!action.mode.empty()) words.insert(words.end(), {"--" + action.mode});
      if (!action.mode.empty() && !own_option(verb, action.mode)->value_name.empty()) words.emplace_back("1");
      CHECK(code_of(verb, words) == 77);
      for (int word = 0; word < action.most_words + 1 && action.most_words < 10; ++word) words.emplace_back("word");
      if (action.most_words < 10) CHECK(code_of(verb, words) == 2);
      words.resize(words.size() - static_cast<size_t>(action.most_words < 10 ? action.most_words + 1 : 0));
      const auto with = [&](const std::string& name, bool is_flag, const std::string& value) {
        std::vector<std::string> more = words;
        more.push_back("--" + name);
        if (!is_flag) more.push_back(value);
        return code_of(verb, more);
      };
      for (const VerbOption& option : verb.options) {
        CAPTURE(option.name);
        const bool is_mode = std::any_of(verb.actions.begin(), verb.actions.end(),
                                         [&](const VerbAction& other) { return other.name == action.name && other.mode == option.name; });
        if (is_mode) continue;
        CHECK(with(option.name, option.value_name.empty(), "1") == (has_name(action.reads, option.name) ? 77 : 2));
      }
      if (verb.settings.empty()) continue;
      for (const Setting& setting : settings()) {
        if (own_option(verb, setting.name)) continue;
        CAPTURE(setting.name);
        std::string value = setting.get(Config());
        if (value.starts_with('"')) value = value.size() > 2 ? value.substr(1, value.size() - 2) : "x";
        if (value == "0") value = "2";
        if (setting.name == "batch-schedule") value = "5:2";
        if (setting.name == "prune") value = "2:4";  // "x" would be refused as no pruning.
        if (setting.name == "quantize-aware") value = "8";
        if (setting.name == "hint") value = "a:b";
        CHECK(with(setting.name, setting.is_flag, value) == (has_name(action.reads, setting.name) ? 77 : 2));
      }
    }
}

TEST_CASE("verbs without actions: settings and words that they do not read are refused") {
  CHECK(code_of(verify_verb(), {"--steps", "2"}) == 77);
  CHECK(code_of(verify_verb(), {"nonsense"}) == 2);
  CHECK(code_of(verify_verb(), {"--resume"}) == 2);
  CHECK(code_of(verify_verb(), {"--study", "x"}) == 2);
  CHECK(code_of(verify_verb(), {"--layouts", "dp=2", "--layout", "dp=2"}) == 2);
  CHECK(code_of(verify_verb(), {"--ranks", "2", "--workers", "2"}) == 2);
  CHECK(code_of(train_verb(), {"nonsense"}) == 2);
  CHECK(code_of(train_verb(), {"--run", "x"}) == 77);
  CHECK(code_of(doctor_verb(), {"--json"}) == 77);
  CHECK(code_of(doctor_verb(), {"--lr", "1"}) == 2);
  CHECK(code_of(report_verb(), {"a"}) == 77);
  CHECK(code_of(report_verb(), {"a", "b"}) == 77);
  CHECK(code_of(completion_verb(), {"bash", "zsh"}) == 2);
  CHECK(code_of(simulate_verb(), {"word"}) == 2);
  CHECK(code_of(plan_verb(), {"--instance", "x.json", "--json"}) == 77);
  CHECK(code_of(plan_verb(), {"--lr", "0.1"}) == 2);
}

TEST_CASE("bench: what completion offers is what the program of benchmarks runs") {
  CHECK(action_names(benchmarks_verb()) == action_names(bench_verb()));
}

TEST_CASE("an empty value is refused, but where nothing is what may be asked for") {
  for (const char* setting : {"run", "layout", "goal", "inject", "plugin", "study", "model", "lr"}) {
    CAPTURE(setting);
    CHECK(code_of(train_verb(), {concat("--", setting), ""}) == 2);
  }
  CHECK(code_of(train_verb(), {"--prompt", ""}) == 77);
  CHECK(code_of(verify_verb(), {"--layouts", ""}) == 2);
  CHECK(code_of(checkpoint_verb(), {"verify", ""}) == 2);
  CHECK(code_of(checkpoint_verb(), {"export", "x", "--out", ""}) == 2);
  const TemporaryFolder folder;
  const std::string file = folder / "c.toml";
  std::ofstream(file) << "run = \"r\"\nsteps = 1\n";
  CHECK(code_of(train_verb(), {file, "--run", ""}) == 77);  // Takes back what the file says.
  CHECK(code_of(train_verb(), {file, "--goal", ""}) == 2);
}

}  // namespace
}  // namespace cohort
