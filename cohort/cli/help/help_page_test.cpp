#include "cohort/cli/help/help_page.h"

#include <doctest/doctest.h>

#include <sstream>

#include "cohort/base/text/text.h"

namespace cohort {
namespace {

std::vector<Verb> verbs_of_test() { return {train_verb(), study_verb(), checkpoint_verb(), plan_verb(), launch_verb()}; }

std::vector<std::string> lines_of(const std::string& text) { return split(text, '\n'); }

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("help: no line is wider than the terminal, but for examples, names and words that have no blank") {
  for (const Verb& verb : verbs_of_test()) {
    for (const int width : {40, 72, 100, 160}) {
      CAPTURE(verb.name);
      CAPTURE(width);
      for (const std::string& line : lines_of(help_page(verb, "", width))) {
        if (line.starts_with("  cohort ") || line.starts_with("  mpirun ") || line.starts_with("  torchrun ") || line.starts_with("  --"))
          continue;
        const size_t begin = line.find_first_not_of(' ');
        const bool is_one_word = begin == std::string::npos || line.find(' ', begin) == std::string::npos;
        CHECK_MESSAGE((std::ssize(line) <= width || is_one_word || has(line, "  ")), line);
      }
    }
  }
}

TEST_CASE("help: of an action what it reads, and its examples") {
  const std::string fit = help_page(study_verb(), "fit", 100), all = help_page(study_verb(), "", 100);
  CHECK(fit.starts_with("Examples:\n  cohort study fit "));
  CHECK(has(fit, "--law"));
  CHECK_FALSE(has(fit, "--halving"));
  CHECK_FALSE(has(fit, "cohort study run"));
  CHECK(has(all, "--halving"));
  CHECK(has(all, "cohort study ACTION -h"));
  CHECK(has(help_page(checkpoint_verb(), "export", 100), "--without-aliases"));
  CHECK_FALSE(has(help_page(checkpoint_verb(), "info", 100), "--without-aliases"));
}

TEST_CASE("help: settings stand under their headings with their defaults, and with what they are for") {
  const std::string train = help_page(train_verb(), "", 100);
  CHECK(has(train, "--global-batch"));
  CHECK(has(train, "(default 0.9)"));  // Of --momentum.
  CHECK_FALSE(has(train, "default \"\""));
  CHECK(has(train, "[with"));
  const std::string evaluate = help_page(evaluate_verb(), "", 100);
  CHECK(has(evaluate, "(default the run's)"));  // Of --data.
  CHECK_FALSE(has(evaluate, "(default synthetic"));
}

TEST_CASE("wrapped: at words, with an indent; a long word and a line break stay") {
  CHECK(wrapped("one two three", 2, 9) == "  one two\n  three\n");
  CHECK(wrapped("", 3, 20) == "   \n");
  CHECK(wrapped("one\ntwo three", 2, 20) == "  one\n  two three\n");
  CHECK(wrapped("averyveryverylongword b", 0, 8) == "averyveryverylongword\nb\n");
}

TEST_CASE("completion: words that are offered for a value are taken, and another is not") {
  for (const auto& [name, values] : setting_choices()) {
    const Setting* const setting = find_setting(name);
    REQUIRE(setting != nullptr);
    Config config;
    for (const std::string& value : values) CHECK_NOTHROW(setting->set(config, value));
    CHECK_THROWS(setting->set(config, "nothing"));
  }
}

TEST_CASE("completion: of three shells, and no other") {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = completion_script(shell, verbs_of_test());
    CHECK(has(script, "checkpoint"));
    CHECK(has(script, "global-batch"));
  }
  CHECK_THROWS_WITH(completion_script("bahs", {}), "completion: unknown shell 'bahs' (did you mean 'bash'?); expected bash, zsh or fish");
  CHECK_THROWS_WITH(completion_script("", {}), "completion: no shell given; expected bash, zsh or fish");
}

}  // namespace
}  // namespace cohort
