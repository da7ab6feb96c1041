#include "cohort/comm/hang_report.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "cohort/base/error.h"
#include "cohort/comm/group.h"

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
  // In the first round nothing is known of the loop, but calls may have been started ahead.
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

/// Forked ranks. `act` is what rank 1 does instead of the second sum; then it makes that sum. What each rank threw; rank 1 may be gone.
std::vector<std::string> run_forked(const char* backend, const std::function<void()>& act,
                                    const std::function<void(Group&)>& others = nullptr) {
  constexpr int kRanks = 3;
  constexpr size_t kText = 4096;
  auto* const texts = static_cast<char*>(::mmap(nullptr, kRanks * kText, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
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
        if (rank == 1) act();
        if (others) others(group);
        group.all_reduce(tensor, Reduction::kSum, "bucket 3");
        group.barrier();  // In shared memory what the others had left is enough for a sum that comes too late.
      } catch (const std::exception& error) {
        text = error.what();
      }
      std::strncpy(texts + static_cast<size_t>(rank) * kText, text.c_str(), kText - 1);
      ::_exit(0);
    }
    pids.push_back(pid);
  }
  // Rank 1 may be stopped: it goes on when the others have said what they saw.
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
    const std::vector<std::string> dead = run_forked(backend, [] { ::raise(SIGKILL); });
    const std::vector<std::string> stopped = run_forked(backend, [] { ::raise(SIGSTOP); });
    const std::vector<std::string> slow = run_forked(backend, [] { std::this_thread::sleep_for(std::chrono::milliseconds(1000)); });
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
    const std::vector<std::string> errors = run_forked(backend, [] { ::raise(SIGKILL); }, receive);
    const auto both = [](Group& group) {
      std::vector<at::Tensor> later{torch::ones({100})}, sum{torch::ones({100})};
      const auto message = group.c10d_backend()->recv(later, 1, 4);
      group.c10d_backend()->allreduce(sum)->wait();
    };
    const std::vector<std::string> mixed = run_forked(backend, [] { ::raise(SIGKILL); }, both);
    for (const int rank : {0, 2}) {
      CHECK_MESSAGE(
          errors[static_cast<size_t>(rank)].find("receive of activations from rank 1 (400 bytes) failed on rank") != std::string::npos,
          errors[static_cast<size_t>(rank)]);
      CHECK_MESSAGE(errors[static_cast<size_t>(rank)].find(") has ended") != std::string::npos, errors[static_cast<size_t>(rank)]);
      CHECK_MESSAGE(mixed[static_cast<size_t>(rank)].find(") has ended") != std::string::npos, mixed[static_cast<size_t>(rank)]);
    }
  }
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
  CHECK(HangReporter(nullptr, Peers(), 0, 2, 0.1).explain(recorder, "barrier #1", "", false).find("rank 1 has not come") == 0);
}

}  // namespace
}  // namespace cohort
