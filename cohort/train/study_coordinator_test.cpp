#include "cohort/train/study_coordinator.h"

#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <set>
#include <thread>

#include "cohort/base/error.h"
#include "cohort/base/file.h"
#include "cohort/base/json.h"
#include "cohort/study/noisy_quadratic.h"
#include "cohort/study/trial_messages.h"

using namespace cohort;
using namespace cohort::study;

namespace {

StudySpec quadratic_spec() {
  return parse_spec(
      "[workload]\nname = \"test\"\ndata = \"noisy-quadratic:dimensions=20\"\noptimizer = \"sgd\"\n"
      "[study]\ngoals = [\"val_loss<0.3\"]\nbatch_sizes = [1, 16]\ntrials = 5\nsteps = 400\ndiverged_above = 100\n"
      "[search]\nlearning_rate = { scale = \"log\", min = 1e-3, max = 8 }\n",
      "test");
}

/// A worker's side, by hand: what it does with its n-th trial. It obeys like StudyWorker where `odd` returns false.
using Odd = std::function<bool(int trial, MessageLink& link, const TrialOrder& order)>;

void work(const StudySpec& spec, MessageLink link, const Odd& odd) {
  const auto runner = make_noisy_quadratic_runner(spec);
  const CensorRule rule(spec);
  try {
    for (int trials = 0;;) {
      const auto text = link.receive(20);
      if (!text) return;
      const Json message = Json::parse(*text);
      const std::string what = message.at("do");
      if (what == "phase") link.send(R"({"is":"ready"})");
      if (what == "end") {
        link.send(R"({"is":"bye"})");
        return;
      }
      if (what != "run") continue;
      const TrialOrder order = order_from_json(message.at("order"), "order");
      const TrialBound bound = bound_from_json(message.at("bound"), "bound");
      if (odd && odd(trials++, link, order)) {
        if (!link) return;
        continue;
      }
      Trial trial{.id = order.id, .parameters = order.parameters};
      ReachedSteps own = rule.none_reached();
      const TrialOutcome outcome = runner->run(order, {.measured = [&](const Measurement& one) {
                                                 trial.measurements.push_back(one);
                                                 rule.note(one, own);
                                                 return rule.wanted(bound, own);
                                               }});
      trial.status = outcome.status;
      trial.steps = outcome.steps;
      link.send(Json{{"is", "ended"}, {"trial", to_json(trial)}}.dump());
    }
  } catch (const Error&) {
    // The coordinator is gone: its own error says why.
  }
}

/// A study with these workers in one process.
int run_with(const StudySpec& spec, const std::string& folder, const std::vector<Odd>& workers) {
  std::vector<MessageLink> links;
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    LinkPairs::Ends ends = LinkPairs(1).take(0);
    links.push_back(std::move(ends.to_workers[0]));
    threads.emplace_back(
        [&spec, &odd = workers[rank], link = std::move(ends.to_coordinator)]() mutable { work(spec, std::move(link), odd); });
  }
  int code = -1;
  std::exception_ptr error;
  {
    StudyCoordinator coordinator(spec, {.folder = folder, .quiet = true, .summary = false, .stop_seconds = 5}, std::move(links));
    try {
      code = coordinator.run();
    } catch (...) {
      error = std::current_exception();
    }
  }
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
  return code;
}

bool same_study(const std::string& a, const std::string& b) {
  const StudyData x = Store::open_readonly(a).read(), y = Store::open_readonly(b).read();
  for (size_t i = 0; i < x.batches.size(); ++i) {
    if (x.batches[i].trials.size() != y.batches[i].trials.size()) return false;
    for (size_t k = 0; k < x.batches[i].trials.size(); ++k) {
      Json p = to_json(x.batches[i].trials[k]), q = to_json(y.batches[i].trials[k]);
      p.erase("seconds"), q.erase("seconds");
      if (p != q) return false;
    }
  }
  return x.batches.size() == y.batches.size();
}

}  // namespace

TEST_CASE("a lost worker's trial goes to another, and the same is stored") {
  const TemporaryFolder folder;
  const StudySpec spec = quadratic_spec();
  CHECK(run_with(spec, folder / "one", {{}}) == 0);
  const Odd dies = [](int trial, MessageLink& link, const TrialOrder&) {
    if (trial < 1) return false;
    link.close();
    return true;
  };
  CHECK(run_with(spec, folder / "lost", {{}, dies, dies}) == 0);
  CHECK(same_study(folder / "one", folder / "lost"));
  const Store store = Store::open_readonly(folder / "one");
  CHECK(store.trials(1).size() >= 5);
  CHECK(store.note("work_saved"));
}

TEST_CASE("when no worker is left the study ends with an error, and goes on later") {
  const TemporaryFolder folder;
  const StudySpec spec = quadratic_spec();
  const Odd dies = [](int trial, MessageLink& link, const TrialOrder&) {
    if (trial < 2) return false;
    link.close();
    return true;
  };
  CHECK_THROWS_AS(run_with(spec, folder / "a", {dies, dies}), Error);
  CHECK(run_with(spec, folder / "a", {{}, {}}) == 0);
  CHECK(run_with(spec, folder / "b", {{}}) == 0);
  CHECK(same_study(folder / "a", folder / "b"));
}

TEST_CASE("a trial that ended while a lower id ran is not run again") {
  const TemporaryFolder folder;
  const StudySpec spec = quadratic_spec();
  // Two workers are on batch size 16's trials 0 and 1 only after both batch sizes have one each: four workers, and trial 0 never ends.
  std::atomic<int> ended{0};
  const Odd stubborn = [&](int, MessageLink& link, const TrialOrder& order) {
    if (order.id != 0) {
      ++ended;
      return false;
    }
    while (ended < 2) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    link.send(R"({"is":"failed","code":1,"error":"it broke"})");
    return true;
  };
  try {
    run_with(spec, folder / "a", {stubborn, stubborn, stubborn, stubborn});
    FAIL("it should have thrown");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kFailed);
    CHECK(std::string(error.what()).find(": it broke") != std::string::npos);
  }
  CHECK(Store::open_readonly(folder / "a").trials(16).empty());
  std::set<std::pair<int64_t, int64_t>> kept;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "a/in_progress"))
    if (entry.path().extension() == ".trial") {
      const std::string name = entry.path().filename().string();
      kept.insert({std::stoll(name), std::stoll(name.substr(name.find('_') + 1))});
    }
  CHECK(kept.size() >= 2);
  std::atomic<bool> again{false};
  const Odd watch = [&](int, MessageLink&, const TrialOrder& order) {
    if (kept.contains({order.batch_size, order.id})) again = true;
    return false;
  };
  CHECK(run_with(spec, folder / "a", {watch, watch}) == 0);
  CHECK_FALSE(again);
  CHECK(run_with(spec, folder / "b", {{}}) == 0);
  CHECK(same_study(folder / "a", folder / "b"));
}

TEST_CASE("nonsense from a worker ends the study with a sentence") {
  const TemporaryFolder folder;
  const StudySpec spec = quadratic_spec();
  for (const char* nonsense : {"what?", R"({"is":"dancing"})", R"({"is":"ended","trial":{}})", R"({"is":"ended","trial":[1]})", "[]"}) {
    CAPTURE(nonsense);
    const Odd odd = [&](int, MessageLink& link, const TrialOrder&) {
      link.send(nonsense);
      return true;
    };
    CHECK_THROWS_AS(run_with(spec, folder / "a", {odd}), Error);
  }
}
