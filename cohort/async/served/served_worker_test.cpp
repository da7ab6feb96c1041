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
#include "cohort/async/served/served_messages.h"
#include "cohort/base/fail.h"
#include "cohort/world/messages/message_server.h"

namespace cohort {
namespace {

constexpr double kPatience = 20;

class TwoTensors : public AsyncWorker {
 public:
  const std::vector<at::Tensor>& pull_buffers() const override { return pull_buffers_; }
  std::vector<at::Tensor> empty_push() const override { return {at::zeros({2}), at::zeros({3})}; }
  PushData make_push(const WorkItem& /*item*/, WorkResult /*result*/, const StepNumbers& /*numbers*/) override { return {}; }

 private:
  std::vector<at::Tensor> pull_buffers_ = empty_push();
};

/// The server, played by the test.
struct FakeServer {
  explicit FakeServer(MessageListener listener) : endpoint(listener.endpoint()), secret(listener.secret()), server(std::move(listener)) {}
  /// The next message of the worker.
  Json next_message(std::string* data = nullptr) {
    for (;;) {
      const std::optional<PeerEvent> event = server.poll(kPatience);
      REQUIRE(event);
      if (event->kind != PeerEvent::Kind::kMessage) continue;
      peer = event->peer;
      if (data) *data = event->message.data;
      return Json::parse(event->message.text);
    }
  }
  void send(std::string text, std::string data = "") { server.send(peer, {.text = std::move(text), .data = std::move(data)}); }
  std::string endpoint, secret;
  MessageServer server;
  PeerId peer = 0;
};

TEST_CASE("served worker: completes an order already on its way when it asks to leave, and leaves when released") {
  FakeServer server(MessageListener::for_forks());
  TwoTensors side;
  int num_computed = 0;
  const ComputeFunction source = [&](const WorkOrder& /*order*/) {
    ++num_computed;
    return PushData{.loss = 1, .tensors = {at::zeros({2}), at::zeros({3})}};
  };
  std::atomic<bool> leaves = false;
  std::string end = "none";
  std::thread thread([&] {
    end = run_served_worker(side, source, MessageClient(server.endpoint, server.secret, {.name = "rank 2"}),
                            {.worker = 2, .configuration = "same", .timeout_seconds = kPatience, .leaves = [&] { return leaves.load(); }});
  });
  CHECK(server.next_message().at("is") == "here");
  server.send(encode(Welcome{}));
  CHECK(server.next_message().at("is") == "free");
  leaves = true;
  CHECK(server.next_message().at("is") == "leaving");
  server.send(encode(WorkOrder{.step = 7}), packed_text(side.empty_push()));
  CHECK(decode<WorkDone>(server.next_message(), "here").step == 7);
  server.send(encode(TrainingEnd{}));
  thread.join();
  CHECK(end.empty());
  CHECK(num_computed == 1);
}

TEST_CASE("served worker: one that asked to leave ends if the server is lost, and does not reconnect") {
  std::optional<FakeServer> server(MessageListener::for_forks());
  TwoTensors side;
  std::string end = "none";
  std::thread thread([&] {
    end = run_served_worker(side, {}, MessageClient(server->endpoint, server->secret, {.name = "rank 2"}),
                            {.worker = 2, .configuration = "same", .timeout_seconds = kPatience, .leaves = [] { return true; }});
  });
  CHECK(server->next_message().at("is") == "here");
  CHECK(server->next_message().at("is") == "leaving");
  server.reset();
  thread.join();
  CHECK(end.empty());
}

TEST_CASE("served worker: takes a version, pushes its result, and asks again; an unknown order ends it with an error") {
  FakeServer server(MessageListener::for_forks());
  TwoTensors side;
  std::vector<double> seen;
  const ComputeFunction source = [&](const WorkOrder& order) {
    seen = {side.pull_buffers()[0][0].item<double>(), side.pull_buffers()[1][2].item<double>()};
    return PushData{.loss = 1, .tensors = {at::full({2}, static_cast<double>(order.step)), at::Tensor()}};
  };
  std::exception_ptr failure;
  std::thread thread([&] {
    try {
      run_served_worker(side, source, MessageClient(server.endpoint, server.secret, {.name = "rank 2"}),
                        {.worker = 2, .configuration = "same", .timeout_seconds = kPatience});
    } catch (...) {
      failure = std::current_exception();
    }
  });
  CHECK(server.next_message() == Json{{"is", "here"}, {"worker", 2}, {"configuration", "same"}});
  server.send(encode(Welcome{}));
  CHECK(server.next_message() == Json{{"is", "free"}, {"slot", false}});

  server.send(encode(WorkOrder{.step = 7}), packed_text({at::full({2}, 0.5), at::full({3}, 0.25)}));
  std::string data;
  const WorkDone done = decode<WorkDone>(server.next_message(&data), "here");
  CHECK(done.step == 7);
  CHECK(done.loss == 1);
  CHECK(done.missing == std::vector<size_t>{1});
  CHECK(data == packed_text({at::full({2}, 7.0), at::Tensor()}));
  CHECK(seen == std::vector<double>{0.5, 0.25});
  CHECK(server.next_message().at("is") == "free");

  server.send(R"({"do": "sing"})");
  const Json said = server.next_message();
  CHECK(said.at("is") == "failed");
  CHECK(said.at("error").get<std::string>().find("\"sing\", which is not understood") != std::string::npos);
  thread.join();
  CHECK_THROWS_AS(std::rethrow_exception(failure), Error);
}

}  // namespace
}  // namespace cohort
