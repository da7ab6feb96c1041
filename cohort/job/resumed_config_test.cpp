#include "cohort/job/resumed_config.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "cohort/base/files/file.h"

using namespace cohort;

namespace {

std::vector<std::string> texts(const std::vector<SettingChange>& changes) {
  std::vector<std::string> out;
  for (const SettingChange& change : changes) out.push_back(to_text(change));
  return out;
}

struct Folder {
  TemporaryFolder run;
  Config own;
  explicit Folder(const Config& config) : own(config) { std::ofstream(run / "config.toml") << to_toml(config); }
  std::vector<std::string> changes(const Config& given, const std::set<std::string>& names, const std::string& file = "") const {
    const Config now = resumed_config({run.path(), file, given, names});
    CHECK(now.resume);
    CHECK(now.run == run.path());
    return texts(changes_between(own, now));
  }
};

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("resumed_config: a run goes on with its own settings, whatever the defaults are") {
  Config own;
  own.lr = 0.01;
  own.precision = "bf16";
  own.schedule_lr = "cosine";
  own.plugin = "with \"quotes\" and \\.so";
  own.steps = 40;
  const Folder folder(own);
  CHECK(folder.changes(Config(), {}).empty());
  const Config now = resumed_config({folder.run.path(), "", Config(), {}});
  CHECK(now.lr == 0.01);
  CHECK(now.precision == "bf16");
  CHECK(now.plugin == own.plugin);
}

TEST_CASE("resumed_config: a file that was cut is refused, one of a run from before is read") {
  const TemporaryFolder run;
  const auto refusal = [&](const std::string& text) -> std::string {
    std::ofstream(run / "config.toml") << text;
    try {
      resumed_config({run.path(), "", Config(), {}});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const std::string whole = whole_toml(Config());
  CHECK(refusal(whole) == "");
  CHECK(refusal(whole.substr(0, whole.find("seed ="))).find("its end is missing") != std::string::npos);
  CHECK(refusal("").find("holds no setting") != std::string::npos);
  CHECK(refusal(to_toml(Config())) == "");
}

TEST_CASE("resumed_config: options are merged over it and each change is told") {
  Config own;
  own.lr = 0.01;
  own.steps = 40;
  const Folder folder(own);
  Config given;
  given.lr = 0.1;
  given.momentum = 0.5;  // Not given as an option.
  given.model = "fc:name=\"x\"";
  given.resume = given.json = given.quiet = true;
  given.run = "elsewhere";
  given.inject = "kill:0:1";
  CHECK(folder.changes(given, {"lr", "model", "resume", "json", "quiet", "run", "inject"}) ==
        Texts{"changed: model \"cnn\" -> \"fc:name=\\\"x\\\"\"", "changed: lr 0.01 -> 0.1"});
  CHECK(resumed_config({folder.run.path(), "", given, {"inject", "json"}}).inject == "kill:0:1");
  given.lr = 0.01;
  CHECK(folder.changes(given, {"lr"}).empty());  // The same value is no change.
}

TEST_CASE("resumed_config: steps and epochs take each other's place") {
  Config own;
  own.epochs = 3;
  const Folder folder(own);
  Config given;
  given.steps = 50;
  CHECK(folder.changes(given, {"steps"}) == Texts{"changed: steps 0 -> 50", "changed: epochs 3.0 -> 0.0"});
  given.epochs = 4;  // Both: the user's own contradiction stays one.
  const Config both = resumed_config({folder.run.path(), "", given, {"steps", "epochs"}});
  CHECK((both.steps == 50 && both.epochs == 4));
}

TEST_CASE("resumed_config: another file stands between the run's and the options; the run's own, by any name, is no other") {
  Config own;
  own.lr = 0.01;
  own.seed = 7;
  const Folder folder(own);
  const std::string file = folder.run / "other.toml";
  std::ofstream(file) << "lr = 0.02\nmomentum = 0.5\n";
  Config given;
  given.lr = 0.3;
  CHECK(folder.changes(given, {}, file) == Texts{"changed: lr 0.01 -> 0.02", "changed: momentum 0.9 -> 0.5"});
  CHECK(folder.changes(given, {"lr"}, file) == Texts{"changed: lr 0.01 -> 0.3", "changed: momentum 0.9 -> 0.5"});
  CHECK(folder.changes(given, {}, folder.run.path() + "/./config.toml").empty());
}

TEST_CASE("resumed_config: what was edited in the run's own file is an option like any other") {
  Config trained;
  trained.lr = 0.1;
  trained.epochs = 3;
  trained.optimizer = "momentum";
  trained.momentum = 0.5;
  trained.run = "where it was";
  trained.resume = true;
  const std::string text = to_toml(trained);
  const auto changes = [&](Config own, const Config& given, const std::set<std::string>& names) {
    const Folder folder(own);
    const ResumeRequest request{folder.run.path(), "", given, names, text};
    return texts(changes_between(trained_config(request), resumed_config(request)));
  };
  Config own = trained;
  own.run.clear();
  CHECK(changes(own, Config(), {}).empty());
  own.lr = 0.5;
  CHECK(changes(own, Config(), {}) == Texts{"changed: lr 0.1 -> 0.5"});
  Config given;
  given.lr = 0.25;
  CHECK(changes(own, given, {"lr"}) == Texts{"changed: lr 0.1 -> 0.25"});
  own.lr = 0.1;
  own.steps = 50;
  CHECK(changes(own, Config(), {}) == Texts{"changed: steps 0 -> 50", "changed: epochs 3.0 -> 0.0"});
  own.steps = 0;
  own.optimizer = "sgd";  // Then a momentum means nothing.
  CHECK(changes(own, Config(), {}) == Texts{"changed: optimizer \"momentum\" -> \"sgd\"", "changed: momentum 0.5 -> 0.9"});
  own.optimizer = "momentum";
  own.init_from = "runs/other";
  CHECK_THROWS_WITH_AS(changes(own, Config(), {}), doctest::Contains("--init-from runs/other would do nothing beside --resume"), Error);
}
