#include "cohort/async/served/served_worker.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <atomic>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cohort/async/packed_tensors.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/world/messages/message_server.h"

namespace cohort {
namespace {

constexpr double kPatience = 20;

class TwoTensors : public WorkerSide {
 public:
  const std::vector<at::Tensor>& pulled() const override { return pulled_; }
  std::vector<at::Tensor> empty_handed_over() const override { return {at::zeros({2}), at::zeros({3})}; }
  HandedOver hand_over(const Ticket& /*ticket*/, TicketResult /*result*/, const StepNumbers& /*numbers*/) override { return {}; }

 private:
  std::vector<at::Tensor> pulled_ = empty_handed_over();
};

/// A server that the test plays.
struct Played {
  explicit Played(MessageListener listener) : endpoint(listener.endpoint()), secret(listener.secret()), server(std::move(listener)) {}
  /// What the worker says next.
  Json heard(std::string* data = nullptr) {
    for (;;) {
      const std::optional<PeerEvent> event = server.poll(kPatience);
      REQUIRE(event);
      if (event->kind != PeerEvent::Kind::kMessage) continue;
      peer = event->peer;
      if (data) *data = event->message.data;
      return Json::parse(event->message.text);
    }
  }
  void say(const Json& json, std::string data = "") { server.send(peer, {.text = json.dump(), .data = std::move(data)}); }
  std::string endpoint, secret;
  MessageServer server;
  PeerId peer = 0;
};

TEST_CASE("served worker: does the order that was on its way when it said that it leaves, and goes when it may") {
  Played server(MessageListener::for_forks());
  TwoTensors side;
  int num_computed = 0;
  const TicketSource source = [&](const WorkOrder& /*order*/) {
    ++num_computed;
    return HandedOver{.loss = 1, .tensors = {at::zeros({2}), at::zeros({3})}};
  };
  std::atomic<bool> leaves = false;
  ServedWorker worker(side, source, MessageClient(server.endpoint, server.secret, {.name = "rank 2"}),
                      {.worker = 2, .hello = "same", .timeout_seconds = kPatience, .leaves = [&] { return leaves.load(); }});
  std::string end = "none";
  std::thread thread([&] { end = worker.run(); });
  CHECK(server.heard().at("is") == "here");
  server.say(to_json(Welcome{}));
  CHECK(server.heard().at("is") == "free");
  leaves = true;
  CHECK(server.heard().at("is") == "leaving");
  server.say(to_json(WorkOrder{.step = 7}), packed_text(side.empty_handed_over()));
  CHECK(work_done_from(server.heard(), "here").step == 7);
  server.say(end_json(""));
  thread.join();
  CHECK(end.empty());
  CHECK(num_computed == 1);
}

TEST_CASE("served worker: that said that it leaves goes where the server is lost, and does not come in again") {
  std::optional<Played> server(MessageListener::for_forks());
  TwoTensors side;
  ServedWorker worker(side, {}, MessageClient(server->endpoint, server->secret, {.name = "rank 2"}),
                      {.worker = 2, .hello = "same", .timeout_seconds = kPatience, .leaves = [] { return true; }});
  std::string end = "none";
  std::thread thread([&] { end = worker.run(); });
  CHECK(server->heard().at("is") == "here");
  CHECK(server->heard().at("is") == "leaving");
  server.reset();
  thread.join();
  CHECK(end.empty());
}

TEST_CASE("served worker: takes a version, hands over what came of it, and asks again; what is no order ends it with a word") {
  Played rank0(MessageListener::for_forks());
  TwoTensors side;
  std::vector<double> seen;
  const TicketSource source = [&](const WorkOrder& order) {
    seen = {side.pulled()[0][0].item<double>(), side.pulled()[1][2].item<double>()};
    return HandedOver{.loss = 1, .tensors = {at::full({2}, static_cast<double>(order.step)), at::Tensor()}};
  };
  ServedWorker worker(side, source, MessageClient(rank0.endpoint, rank0.secret, {.name = "rank 2"}),
                      {.worker = 2, .hello = "same", .timeout_seconds = kPatience});
  std::exception_ptr failure;
  std::thread thread([&] {
    try {
      worker.run();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  CHECK(rank0.heard() == Json{{"is", "here"}, {"worker", 2}, {"configuration", "same"}});
  rank0.say(to_json(Welcome{}));
  CHECK(rank0.heard() == Json{{"is", "free"}, {"slot", false}});

  rank0.say(to_json(WorkOrder{.step = 7}), packed_text({at::full({2}, 0.5), at::full({3}, 0.25)}));
  std::string data;
  const WorkDone done = work_done_from(rank0.heard(&data), "here");
  CHECK(done.step == 7);
  CHECK(done.loss == 1);
  CHECK(done.missing == std::vector<size_t>{1});
  CHECK(data == packed_text({at::full({2}, 7.0), at::Tensor()}));
  CHECK(seen == std::vector<double>{0.5, 0.25});
  CHECK(rank0.heard().at("is") == "free");

  rank0.say(Json{{"do", "sing"}});
  const Json said = rank0.heard();
  CHECK(said.at("is") == "failed");
  CHECK(said.at("error").get<std::string>().find("\"sing\", which is not understood") != std::string::npos);
  thread.join();
  CHECK_THROWS_AS(std::rethrow_exception(failure), Error);
}

}  // namespace
}  // namespace cohort
