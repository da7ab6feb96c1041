#include "cohort/train/served/served_worker.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <atomic>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/train/async/packed_tensors.h"
#include "cohort/world/messages/message_server.h"

namespace cohort {
namespace {

constexpr double kPatience = 20;

/// Two parameters, of which server 0 has the first.
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
  explicit Played(MessageListener listener) : place{listener.endpoint(), listener.secret()}, server(std::move(listener)) {}
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
  void serve_part(int64_t order, double value) { say(to_json(PartOfVersion{.order = order}), packed_text({at::full({3}, value)})); }
  void order(int64_t order, double value) { say(to_json(WorkOrder{.step = order, .order = order}), packed_text({at::full({2}, value)})); }
  ServerPlace place;
  MessageServer server;
  PeerId peer = 0;
};

TEST_CASE("served worker: does the order that was on its way when it said that it leaves, and goes when it may") {
  Played server(MessageListener::for_forks());
  TwoTensors side;
  int num_computed = 0;
  const TicketSource source = [&](const WorkOrder& /*order*/) {
    ++num_computed;
    return HandedOver{.loss = 1, .tensors = {at::zeros({2}), at::zeros({3})}, .squares = 4};
  };
  std::atomic<bool> leaves = false;
  ServedWorker worker(side, source, MessageClient(server.place.endpoint, server.place.secret, {.name = "rank 2"}),
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
  server.say({{"do", "end"}, {"error", ""}});
  thread.join();
  CHECK(end.empty());
  CHECK(num_computed == 1);
}

TEST_CASE("served worker: that said that it leaves goes where the server is lost, and does not come in again") {
  std::optional<Played> server(MessageListener::for_forks());
  TwoTensors side;
  ServedWorker worker(side, {}, MessageClient(server->place.endpoint, server->place.secret, {.name = "rank 2"}),
                      {.worker = 2, .hello = "same", .timeout_seconds = kPatience, .leaves = [] { return true; }});
  std::string end = "none";
  std::thread thread([&] { end = worker.run(); });
  CHECK(server->heard().at("is") == "here");
  CHECK(server->heard().at("is") == "leaving");
  server.reset();
  thread.join();
  CHECK(end.empty());
}

TEST_CASE("served worker: takes its parts from two servers, hands each its own, and passes over what was for a ticket before") {
  Played first(MessageListener::for_forks()), other(MessageListener::for_forks());
  TwoTensors side;
  std::vector<double> seen;
  const TicketSource source = [&](const WorkOrder& order) {
    seen.push_back(side.pulled()[0][0].item<double>());
    seen.push_back(side.pulled()[1][2].item<double>());
    return HandedOver{.loss = 1, .tensors = {at::full({2}, static_cast<double>(order.order)), at::Tensor()}, .squares = 4};
  };
  const auto client = [](const ServerPlace& place, int /*server*/ = 0) {
    return MessageClient(place.endpoint, place.secret, {.name = "rank 2"});
  };
  ServedWorker worker(side, source, client(first.place),
                      {.worker = 2, .hello = "same", .timeout_seconds = kPatience, .servers = {0, 1}, .client_of = client});
  std::exception_ptr failure;
  std::thread thread([&] {
    try {
      worker.run();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  CHECK(first.heard().at("configuration") == "same");
  first.say(to_json(Welcome{.servers = {other.place}}));
  CHECK(other.heard().at("is") == "here");
  other.say(to_json(Welcome{}));
  CHECK(other.heard() == Json{{"is", "free"}, {"slot", false}});
  CHECK(first.heard() == Json{{"is", "free"}, {"slot", false}});

  first.order(7, 0.5);
  other.serve_part(5, 100);  // Of before it came again.
  other.serve_part(7, 0.25);
  std::string data;
  const PartOfPush part = part_of_push_from(other.heard(&data), "here");
  CHECK(part.order == 7);
  CHECK(part.missing == std::vector<size_t>{0});
  CHECK(data.empty());
  const WorkDone done = work_done_from(first.heard(&data), "here");
  CHECK(done.step == 7);
  CHECK(done.squares == 4);
  CHECK(done.missing.empty());
  CHECK(data == packed_text({at::full({2}, 7.0)}));
  CHECK(seen == std::vector<double>{0.5, 0.25});
  CHECK(first.heard().at("is") == "free");

  first.order(8, 0.5);
  other.serve_part(9, 0);  // One that it was not told of.
  const Json said = first.heard();
  CHECK(said.at("is") == "failed");
  CHECK(said.at("error").get<std::string>().find("order 9 where that of 8 comes next") != std::string::npos);
  thread.join();
  CHECK_THROWS_AS(std::rethrow_exception(failure), Error);
}

}  // namespace
}  // namespace cohort
