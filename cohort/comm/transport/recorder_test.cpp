#include "cohort/comm/transport/recorder.h"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/comm/transport/calls.h"

namespace cohort {
namespace {

Call sum_of(const char* name, size_t count, uint64_t sequence) {
  Call call;
  call.op = Op::kAllReduce;
  call.type = at::kHalf;
  call.count = count;
  call.name = name;
  call.sequence = sequence;
  return call;
}

TEST_CASE("the recorder keeps the last calls with name, times and state") {
  Recorder recorder;
  CHECK(recorder.last().empty());
  const uint64_t first = recorder.start(sum_of("weight", 12, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  recorder.end(first);
  const uint64_t failed = recorder.start(sum_of("", 3, 2));
  recorder.end(failed, true);
  recorder.start_message(CallRecord::Kind::kSend, 64, 3, 9, "activations");
  const std::vector<CallRecord> calls = recorder.last();
  REQUIRE(calls.size() == 3);
  CHECK(calls[0].state == CallRecord::State::kDone);
  CHECK(calls[0].seconds >= 0.019);
  CHECK(calls[0].seconds < 5);
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  CHECK(calls[0].start_seconds > now - 10);
  CHECK(calls[0].start_seconds < now + 0.01);
  CHECK(calls[1].state == CallRecord::State::kFailed);
  CHECK(std::string(calls[1].signature.name).empty());
  CHECK(describe(calls[2]).find("send #1 of activations to rank 3 (64 bytes, tag 9), running") == 0);
  CHECK(recorder.text().find("all-reduce #1 of weight (12 Half, sum), done after ") == 0);
  CHECK(recorder.last(1).size() == 1);
}

TEST_CASE("a full ring forgets the oldest, and an end that comes too late changes nothing") {
  Recorder recorder;
  const uint64_t forgotten = recorder.start(sum_of("first", 1, 1));
  for (uint64_t i = 2; i <= Recorder::kCapacity + 1; ++i) recorder.end(recorder.start(sum_of("later", 1, i)));
  recorder.end(forgotten, true);
  const std::vector<CallRecord> calls = recorder.last();
  CHECK(calls.size() == Recorder::kCapacity);
  CHECK(calls.front().signature.sequence == 2);
  for (const CallRecord& call : calls) CHECK(call.state == CallRecord::State::kDone);
}

TEST_CASE("records survive JSON, and an invalid record is refused") {
  Recorder recorder;
  recorder.end(recorder.start(sum_of("a.b", 7, 4)));
  recorder.start_message(CallRecord::Kind::kReceive, 5, -1, 2, "");
  Json json;
  for (const CallRecord& record : recorder.last()) json["calls"].push_back(to_json(record));
  json = Json::parse(json.dump());
  REQUIRE(json.at("calls").size() == 2);
  const CallRecord back = call_record_from_json(json["calls"][0]);
  // Not the seconds: each reading knows the length of a tick a little better.
  const CallRecord there = recorder.last()[0];
  CHECK(same_call(back.signature, there.signature));
  CHECK(back.state == there.state);
  CHECK(back.seconds == doctest::Approx(there.seconds).epsilon(0.5));
  CHECK(describe(call_record_from_json(json["calls"][1])).find("receive #1 from any rank (5 bytes, tag 2)") == 0);
  json["calls"][0]["op"] = "all-reduse";
  CHECK_THROWS_WITH_AS(call_record_from_json(json["calls"][0]), doctest::Contains("all-reduse"), Error);
  json["calls"][0].erase("op");
  CHECK_THROWS_AS(call_record_from_json(json["calls"][0]), Error);
}

TEST_CASE("reading while another thread records gives whole records") {
  Recorder recorder;
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t i = 1; !stop; ++i) recorder.end(recorder.start(sum_of(i % 2 ? "odd" : "even", i, i)));
  });
  size_t read = 0, wrong = 0;
  while (read < 20000)
    for (const CallRecord& call : recorder.last(8)) {
      ++read;
      wrong += call.signature.count != call.signature.sequence;
    }
  stop = true;
  writer.join();
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace cohort
