#include "cohort/job/learning_rate.h"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "tests/support/places.h"

namespace cohort {
namespace {

TEST_CASE("a learning rate for every optimizer and family, and for a user's own model") {
  for (const char* optimizer : {"sgd", "momentum", "nesterov", "adam", "adamw"})
    for (const char* model : {"fc", "cnn:width=2", "resnet8", "lstm", "transformer:layers=3", "mine"}) {
      CAPTURE(optimizer);
      CAPTURE(model);
      CHECK(default_learning_rate(optimizer, model) > 0);
      CHECK(default_learning_rate(optimizer, model) <= (std::string(optimizer).starts_with("adam") ? 0.01 : 1));
    }
  CHECK(default_learning_rate("sgd", "cnn:width=2") == default_learning_rate("sgd", "cnn"));
  CHECK(default_learning_rate("adam", "cnn") < default_learning_rate("sgd", "cnn"));
}

TEST_CASE("what is given counts, zero too; what a run has is numbers") {
  Config config{.model = "lstm", .optimizer = "adamw"};
  CHECK(with_defaults(config).lr == default_learning_rate("adamw", "lstm"));
  CHECK(with_defaults(config).weight_decay == 0.01);
  config.lr = 0;
  config.weight_decay = 0;
  CHECK(with_defaults(config).lr == 0);
  CHECK(with_defaults(config).weight_decay == 0);
  CHECK(to_toml(with_defaults(Config())).find("lr = 0.1\n") != std::string::npos);
}

TEST_CASE("docs/guide/configuration.md has the table") {
  std::ifstream in(repository_file("docs/guide/configuration.md"));
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const std::string table = learning_rate_table();
  CAPTURE(table);
  CHECK(text.find(table.substr(table.find('\n') + 1)) != std::string::npos);
}

}  // namespace
}  // namespace cohort
