#include "cohort/job/config.h"

#include <doctest/doctest.h>
#include <unistd.h>
#include <cmath>

#include <cstdlib>
#include <fstream>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/job/layout.h"
#include "cohort/job/option_rules.h"
#include "cohort/job/specs/injected_faults.h"
#include "cohort/job/specs/small_specs.h"
#include "tests/support/errors.h"
#include "tests/support/member_names.h"

namespace cohort {
namespace {

/// A file that is gone at the end.
struct File {
  explicit File(const std::string& text) {
    const int fd = ::mkstemp(path.data());
    REQUIRE(fd >= 0);
    REQUIRE(::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    ::close(fd);
  }
  ~File() { ::unlink(path.c_str()); }
  std::string path = "/tmp/cohort-config-XXXXXX";
};

std::string refusal_of(const std::string& toml) {
  const File file(toml);
  Config config;
  try {
    read_config_file(file.path, config);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kBadInput);
    return error.what();
  }
  return "";
}

TEST_CASE("a written configuration reads back the same, every setting") {
  Config config;
  int number = 0;
  for (const Setting& setting : settings()) {
    ++number;
    if (setting.is_flag) setting.set(config, "true");
  }
  config.model = "cnn:width=\"2\"\n\\x";
  config.lr = 0.1 + 0.2;
  config.global_batch = 77;
  config.seed = 123456789012345;
  const File file(to_toml(config));
  Config read;
  read_config_file(file.path, read);
  CHECK(to_toml(read) == to_toml(config));
  CHECK(read.model == config.model);
  CHECK(plain_value(*find_setting("model"), config) == config.model);
  CHECK(read.lr == config.lr);
  CHECK(read.json);
  CHECK(number > 40);
}

TEST_CASE("dashes and underscores both work") {
  const File file("global-batch = 5\nweight_decay = 1e-4\nlr = 1\n");
  Config config;
  read_config_file(file.path, config);
  CHECK(config.global_batch == 5);
  CHECK(config.weight_decay == 1e-4);
  CHECK(config.lr == 1.0);
}

TEST_CASE("checkpoints: a number of steps, 0 for every evaluation, or `end`") {
  const Setting& every = *find_setting("checkpoint-every");
  Config config;
  for (const auto& [text, value] : {std::pair<const char*, int64_t>{"end", -1}, {"0", 0}, {"25", 25}}) {
    every.set(config, text);
    CHECK(config.checkpoint_every == value);
    const File file(to_toml(config));
    Config read;
    read_config_file(file.path, read);
    CHECK(read.checkpoint_every == value);
  }
  CHECK_THROWS_WITH_AS(every.set(config, "never"), doctest::Contains("--checkpoint-every never: expected"), Error);
  CHECK_THROWS_AS(every.set(config, "-1"), Error);
}

TEST_CASE("mistakes name file and line") {
  CHECK(refusal_of("lr = 0.1\nlearning_rate = 2\n").find(":2: unknown setting 'learning_rate'") != std::string::npos);
  CHECK(refusal_of("\n\noptimizer = \"adan\"\n").find(":3: --optimizer adan (did you mean 'adam'?)") != std::string::npos);
  CHECK(refusal_of("global_batch = 0\n").find("whole number from 1") != std::string::npos);
  CHECK(refusal_of("global_batch = 1.5\n").find("global-batch") != std::string::npos);
  CHECK(refusal_of("lr = nan\n").find("lr") != std::string::npos);
  CHECK(refusal_of("lr = [1]\n").find("table or a list") != std::string::npos);
  CHECK(refusal_of("lr = \n").find(":1") != std::string::npos);
  CHECK(refusal_of("global_batch = 4\nlr = 1\nglobal-batch = 5\n")
            .find(":3: 'global-batch' is the setting that line 1 gives as 'global_batch'") != std::string::npos);
  Config config;
  CHECK_THROWS_AS(read_config_file("/nonexistent.toml", config), Error);
  CHECK_THROWS_AS(read_config_file("/tmp", config), Error);
}

TEST_CASE("a number that is none is told as it was written, an empty text is refused, and a device has its usual name") {
  CHECK(refusal_of("weight_decay = inf\n").find("--weight-decay inf: expected a number") != std::string::npos);
  CHECK(refusal_of("layout = \"\"\n").find("--layout \"\": the value is empty") != std::string::npos);
  CHECK(refusal_of("goal = \"\"\nrun = \"\"\nprompt = \"\"\n") == "");  // Their defaults.
  CHECK(refusal_of("device = \"gpu\"\n").find("did you mean 'cuda'?") != std::string::npos);
}

TEST_CASE("a run's own file that is cut anywhere is refused") {
  Config config;
  config.lr = 0.25;
  const std::string whole = whole_toml(config);
  CHECK(refusal_of(whole) == "");
  CHECK(refusal_of(whole + "# a user's note\n") == "");
  for (size_t length = 1; length + 1 < whole.size(); ++length) {
    CAPTURE(length);
    CHECK(refusal_of(whole.substr(0, length)).find("its end is missing") != std::string::npos);
  }
  const std::string own = to_toml(config);  // As users write it, and runs from before.
  CHECK(refusal_of(own.substr(0, own.find("lr ="))) == "");
}

TEST_CASE("a mistyped fault is told what its kind takes, in its order") {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      parse_faults(text);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal("pause") ==
        "--inject pause: pause takes a rank and a number of seconds, 0 or more, with colons; expected pause:RANK:SECONDS, "
        "for example pause:1:30");
  CHECK(refusal("pause:2.5:1").find("'2.5' is not a rank, which stands first") != std::string::npos);
  CHECK(refusal("pause:1:soon").find("'soon' is not a number of seconds, 0 or more; expected pause:RANK:SECONDS") != std::string::npos);
  CHECK(refusal("pause:1:inf").find("'inf' is not a number of seconds") != std::string::npos);
  CHECK(refusal("slow:0:0.5").find("'0.5' is not a factor above 1; expected slow:RANK:FACTOR") != std::string::npos);
  CHECK(refusal("slow:0:1").find("'1' is not a factor above 1") != std::string::npos);  // It would do nothing.
  CHECK(refusal("kill:0:1.5").find("'1.5' is not a step, counted from 0") != std::string::npos);
  CHECK(refusal("slow:0:2,paus:1:2").find("unknown fault 'paus' (did you mean 'pause'?); expected slow:RANK:FACTOR") != std::string::npos);
  CHECK(refusal("slow:0:2,").find("unknown fault ''") != std::string::npos);
  CHECK(refusal("slow:0:2,pause:1:0.5,kill:1:7") == "");
}

TEST_CASE("settings that contradict each other or are not built are refused") {
  const auto refused = [](auto change) {
    Config config;
    change(config);
    CHECK_THROWS_AS(check_config(config), Error);
  };
  refused([](Config& c) { c.steps = 1, c.epochs = 1; });
  refused([](Config& c) { c.goal = "val_error"; });
  refused([](Config& c) { c.goal = "accuracy>0.9"; });
  refused([](Config& c) { c.inject = "slow:1"; });
  refused([](Config& c) { c.inject = "slow:0:0.5"; });
  refused([](Config& c) { c.inject = "burn:0:1"; });
  refused([](Config& c) { c.inject = "kill:1:2,slow:1:2,kill:1:3"; });
  CHECK_NOTHROW(check_config(Config{}));
}

TEST_CASE("a program that fills a Config reads of its members") {
  const MemberNames members;
  Config config;
  config.steps = 1, config.epochs = 2;
  CHECK(error_of([&] { check_config(config); }) == "both steps 1 and epochs 2 are given; give one of them");
  config = {};
  config.global_batch = 0;
  CHECK(error_of([&] { check_config(config); }) == "global_batch auto is for `cohort train --study DIR`; give a number here");
  const auto refused = [](const auto& write) {
    Config written;
    write(written);
    return error_of([&] { check_config(written); });
  };
  CHECK(refused([](Config& c) { c.lr = -3; }).starts_with("lr -3.0: expected a number from 0"));
  CHECK(refused([](Config& c) { c.lr = std::nan(""); }).starts_with("lr nan: expected a number"));
  CHECK(refused([](Config& c) { c.steps = -1; }).starts_with("steps -1: expected a whole number"));
  CHECK(refused([](Config& c) { c.keep_checkpoints = 1; }).starts_with("keep_checkpoints 1: expected"));
  CHECK(refused([](Config& c) { c.weights = "shared"; }).starts_with("weights shared: expected one of auto private"));
  CHECK(refused([](Config& c) { c.model = ""; }).starts_with("model \"\": the value is empty"));
  CHECK(error_of([&] { parse_layout("dp=3", 2); }) ==
        "layout dp=3 needs 3 ranks (dp x pp x tp) and there are 2; give --workers 3 or a layout of 2 ranks");
  CHECK(error_of([] { parse_layout("pd=--lr", 0); }).starts_with("layout: unknown key 'pd'"));
  CHECK(error_of([] { parse_goal("--lr<1"); }).starts_with("goal '--lr<1': unknown metric '--lr'"));  // What a user wrote stays.
  CHECK(refusal_of("lr_end_factor = 2\n").ends_with(":1: lr_end_factor 2: expected a number from 0 to 1"));
}

TEST_CASE("goals and injections") {
  const Goal goal = parse_goal(" val_error < 0.12");
  CHECK(goal.reached({{"val_error", 0.11}}));
  CHECK_FALSE(goal.reached({{"val_error", 0.12}}));
  CHECK_FALSE(goal.reached({{"val_loss", 0.1}}));
  CHECK(parse_goal("val_precision>0.31").reached({{"val_precision", 0.32}}));
  CHECK_FALSE(parse_goal("val_precision>0.31").reached({{"val_precision", 0.31}}));
  CHECK_FALSE(parse_goal("val_precision>0.31").reached({{"val_precision", std::nan("")}}));
  CHECK(error_of([] { parse_goal("val_precision<0.31"); }).ends_with("higher is better for a precision; use val_precision>0.31"));
  CHECK(error_of([] { parse_goal("val_precision>1"); }).find("so this is never so") != std::string::npos);
  CHECK(error_of([] { parse_goal("val_precision>-1"); }).find("so this is always so") != std::string::npos);
  const std::vector<InjectedFault> faults = parse_faults("slow:1:2.5,pause:0:0.2,kill:2:7");
  CHECK(injection_for_rank(faults, 0).pause_seconds == 0.2);
  CHECK(injection_for_rank(faults, 1).slow_factor == 2.5);
  CHECK(injection_for_rank(faults, 2).kill_step == 7);
  CHECK(injection_for_rank(faults, 3).kill_step == -1);
  CHECK(last_injected_rank(faults) == 2);
  CHECK(last_injected_rank({}) == -1);
}

TEST_CASE("layouts") {
  CHECK(parse_layout("dp", 3).dp == 3);
  CHECK(parse_layout("dp", 0).dp == 1);
  CHECK(parse_layout("single", 0).num_ranks() == 1);
  CHECK(parse_layout("dp=2", 0).dp == 2);
  CHECK(parse_layout("dp=2,zero=0,split=auto", 2).dp == 2);
  CHECK(to_text(parse_layout("dp=4", 4)) == "dp=4");
  for (const char* text :
       {"dp=0", "dp=two", "pp", "pd=2", "pp=0", "tp=x", "auto", "zero=4", "zero=1,compress=fp16", "sync=asink", "no-such-plan.json",
        "pp=2,compress=fp16", "pp=2,split=7/3", "pp=2,recompute=some", "order=dp-dp-tp", "{}}", "{\"pp\":1.5}"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_layout(text, 0), Error);
  }
  CHECK(to_text(parse_layout("sync=async", 0).sync) == "async");  // --virtual may allow it.
  CHECK_THROWS_WITH_AS(parse_layout("dp=3", 2), doctest::Contains("--workers 3"), Error);
  CHECK_THROWS_WITH_AS(parse_layout("single", 2), doctest::Contains("needs 1 ranks"), Error);
  CHECK(parse_layout("pp=2,tp=2", 8).dp == 2);
  CHECK_THROWS_AS(parse_layout("pp=2", 3), Error);
}

TEST_CASE("a layout's text and JSON are read back as the same layout") {
  for (const char* text :
       {"single", "dp=2,zero=3", "dp=2,pp=2,schedule=zb-h1,microbatches=8,split=3,tp=2,sequence=1,recompute=all,order=tp-pp-dp"}) {
    CAPTURE(text);
    const cohort::Layout layout = parse_layout(text, 0);
    CHECK(to_text(layout) == text);
    CHECK(to_json(parse_layout(to_json(layout).dump(), 0)) == to_json(layout));
  }
}

TEST_CASE("a layout file gives stages their layers, workers and degrees") {
  const auto layout = parse_layout(R"({"tp":2,"stages":[{"layers":["a","b"],"dp":2},{"layers":["c"]}]})", 6);
  CHECK(layout.pp == 2);
  CHECK(layout.num_ranks() == 6);
  CHECK(layout.data_degrees() == std::vector<int>{2, 1});
  CHECK(parse_layout(to_text(layout), 6).stages == layout.stages);
  const auto shared =
      parse_layout(R"({"dp":2,"stages":[{"layers":["a"],"worker":0},{"layers":["b"],"worker":1},{"layers":["c"],"worker":0}]})", 4);
  CHECK(shared.pp == 2);
  CHECK(shared.data_degrees() == std::vector<int>{2, 2});
  for (const char* text :
       {R"({"stages":[]})", R"({"stages":[{"layers":[]}]})", R"({"stages":[{"layers":["a"],"worker":1}]})",
        R"({"stages":[{"layers":["a"],"dp":0}]})", R"({"dp":3,"stages":[{"layers":["a"],"dp":2},{"layers":["b"]}]})",
        R"({"stages":[{"layers":["a"],"worker":0,"dp":1},{"layers":["b"],"worker":0,"dp":2}]})", R"({"stages":[{"layer":["a"]}]})",
        R"({"pp":3,"stages":[{"layers":["a"]},{"layers":["b"]}]})", R"({"stages":{}})", "{"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_layout(text, 0), Error);
  }
}

}  // namespace
}  // namespace cohort
