#include "cohort/job/option_rules.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/text.h"
#include "tests/support/errors.h"
#include "tests/support/member_names.h"
#include "tests/support/places.h"

namespace cohort {
namespace {

Config config_of(const std::vector<std::pair<std::string, std::string>>& given) {
  Config config;
  for (const auto& [name, value] : given) find_setting(name)->set(config, value);
  return config;
}

std::string refusal(const Config& config, int num_ranks = 1, bool one_host = true) {
  return error_or_none([&] {
    check_options({.config = config,
                   .layout = parse_layout(config.layout, num_ranks),
                   .num_ranks = num_ranks,
                   .one_host = one_host,
                   .is_text = is_text_data(config.data)});
  });
}

std::vector<std::string> names_of(const std::vector<OptionRule>& rules) {
  std::vector<std::string> names;
  for (const OptionRule& rule : rules) names.emplace_back(rule.name);
  std::sort(names.begin(), names.end());
  return names;
}

/// As the refusal of another says them.
std::vector<std::string> keys_of_layout() {
  try {
    parse_layout("nothing=1", 1);
  } catch (const Error& error) {
    const std::string text = error.what(), before = "; keys: ";
    return split(text.substr(text.find(before) + before.size()), ' ');
  }
  return {};
}

TEST_CASE("each setting and each key of a layout has one row, which says when, what is now, and what to do") {
  std::vector<std::string> names, keys = keys_of_layout();
  for (const Setting& setting : settings()) names.push_back(setting.name);
  std::sort(names.begin(), names.end());
  CHECK(names_of(option_rules()) == names);
  keys.emplace_back("stages");
  std::sort(keys.begin(), keys.end());
  CHECK(names_of(layout_rules()) == keys);
  for (const auto* rules : {&option_rules(), &layout_rules()})
    for (const OptionRule& rule : *rules) {
      CAPTURE(rule.name);
      const bool always = rule.acts == nullptr;
      CHECK(always == std::string(rule.when).empty());
      CHECK(always == (rule.now == nullptr));
      CHECK(always == std::string(rule.instead).empty());
    }
}

TEST_CASE("a value that equals the default is refused where it was given, and only there") {
  CHECK(refusal(config_of({{"momentum", "0.9"}})) ==
        "--momentum 0.9 would do nothing here: it acts with --optimizer momentum or nesterov, and --optimizer is sgd; use --optimizer "
        "momentum "
        "(or nesterov), or leave it out");
  CHECK(refusal(Config()) == "");
  Config filled;  // As a program does it.
  filled.momentum = 0.8;
  CHECK(refusal(filled).find("--momentum 0.8") != std::string::npos);
  CHECK(refusal(config_of({{"optimizer", "nesterov"}, {"momentum", "0.9"}})) == "");
}

TEST_CASE("a program that fills a Config reads of its members") {
  const MemberNames members;
  Config config;
  config.lr_end_factor = 0.1;
  CHECK(refusal(config) ==
        "lr_end_factor 0.1 would do nothing here: it acts with schedule_lr linear or cosine, and schedule_lr is constant; "
        "use schedule_lr linear or cosine, or leave it out");
  config = {};
  config.layout = "zero=1";
  CHECK(refusal(config) ==
        "layout: zero=1 would do nothing here: it acts with dp=2 or more, and there is one process; "
        "add ranks (dp=2, --workers N), or leave it out");
}

TEST_CASE("what asks for nothing is never refused") {
  CHECK(refusal(config_of({{"loss-scale", "0"},
                           {"decay-steps", "0"},
                           {"backend", "auto"},
                           {"weights", "auto"},
                           {"shares", "equal"},
                           {"bucket-bytes", "0"},
                           {"noise-scale", "0"},
                           {"sample-bytes", "0"},
                           {"prompt", ""},
                           {"layout", "zero=0,compress=none,microbatches=1,schedule=1f1b,split=auto,recompute=none,sequence=0"}})) == "");
}

TEST_CASE("one copy of the weights, or one a rank") {
  const auto of = [](const std::string& layout, const std::string& backend, const std::string& setting, const std::string& value) {
    return config_of({{"layout", layout}, {"backend", backend}, {setting, value}});
  };
  CHECK(refusal(of("dp", "auto", "weights", "private"), 2) == "");
  CHECK(refusal(of("dp", "auto", "weights", "private"), 4, false) == "");
  CHECK(refusal(of("dp=2,pp=2", "shm", "weights", "private"), 4) == "");
  CHECK(refusal(of("dp", "gloo", "weights", "private"), 2).find("--backend is gloo") != std::string::npos);
  CHECK(refusal(of("zero=2", "auto", "weights", "private"), 2).find("zero=2 divides them") != std::string::npos);
  CHECK(refusal(of("pp=2", "auto", "weights", "private"), 2).find("dp is 1") != std::string::npos);
  CHECK(refusal(of("dp", "auto", "bucket-bytes", "1000"), 2).find("no buckets") != std::string::npos);
  CHECK(refusal(of("dp", "gloo", "bucket-bytes", "1000"), 2) == "");
  CHECK(refusal(of("zero=3", "auto", "bucket-bytes", "1000"), 2) == "");
  CHECK(refusal(of("dp", "auto", "bucket-bytes", "1000"), 4, false) == "");
}

TEST_CASE("the order of axes means something where two of them have ranks") {
  const auto of = [](const std::string& layout) { return refusal(config_of({{"layout", layout}}), 0); };
  CHECK(of("dp=2,tp=2,order=tp-dp-pp") == "");
  CHECK(of("dp=2,tp=2,order=dp-tp-pp").find("dp tp, stand as without it") != std::string::npos);
  CHECK(of("dp=2,order=tp-pp-dp").find("order=tp-pp-dp would do nothing") != std::string::npos);
}

TEST_CASE("the kind of data by its name") {
  CHECK(is_text_data("text:x") == true);
  CHECK(is_text_data("synthetic:text") == true);
  CHECK(is_text_data("synthetic:text,samples=9") == true);
  CHECK(is_text_data("synthetic:1x8x8") == false);
  CHECK(is_text_data("fashion-mnist") == false);
  CHECK(!is_text_data("something:else"));
}

TEST_CASE("a written configuration has what means something, passes the check, and is the same again") {
  const std::vector<Config> configs = {
      Config(), config_of({{"optimizer", "adamw"}, {"beta2", "0.9"}, {"schedule-lr", "cosine"}, {"lr", "auto"}}),
      config_of({{"optimizer", "nesterov"}, {"workers", "2"}, {"weights", "private"}, {"precision", "fp16"}}),
      config_of({{"data", "text:x"}, {"layout", "pp=2,zero=0,microbatches=2"}, {"timeout", "5"}, {"loss-scale", "0"}})};
  for (const Config& config : configs) {
    const TemporaryFolder folder;
    const std::string toml = to_toml(config), path = folder / "c.toml";
    CAPTURE(toml);
    CHECK((toml.find("beta1") != std::string::npos) == config.optimizer.starts_with("adam"));
    CHECK((toml.find("momentum =") != std::string::npos) == (config.optimizer == "nesterov"));
    CHECK((toml.find("context") != std::string::npos) == config.data.starts_with("text"));
    std::ofstream(path) << toml;
    Config read;
    read_config_file(path, read);
    for (const Setting& setting : settings()) CHECK(setting.get(read) == setting.get(config));
    CHECK(to_toml(read) == toml);
    CHECK(refusal(read, situation_of(read).num_ranks) == "");
  }
}

TEST_CASE("what an option takes the ground from under is left out of a file, and nothing else") {
  const Config file = config_of({{"optimizer", "momentum"}, {"momentum", "0.8"}, {"lr", "0.3"}});
  Config merged = file;
  find_setting("optimizer")->set(merged, "adam");
  CHECK(leave_out_overridden(merged, file, {"optimizer"}) == std::vector<std::string>{"momentum"});
  CHECK(merged.momentum == Config().momentum);
  CHECK(merged.lr == 0.3);
  CHECK(refusal(merged) == "");
  Config typed = file;  // On the command line it is refused.
  find_setting("optimizer")->set(typed, "adam");
  CHECK(leave_out_overridden(typed, file, {"optimizer", "momentum"}).empty());
  const Config wrong = config_of({{"momentum", "0.8"}});  // And in a file where it never meant anything.
  Config same = wrong;
  CHECK(leave_out_overridden(same, wrong, {}).empty());
  CHECK(refusal(same).find("--momentum") != std::string::npos);
}

TEST_CASE("docs/guide/configuration.md has the table") {
  std::ifstream in(repository_file("docs/guide/configuration.md"));
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  REQUIRE(!text.empty());
  std::string table;
  for (const OptionRule& rule : option_rules())
    if (rule.acts) table += concat("| `", rule.name, "` | ", rule.when, " | ", rule.instead, " |\n");
  for (const OptionRule& rule : layout_rules())
    if (rule.acts) table += concat("| `--layout ", rule.name, "=` | ", rule.when, " | ", rule.instead, " |\n");
  CAPTURE(table);
  CHECK(text.find(table) != std::string::npos);
}

}  // namespace
}  // namespace cohort
