#include "cohort/comm/transport/hang_report.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "cohort/base/fail.h"
#include "cohort/comm/group.h"
#include "cohort/comm/group_internals.h"
#include "tests/support/thread_ranks.h"

namespace cohort {
namespace {

CallRecord sum_record(const char* name, uint64_t sequence, uint64_t count = 10) {
  Call call;
  call.op = Op::kAllReduce;
  call.type = at::kFloat;
  call.count = count;
  call.name = name;
  call.sequence = sequence;
  CallRecord record;
  record.signature = signature_of(call);
  record.state = CallRecord::State::kDone;
  return record;
}

FailureReport report_of(const std::vector<const char*>& names) {
  FailureReport report;
  for (size_t i = 0; i < names.size(); ++i) report.calls.push_back(sum_record(names[i], i + 1));
  return report;
}

using Reports = std::vector<std::optional<FailureReport>>;

TEST_CASE("where rings differ, the rank and what it did are named") {
  const FailureReport usual = report_of({"a", "b", "c", "a", "b"});
  CHECK(explain_divergence(Reports{usual, usual, std::nullopt}) == "");
  // Left out: known from the call that came next in the loop before.
  std::string text = explain_divergence(Reports{usual, report_of({"a", "b", "c", "a", "c"}), usual});
  CHECK(text.find("rank 1 left out the all-reduce #5 of b") != std::string::npos);
  CHECK(text.find("where ranks 0 and 2 made the all-reduce #5 of b") != std::string::npos);
  // With two ranks, the one that goes on as before is right, whichever it is.
  CHECK(explain_divergence(Reports{report_of({"a", "b", "c", "a", "c"}), usual}).find("rank 0 left out the all-reduce #5 of b") !=
        std::string::npos);
  CHECK(explain_divergence(Reports{usual, report_of({"a", "b", "c", "a", "c"})}).find("rank 1 left out the all-reduce #5 of b") !=
        std::string::npos);
  // Made twice.
  CHECK(explain_divergence(Reports{usual, usual, report_of({"a", "b", "c", "a", "a"})})
            .find("rank 2 made a call more, the all-reduce #5 of a") != std::string::npos);
  // In the first round the loop is unknown, but calls may have been started ahead.
  CHECK(explain_divergence(Reports{report_of({"a", "b", "c"}), report_of({"a", "c"}), report_of({"a", "b", "c"})})
            .find("rank 1 left out the all-reduce #2 of b") != std::string::npos);
  // The same tensor in another shape.
  FailureReport shorter = usual;
  shorter.calls[4] = sum_record("b", 5, 9);
  CHECK(explain_divergence(Reports{usual, usual, shorter}).find("rank 2 has another shape") != std::string::npos);
}

TEST_CASE("verdicts: dead, stopped, silent, late, and nobody to blame") {
  FailureEvidence evidence;
  evidence.call = "all-reduce #3 of c (10 Float, sum)";
  evidence.reports = {report_of({"a", "b", "c"}), std::nullopt, report_of({"a", "b", "c"})};
  evidence.states = {"", "", ""};
  evidence.names = {"rank 0 (pid 5)", "rank 1 (pid 6)", "rank 2 (pid 7)"};
  CHECK(judge(evidence).find("rank 1 (pid 6) has not come to the all-reduce #3 of c") == 0);
  CHECK(judge(evidence).find("last calls: ranks 0 and 2 all-reduce #3 of c (10 Float, sum) (done), rank 1 unknown") != std::string::npos);
  evidence.states[1] = "has ended";
  CHECK(judge(evidence).find("rank 1 (pid 6) has ended; last calls") == 0);
  evidence.states[1] = "is stopped";
  CHECK(judge(evidence).find("rank 1 (pid 6) is stopped; last calls") == 0);
  evidence.states[1] = "";
  // A rank that ended because of another's failure is not the first cause.
  evidence.states[2] = "has ended";
  CHECK(judge(evidence).find("rank 1 (pid 6) has not come") == 0);
  evidence.states[2] = "";
  evidence.reports[1] = evidence.reports[0];
  CHECK(judge(evidence).find("all ranks are in the same call") == 0);
  evidence.reports[1]->missing = {0};
  evidence.reports[1]->call = "all-reduce #3 of c";
  CHECK(judge(evidence).find("rank 1 (pid 6) had given up its all-reduce #3 of c waiting for rank 0, which came too late") == 0);
  // A transport that knows whom it waits for is believed.
  evidence.reports[1] = evidence.reports[2] = std::nullopt;
  evidence.reports[0]->missing = {2};
  CHECK(judge(evidence).find("rank 1 (pid 6)") == std::string::npos);
  CHECK(ranks_named_in("rank 12 and rank 0, rank 3: rank 99 rank x", 3, 20) == std::vector<int>{12, 0});
}

/// Thread ranks make the calls `loop` twice; before call `at` of the second round rank `guilty` does something else. What each rank threw.
std::vector<std::string> run_loop(const char* backend, int num_ranks, int guilty, int at, const std::function<bool(Group&)>& instead) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> errors(static_cast<size_t>(num_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        Group group = Group::create(store, rank, num_ranks, {.backend = backend, .timeout_seconds = 3});
        for (int round = 0; round < 3; ++round)
          for (int call = 0; call < 4; ++call) {
            if (rank == guilty && round == 1 && call == at && instead(group)) continue;
            group.all_reduce(torch::ones({10 + call}), Reduction::kSum, concat("layer", call, ".weight"));
          }
      } catch (const Error& error) {
        errors[static_cast<size_t>(rank)] = error.code() == ErrorCode::kFailed ? error.what() : concat("wrong code: ", error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

TEST_CASE("a skipped call, another shape, another type: every rank says the same and names rank and operation") {
  const auto all_say = [](const std::vector<std::string>& errors, const std::string& part) {
    for (const std::string& error : errors) {
      CHECK_MESSAGE(error.find(part) != std::string::npos, error);
      CHECK(error == errors[0]);
    }
  };
  for (const char* backend : {"shm", "gloo"}) {
    all_say(run_loop(backend, 4, 2, 1, [](Group&) { return true; }), "rank 2 left out the all-reduce #6 of layer1.weight (11 Float, sum)");
    all_say(run_loop(backend, 2, 0, 2, [](Group&) { return true; }), "rank 0 left out the all-reduce #7 of layer2.weight (12 Float, sum)");
    all_say(run_loop(backend, 3, 1, 2,
                     [](Group& group) { return group.all_reduce(torch::ones({99}), Reduction::kSum, "layer2.weight"), true; }),
            "rank 1 calls all-reduce #7 of layer2.weight (99 Float, sum)");
    all_say(
        run_loop(backend, 3, 1, 2,
                 [](Group& group) { return group.all_reduce(torch::ones({12}, torch::kDouble), Reduction::kSum, "layer2.weight"), true; }),
        "rank 1 uses another data type");
  }
}

/// Waits until ranks 0 and 2 have published their reports.
using WaitForOthers = std::function<void()>;

/// Forked ranks. `act` is what rank 1 does instead of the second sum; then it makes that sum. What each rank threw; rank 1 may be gone.
std::vector<std::string> run_forked(const char* backend, const std::function<void(const WaitForOthers&)>& act,
                                    const std::function<void(Group&)>& others = nullptr) {
  constexpr int kRanks = 3;
  constexpr size_t kText = 4096;
  auto* const texts = static_cast<char*>(::mmap(nullptr, kRanks * kText, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const auto has_said = [&](int rank) { return std::atomic_ref<char>(texts[(static_cast<size_t>(rank) + 1) * kText - 1]); };
  const int store_fd = ::memfd_create("store", 0);
  const std::string store_path = concat("/proc/", ::getpid(), "/fd/", store_fd);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::string text = "no error";
      try {
        Group group = Group::create(c10::make_intrusive<c10d::FileStore>(store_path, kRanks), rank, kRanks,
                                    {.backend = backend, .timeout_seconds = 0.4});
        const at::Tensor tensor = torch::ones({100});
        group.all_reduce(tensor, Reduction::kSum, "first");
        if (rank == 1)
          act([&] {
            for (const int other : {0, 2})
              while (!has_said(other)) ::usleep(1000);
          });
        if (others) others(group);
        group.all_reduce(tensor, Reduction::kSum, "bucket 3");
        group.barrier();  // In shared memory what the others had left is enough for a sum that comes too late.
      } catch (const std::exception& error) {
        text = error.what();
      }
      std::strncpy(texts + static_cast<size_t>(rank) * kText, text.c_str(), kText - 2);
      has_said(rank) = 1;
      ::_exit(0);
    }
    pids.push_back(pid);
  }
  // Rank 1 may be stopped: it continues when the others have published their reports.
  for (const int rank : {0, 2, 1}) {
    if (rank == 1) ::kill(pids[1], SIGCONT);
    ::waitpid(pids[static_cast<size_t>(rank)], nullptr, 0);
  }
  std::vector<std::string> errors;
  for (int rank = 0; rank < kRanks; ++rank) errors.emplace_back(texts + static_cast<size_t>(rank) * kText);
  ::munmap(texts, kRanks * kText);
  ::close(store_fd);
  return errors;
}

TEST_CASE("a dead, a stopped and a slow rank are named by every survivor, with the operation") {
  const auto say = [](const std::string& error, const std::string& part) {
    CHECK_MESSAGE(error.find(part) != std::string::npos, error);
    CHECK_MESSAGE(error.find("all-reduce #2 of bucket 3 (100 Float, sum)") != std::string::npos, error);
  };
  for (const char* backend : {"shm", "gloo"}) {
    const std::vector<std::string> dead = run_forked(backend, [](const WaitForOthers&) { ::raise(SIGKILL); });
    const std::vector<std::string> stopped = run_forked(backend, [](const WaitForOthers&) { ::raise(SIGSTOP); });
    const std::vector<std::string> slow = run_forked(backend, [](const WaitForOthers& wait) { wait(); });
    for (const int rank : {0, 2}) {
      say(dead[static_cast<size_t>(rank)], ") has ended");
      say(stopped[static_cast<size_t>(rank)], ") is stopped");
      say(slow[static_cast<size_t>(rank)], "rank 1 (pid ");
      say(slow[static_cast<size_t>(rank)], "has not come to the all-reduce #2");
      for (const auto& errors : {dead, stopped, slow}) CHECK(errors[static_cast<size_t>(rank)].find("rank 1 (pid ") != std::string::npos);
    }
    say(slow[1], "which came too late");
  }
}

TEST_CASE("a rank that dies before it sends is named by the receiver, also where sums and messages are under way together") {
  for (const char* backend : {"shm", "gloo"}) {
    const auto receive = [](Group& group) { group.receive(torch::ones({100}), 1, 4, "activations"); };
    const std::vector<std::string> errors = run_forked(backend, [](const WaitForOthers&) { ::raise(SIGKILL); }, receive);
    const auto both = [](Group& group) {
      std::vector<at::Tensor> later{torch::ones({100})}, sum{torch::ones({100})};
      const auto message = group.c10d_backend()->recv(later, 1, 4);
      group.c10d_backend()->allreduce(sum)->wait();
    };
    const std::vector<std::string> mixed = run_forked(backend, [](const WaitForOthers&) { ::raise(SIGKILL); }, both);
    for (const int rank : {0, 2}) {
      CHECK_MESSAGE(
          errors[static_cast<size_t>(rank)].find("receive of activations from rank 1 (400 bytes) failed on rank") != std::string::npos,
          errors[static_cast<size_t>(rank)]);
      CHECK_MESSAGE(errors[static_cast<size_t>(rank)].find(") has ended") != std::string::npos, errors[static_cast<size_t>(rank)]);
      CHECK_MESSAGE(mixed[static_cast<size_t>(rank)].find(") has ended") != std::string::npos, mixed[static_cast<size_t>(rank)]);
    }
  }
}

CallRecord message_record(CallRecord::Kind kind, int peer, uint64_t bytes, CallRecord::State state = CallRecord::State::kRunning) {
  CallRecord record;
  record.kind = kind;
  record.state = state;
  record.signature.root = peer;
  record.signature.count = bytes;
  record.tag = 4;
  return record;
}

TEST_CASE("of a message its peer is judged first, and what it sent") {
  using Kind = CallRecord::Kind;
  const auto begins = [](const FailureEvidence& evidence, const std::string& text) {
    const std::string verdict = judge(evidence);
    CHECK_MESSAGE(verdict.find(text) == 0, verdict);
  };
  FailureEvidence evidence;
  evidence.call = "receive of x from rank 1 (4000 bytes)";
  evidence.message = message_record(Kind::kReceive, 1, 4000);
  evidence.reports = {
      FailureReport{evidence.call, "", {}, {message_record(Kind::kReceive, 1, 8, CallRecord::State::kDone), *evidence.message}},
      std::nullopt, std::nullopt};
  evidence.names = {"rank 0 (pid 5)", "rank 1 (pid 6)", "rank 2 (pid 7)"};
  // Rank 2 had no more to do.
  evidence.states = {"", "", "has ended"};
  begins(evidence,
         "rank 1 (pid 6) has not come to its end of the receive of x from rank 1 (4000 bytes), the send of 4000 bytes with tag 4");
  evidence.states[1] = "is stopped";
  begins(evidence, "rank 1 (pid 6) is stopped; rank 2 (pid 7) has ended");
  evidence.states[1] = "has ended";
  begins(evidence, "rank 1 (pid 6) has ended without having sent a message of 4000 bytes with tag 4");
  // The first message arrived; the second has another size.
  evidence.states = {"", "", ""};
  evidence.reports[1] = FailureReport{"barrier #1", "", {}, {message_record(Kind::kSend, 0, 8), message_record(Kind::kSend, 0, 3996)}};
  begins(evidence, "rank 1 (pid 6) sent 3996 bytes with tag 4 where rank 0 awaits 4000: give both ends tensors of the same size");
  evidence.reports[1]->calls.pop_back();
  CHECK(judge(evidence).find("bytes with tag 4 where") == std::string::npos);
}

TEST_CASE("a message of another size is an error that names both sizes and the sender") {
  for (const char* backend : {"shm", "gloo"}) {
    const bool gloo = std::string(backend) == "gloo";
    auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::string> texts(2);
    std::vector<ErrorCode> codes(2, ErrorCode::kInterrupted);
    std::vector<std::thread> threads;
    at::Tensor target = torch::full({1000}, 7.0f);
    for (int rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        try {
          Group group = Group::create(store, rank, 2, {.backend = backend, .timeout_seconds = 0.5});
          if (rank == 1) group.send(torch::ones({999}), 0, 4, "activations");
          else group.receive(target, 1, 4, "activations");
          group.barrier();
        } catch (const Error& error) {
          texts[static_cast<size_t>(rank)] = error.what();
          codes[static_cast<size_t>(rank)] = error.code();
        }
      });
    for (std::thread& thread : threads) thread.join();
    CHECK_MESSAGE(texts[0].find("the receive of activations from rank 1 (4000 bytes) failed on rank 0 of 2: rank 1 ") == 0, texts[0]);
    CHECK_MESSAGE(texts[0].find(gloo ? "sent 3996 bytes with tag 4 where rank 0 awaits 4000"
                                     : "sent 3996 bytes with tag 4, rank 0 expects 4000") != std::string::npos,
                  texts[0]);
    CHECK(texts[0].find("give both ends tensors of the same size") != std::string::npos);
    CHECK(codes[0] == (gloo ? ErrorCode::kEnvironment : ErrorCode::kFailed));
    CHECK(target.eq(7).all().item<bool>());
  }
}

TEST_CASE("a rank that waits for one that has given up fails while that one can still say why") {
  // Rank 2 does not come. Rank 0 waits for it a short time; rank 1 waits for rank 0 alone, for long.
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> texts(2);
  std::promise<void> rank_1_knows;
  std::future<void> known = rank_1_knows.get_future();
  bool in_time = false;
  std::promise<void> done;
  const std::shared_future<void> all_done = done.get_future().share();
  const auto run_rank = [&](int rank, double timeout_seconds) {
    Group group = Group::create(store, rank, 3, {.backend = "gloo", .timeout_seconds = timeout_seconds});
    group.barrier();
    if (rank < 2) {
      try {
        group.receive(torch::ones({100}), rank == 0 ? 2 : 0, 4, "activations");
      } catch (const std::exception& error) {
        texts[static_cast<size_t>(rank)] = error.what();
      }
    }
    if (rank == 1) rank_1_knows.set_value();
    if (rank == 0) in_time = known.wait_for(std::chrono::seconds(20)) == std::future_status::ready;  // Its connections end with its group.
    if (rank == 0) done.set_value();
    if (rank == 2) all_done.wait();
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) threads.emplace_back(run_rank, rank, rank == 0 ? 0.3 : 60);
  for (std::thread& thread : threads) thread.join();
  CHECK(in_time);
  for (const std::string& text : texts) {
    CHECK_MESSAGE(text.find(concat("of 3: rank 2 (pid ", ::getpid(), ") has not come to")) != std::string::npos, text);
    CHECK_MESSAGE(text.find("came too late") == std::string::npos, text);
  }
}

TEST_CASE("an exchange made by hand is a call of its group: numbered, recorded, explained") {
  run_thread_ranks(
      3,
      [](Group& group) {
        GroupInternals::run_by_hand(group, Op::kAllGather, 5, at::kFloat, "weights", [] {});
        group.barrier();
        std::string text;
        try {
          GroupInternals::run_by_hand(group, Op::kReduceScatter, 9, at::kFloat, "gradients",
                                      [] { throw std::runtime_error("rank 1 did not come within 1 s"); });
        } catch (const Error& error) {
          text = error.what();
        }
        const std::string call = concat("the reduce-scatter #3 of gradients (9 Float, sum) failed on rank ", group.rank(), " of 3: ");
        if (text.find(call) != 0 || text.find("last calls: ranks 0, 1 and 2 reduce-scatter #3 of gradients") == std::string::npos)
          FAIL(text);
        text.clear();
        try {
          GroupInternals::run_by_hand(group, Op::kAllGather, 5, at::kFloat, "weights", [] { FAIL("ran"); });
        } catch (const Error& error) {
          text = error.what();
        }
        if (text.find("the all-gather of weights was not run, because an exchange of this group failed before") != 0) FAIL(text);
      },
      {.backend = "shm", .timeout_seconds = 1});
}

TEST_CASE("a store that is gone or hangs does not keep the report") {
  class DeadStore : public c10d::HashStore {
   public:
    void set(const std::string&, const std::vector<uint8_t>&) override { throw std::runtime_error("connection reset"); }
  };
  Recorder recorder;
  const HangReporter reporter(c10::make_intrusive<DeadStore>(), Peers(), 0, 2, 0.1);
  CHECK(reporter.explain(recorder, "barrier #1", "rank 1 did not come within 1 s", false).find("rank 1 has not come to the barrier #1") ==
        0);
  // The store has ended with its rank; dead ranks of this host are still found.
  const int store_fd = ::memfd_create("store", 0);
  const auto store = c10::make_intrusive<c10d::FileStore>(concat("/proc/", ::getpid(), "/fd/", store_fd), 2);
  const pid_t pid = ::fork();
  if (pid == 0) {
    Peers::exchange(*store, 1, 2);
    ::_exit(0);
  }
  const Peers peers = Peers::exchange(*store, 0, 2);
  siginfo_t ended{};
  ::waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT);
  CHECK(HangReporter(c10::make_intrusive<DeadStore>(), peers, 0, 2, 0.1)
            .explain(recorder, "barrier #1", "rank 1 did not come within 1 s", false)
            .find(concat("rank 1 (pid ", pid, ") has ended; ")) == 0);
  ::waitpid(pid, nullptr, 0);
  ::close(store_fd);
  CHECK(HangReporter(nullptr, Peers(), 0, 2, 0.1).explain(recorder, "barrier #1", "", false).find("rank 1 has not come") == 0);
}

}  // namespace
}  // namespace cohort
