#include "cohort/train/served/part_server.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <doctest/doctest.h>
#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/train/async/packed_tensors.h"
#include "cohort/train/served/server_team.h"

namespace cohort {
namespace {

constexpr double kPatience = 20;

struct Pair : torch::nn::Module {
  explicit Pair(double value) {
    large = register_parameter("large", at::full({8}, value));
    small = register_parameter("small", at::full({3}, value));
  }
  at::Tensor large, small;  // Server 0's and server 1's.
};

GradientServerOptions options_of(int server) {
  return {.rule = {.kind = UpdateRule::Kind::kMomentum}, .global_batch = 4, .part = {server, 2}};
}

/// Rank 0, played by the test, and a server with the small parameter in a thread.
struct Stage {
  Stage() : first(MessageListener::for_forks()), divided(here, options_of(0)), model(there, options_of(1)) {
    MessageListener listener = MessageListener::for_forks();
    place = {listener.endpoint(), listener.secret()};
    MessageListener mine = MessageListener::for_forks();
    const std::string endpoint = mine.endpoint(), secret = mine.secret();
    first = MessageServer(std::move(mine));
    part.emplace(model, std::move(listener), MessageClient(endpoint, secret, {.name = "server 1"}),
                 PartServerOptions{.gives_slots = false, .timeout_seconds = kPatience});
    team.emplace(divided, std::vector<ServerPlace>{place}, std::vector<int>{1}, MessageLimits(), kPatience);
    team->begin();
    CHECK(heard().at("is") == "serves");
  }
  /// What the server says to rank 0 next.
  Json heard(std::string* data = nullptr) {
    for (;;) {
      const std::optional<PeerEvent> event = first.poll(kPatience);
      REQUIRE(event);
      if (event->kind != PeerEvent::Kind::kMessage) continue;
      if (data) *data = event->message.data;
      return Json::parse(event->message.text);
    }
  }
  bool is_silent() { return !first.poll(0.2); }
  MessageClient worker(int number) const {
    MessageClient client(place.endpoint, place.secret, {.name = "rank " + std::to_string(number)});
    client.connect(kPatience);
    client.send({.text = Json{{"is", "here"}, {"worker", number}}.dump()});
    REQUIRE(client.receive(kPatience));
    client.send({.text = Json{{"is", "free"}, {"slot", false}}.dump()});
    return client;
  }
  Work ordered(int worker, int64_t order) {
    Work work{.ticket = {.positions = {0, 2}, .global_samples = 4}, .worker = worker, .order = order};
    team->serve(worker, work, numbers);
    return work;
  }
  const StepNumbers numbers{.learning_rate = 0.5, .clip_norm = 0};
  Pair here{1}, there{2};
  MessageServer first;
  DividedServer divided;
  GradientServer model;
  ServerPlace place;
  std::optional<PartServer> part;
  std::optional<ServerTeam> team;
};

PeerMessage push_of(int64_t order, double gradient) {
  return {.text = to_json(PartOfPush{.order = order}).dump(), .data = packed_text({at::full({3}, gradient)})};
}

/// The part of a version that a worker gets.
std::string version_for(MessageClient& worker, int64_t order) {
  const std::optional<PeerMessage> message = worker.receive(kPatience);
  REQUIRE(message);
  CHECK(part_of_version_from(Json::parse(message->text), "here").order == order);
  return message->data;
}

TEST_CASE("part server: takes its part over, serves it, applies what rank 0 says, and shows it") {
  Stage stage;
  MessageClient worker = stage.worker(2);
  const Work work = stage.ordered(2, 0);
  CHECK(version_for(worker, 0) == packed_text({stage.here.small}));  // As rank 0 had it.
  worker.send(push_of(0, 3));
  CHECK(stage.heard() == Json{{"is", "has"}, {"order", 0}});
  stage.team->apply(work, stage.numbers);

  GradientServer& same = stage.divided.part(1);  // What is to come of it.
  Work own{.ticket = work.ticket};
  same.pull(own, stage.numbers);
  own.tensors = {at::full({3}, 3.0)};
  same.push(own, stage.numbers);
  std::string shown;
  stage.team->show(7);
  const Json said = stage.heard(&shown);
  CHECK(said.at("order") == 7);
  CHECK(said.at("state") == same.state());
  CHECK(shown == packed_text(tensors_of(same.served(), same.saved_pieces())));
  CHECK(stage.here.small[0].item<float>() < 1);

  stage.team->end();
  CHECK(!stage.part->join());
}

TEST_CASE("part server: what rank 0 forgot is not applied, and a worker that comes again has a new connection") {
  Stage stage;
  MessageClient worker = stage.worker(2);
  stage.ordered(2, 0);
  version_for(worker, 0);
  stage.team->forget(0);
  stage.ordered(2, 1);
  version_for(worker, 1);
  worker.send(push_of(0, 100));  // Of before.
  worker.send(push_of(1, 0));
  CHECK(stage.heard().at("order") == 1);
  MessageClient again = stage.worker(2);
  stage.ordered(2, 2);
  version_for(again, 2);
  CHECK_THROWS_AS(worker.receive(kPatience), Error);
  stage.ordered(5, 3);  // One that is not there: nobody gets it, and nothing is lost.
  stage.ordered(2, 4);
  version_for(again, 4);
}

TEST_CASE("part server: a worker that hands over what it does not have is sent away, and nothing of it is applied") {
  Stage stage;
  const std::string all = packed_text({at::full({3}, 1.0)});
  const auto part = [](int64_t order, bool in_slot = false, std::vector<size_t> missing = {}) {
    return to_json(PartOfPush{.order = order, .in_slot = in_slot, .missing = std::move(missing)}).dump();
  };
  MessageClient other = stage.worker(3);
  stage.ordered(3, 0);
  version_for(other, 0);
  for (const PeerMessage& message : std::vector<PeerMessage>{{part(0), all},  // Another's.
                                                             {part(1), all.substr(1)},
                                                             {part(1), all + "x"},
                                                             {part(1, true), ""},
                                                             {part(1, false, {1}), ""},
                                                             {R"({"is":"part","order":-1,"slot":false,"missing":[]})", all},
                                                             {R"({"is":"part","order":1})", all},
                                                             {R"({"is":"first","state":{}})", ""},
                                                             {R"({"do":"end"})", ""},
                                                             {R"({"is":"here"})", ""},
                                                             {R"([1])", ""},
                                                             {"{", ""}}) {
    CAPTURE(message.text);
    MessageClient worker = stage.worker(2);
    stage.ordered(2, 1);
    version_for(worker, 1);
    worker.send(message);
    CHECK_THROWS_AS(worker.receive(kPatience), Error);
    CHECK(worker.was_dismissed());
    stage.team->forget(1);
  }
  CHECK(stage.is_silent());
  other.send(push_of(0, 1));  // The others go on.
  CHECK(stage.heard() == Json{{"is", "has"}, {"order", 0}});
  stage.team->end();
  CHECK(!stage.part->join());
}

TEST_CASE("part server: to apply what it does not have is a failure, which rank 0 hears of") {
  Stage stage;
  MessageClient worker = stage.worker(2);
  const Work work = stage.ordered(2, 0);
  version_for(worker, 0);
  stage.team->apply(work, stage.numbers);
  const Json said = stage.heard();
  CHECK(said.at("is") == "failed");
  CHECK(said.at("error").get<std::string>().find("that it does not have: order 0") != std::string::npos);
  CHECK(stage.part->join());
  CHECK_THROWS_AS(worker.receive(kPatience), Error);
}

TEST_CASE("part server: ends when rank 0 is gone") {
  Stage stage;
  stage.team.reset();
  CHECK_THROWS_AS(std::rethrow_exception(stage.part->join()), Error);
}

}  // namespace
}  // namespace cohort
