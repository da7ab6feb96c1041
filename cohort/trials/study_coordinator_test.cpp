#include "cohort/trials/study_coordinator.h"

#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <mutex>
#include <set>
#include <thread>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/study/noise/noisy_quadratic.h"
#include "cohort/study/store/in_progress.h"
#include "cohort/world/messages/message_client.h"

namespace cohort {

TEST_CASE("silence is remarked on after five times the usual, but not before the least, then at each doubling") {
  SilenceWatch watch(10);
  double now = 100;
  watch.begin(now);
  for (int i = 0; i < 20; ++i) watch.on_message(now += 4);
  CHECK(watch.usual_seconds() == doctest::Approx(4));
  CHECK(!watch.overdue(now + 19.9));
  CHECK(watch.overdue(now + 20.5) == doctest::Approx(20.5));
  CHECK(!watch.overdue(now + 40.9));
  CHECK(watch.overdue(now + 41));
  CHECK(!watch.overdue(now + 81.9));
  CHECK(watch.overdue(now + 82));
  watch.on_message(now += 90);
  CHECK(watch.usual_seconds() == doctest::Approx(4));  // That silence was not usual.
  CHECK(!watch.overdue(now + 19.9));
  CHECK(watch.overdue(now + 20));
}

TEST_CASE("quick talkers are given the least; what never spoke five times that") {
  SilenceWatch watch(10);
  watch.begin(0);
  CHECK(!watch.overdue(49));
  CHECK(watch.overdue(50));
  watch.begin(60);
  watch.on_message(61);
  CHECK(!watch.overdue(70));
  CHECK(watch.overdue(71));
}

using namespace study;
namespace {

StudySpec quadratic_spec() {
  return parse_spec(
      "[workload]\nname = \"test\"\ndata = \"noisy-quadratic:dimensions=20\"\noptimizer = \"sgd\"\n"
      "[study]\ngoals = [\"val_loss<0.3\"]\nbatch_sizes = [1, 16]\ntrials = 5\nsteps = 400\ndiverged_above = 100\n"
      "[search]\nlearning_rate = { scale = \"log\", min = 1e-3, max = 8 }\n",
      "test");
}

constexpr double kPatienceSeconds = 120;

MessageClient link_of(const MessageListener& listener, size_t rank) {
  return MessageClient(listener.endpoint(), listener.secret(), {.name = concat("rank ", rank)});
}

/// A worker's side, by hand: what it does with its n-th trial. It obeys like StudyWorker where `odd` returns false.
using Odd = std::function<bool(int trial, MessageClient& link, const TrialOrder& order)>;

void work(const StudySpec& spec, MessageClient link, const Odd& odd) {
  const auto runner = make_noisy_quadratic_runner(spec);
  const CensorRule rule(spec);
  try {
    link.connect(kPatienceSeconds);
    for (int trials = 0;;) {
      const auto text = link.receive(20);
      if (!text) return;
      const Json message = Json::parse(text->text);
      const std::string what = message.at("do");
      if (what == "phase") link.send({.text = Json{{"is", "ready"}, {"team", message.at("team")}}.dump()});
      if (what == "end") {
        link.send({.text = R"({"is":"bye"})"});
        return;
      }
      if (what != "run") continue;
      const TrialOrder order = order_from_json(message.at("order"), "order");
      const TrialBound bound = bound_from_json(message.at("bound"), "bound");
      if (odd && odd(trials++, link, order)) {
        if (!link.is_connected()) return;
        continue;
      }
      Trial trial{.id = order.id, .parameters = order.parameters};
      ReachedSteps own = rule.none_reached();
      const TrialOutcome outcome = runner->run(order, {.measured = [&](const Measurement& one) {
                                                 trial.measurements.push_back(one);
                                                 rule.note(one, own);
                                                 return rule.step_limit(bound, own);
                                               }});
      trial.status = outcome.status;
      trial.steps = outcome.steps;
      link.send({.text = Json{{"is", "ended"}, {"trial", to_json(trial)}}.dump()});
    }
  } catch (const Error&) {
    // The coordinator is gone: its own error says why.
  }
}

/// A study with these workers in one process.
int run_with(const StudySpec& spec, const std::string& folder, const std::vector<Odd>& workers) {
  MessageListener listener = MessageListener::for_forks();
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < workers.size(); ++rank)
    threads.emplace_back([&spec, &odd = workers[rank], link = link_of(listener, rank)]() mutable { work(spec, std::move(link), odd); });
  int code = -1;
  std::exception_ptr error;
  {
    StudyCoordinator coordinator(
        spec, {.folder = folder, .num_ranks = static_cast<int>(workers.size()), .quiet = true, .summary = false, .stop_seconds = 5},
        MessageServer(std::move(listener)));
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
  const Odd dies = [](int trial, MessageClient& link, const TrialOrder&) {
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
  const Odd dies = [](int trial, MessageClient& link, const TrialOrder&) {
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
  const Odd stubborn = [&](int, MessageClient& link, const TrialOrder& order) {
    if (order.id != 0) {
      ++ended;
      return false;
    }
    while (ended < 2) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    link.send({.text = R"({"is":"failed","code":1,"error":"it broke"})"});
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
  // One file that is cut and one with another trial in it cost these two trials, and nothing else.
  const auto file_of = [&](const std::pair<int64_t, int64_t>& trial) {
    for (const auto& entry : std::filesystem::directory_iterator(folder / "a/in_progress"))
      if (entry.path().extension() == ".trial" && entry.path().filename().string().starts_with(concat(trial.first, "_", trial.second, "_")))
        return entry.path().string();
    return std::string();
  };
  const std::pair<int64_t, int64_t> cut = *kept.begin(), other = *std::next(kept.begin());
  std::filesystem::resize_file(file_of(cut), std::filesystem::file_size(file_of(cut)) / 2);
  std::string content = read_small_file(file_of(other), 1 << 20);
  const std::string its_id = concat("\"id\":", other.second, ",");
  const size_t at = content.find(its_id);
  REQUIRE_MESSAGE(at != std::string::npos, content);
  write_file_atomically(file_of(other), content.replace(at, its_id.size(), concat("\"id\":", other.second + 100, ",")));
  std::set<std::pair<int64_t, int64_t>> again;
  std::mutex mutex;
  const Odd watch = [&](int, MessageClient&, const TrialOrder& order) {
    const std::lock_guard lock(mutex);
    if (kept.contains({order.batch_size, order.id})) again.insert({order.batch_size, order.id});
    return false;
  };
  CHECK(run_with(spec, folder / "a", {watch, watch}) == 0);
  CHECK(again == std::set<std::pair<int64_t, int64_t>>{cut, other});
  CHECK(run_with(spec, folder / "b", {{}}) == 0);
  CHECK(same_study(folder / "a", folder / "b"));
}

TEST_CASE("a run of some batch sizes leaves the others, and what an interrupted run left of them") {
  const TemporaryFolder folder;
  const StudySpec spec = quadratic_spec();
  REQUIRE(spec.batches.size() == 2);
  StudySpec first = spec, second = spec;
  first.batches.pop_back();
  second.batches.erase(second.batches.begin());
  CHECK(run_with(first, folder / "a", {{}}) == 0);
  CHECK(run_with(spec, folder / "b", {{}}) == 0);
  const int64_t size = second.batches[0].batch_size;
  // A trial of the other batch size that ended out of turn, as a killed run leaves it.
  const Trial ended = Store::open_readonly(folder / "b").read().batches[1].trials[1];
  InProgress(folder / "a").keep(size, second.batches[0].train_steps, ended);
  CHECK(run_with(first, folder / "a", {{}}) == 0);
  CHECK(Store::open_readonly(folder / "a").trials(size).empty());
  CHECK(InProgress(folder / "a").read(size, ended.id, second.batches[0].train_steps).steps == ended.steps);
  std::atomic<bool> again{false};
  const Odd watch = [&](int, MessageClient&, const TrialOrder& order) {
    if (order.batch_size != size || order.id == ended.id) again = true;
    return false;
  };
  CHECK(run_with(second, folder / "a", {watch}) == 0);
  CHECK_FALSE(again);
  CHECK(same_study(folder / "a", folder / "b"));
  CHECK_FALSE(std::filesystem::exists(folder / "a/in_progress"));
  CHECK(Store::open_readonly(folder / "a").note("work_saved") == Store::open_readonly(folder / "b").note("work_saved"));
}

TEST_CASE("nonsense from a worker ends the study with a sentence") {
  const TemporaryFolder folder;
  const StudySpec spec = quadratic_spec();
  for (const char* nonsense : {"what?", R"({"is":"dancing"})", R"({"is":"ended","trial":{}})", R"({"is":"ended","trial":[1]})", "[]"}) {
    CAPTURE(nonsense);
    const Odd odd = [&](int, MessageClient& link, const TrialOrder&) {
      link.send({.text = nonsense});
      return true;
    };
    CHECK_THROWS_AS(run_with(spec, folder / "a", {odd}), Error);
  }
}

namespace {

StudySpec team_spec() {
  return parse_spec(
      "[workload]\nname = \"test\"\ndata = \"synthetic:4,classes=2,samples=64\"\nmodel = \"fc:hidden=4\"\noptimizer = \"sgd\"\n"
      "[study]\ngoals = [\"val_error<0.1\"]\nbatch_sizes = [4, 8]\ntrials = 2\nsteps = 10\n"
      "[search]\nlearning_rate = { scale = \"log\", min = 1e-3, max = 8 }\n[machine]\nmax_batch_per_worker = 4\n",
      "test");
}

void end_at_once(MessageClient& link, const Json& run) {
  const TrialOrder order = order_from_json(run.at("order"), "order");
  Trial trial{.id = order.id, .parameters = order.parameters, .status = TrialStatus::kComplete, .steps = order.train_steps};
  trial.measurements.resize(1);
  trial.measurements[0].step = order.train_steps;
  trial.measurements[0].values[kValError] = 0.5;
  link.send({.text = Json{{"is", "ended"}, {"trial", to_json(trial)}}.dump()});
}

/// Ends every trial of batch size 4 at once. Returns the first message of another kind: the phase of teams, or the end.
Json work_alone(MessageClient& link) {
  for (;;) {
    const auto text = link.receive(kPatienceSeconds);
    if (!text) throw std::runtime_error("rank 0 is silent");
    const Json message = Json::parse(text->text);
    if (message.at("do") == "run") {
      end_at_once(link, message);
    } else if (message.at("do") == "phase" && message.at("team") == 1) {
      link.send({.text = R"({"is":"ready","team":1})"});
    } else if (message.at("do") != "bound") {
      return message;
    }
  }
}

/// The error that the study ends with.
std::string wait_for_end(MessageClient& link, Json message) {
  while (message.at("do") != "end") message = Json::parse(link.receive(kPatienceSeconds).value().text);
  return message.at("error");
}

/// The coordinator of three ranks, of which `rank_1` and `rank_2` do something odd; what it threw, and the last word rank 0 heard.
std::pair<std::string, std::string> run_teams(const std::string& folder, const std::function<void(MessageClient&)>& rank_0,
                                              const std::function<void(MessageClient&)>& rank_1,
                                              const std::function<void(MessageClient&)>& rank_2) {
  MessageListener listener = MessageListener::for_forks();
  std::vector<std::thread> threads;
  std::string last_word, thrown;
  for (const auto* rank : {&rank_0, &rank_1, &rank_2}) {
    threads.emplace_back([&last_word, rank, is_first = rank == &rank_0, link = link_of(listener, threads.size())]() mutable {
      try {
        link.connect(kPatienceSeconds);
        Json message = work_alone(link);
        (*rank)(link);
        if (!link.is_connected() || !is_first) return;
        last_word = wait_for_end(link, std::move(message));
      } catch (const std::exception& error) {
        if (is_first) last_word = error.what();
      }
    });
  }
  try {
    StudyCoordinator(team_spec(), {.folder = folder, .num_ranks = 3, .quiet = true, .summary = false}, MessageServer(std::move(listener)))
        .run();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kEnvironment) thrown = error.what();
  }
  for (std::thread& thread : threads) thread.join();
  return {thrown, last_word};
}

}  // namespace

TEST_CASE("a rank that gets ready after the others have ended the phase is given nothing where it follows in a team") {
  const TemporaryFolder folder;
  MessageListener listener = MessageListener::for_forks();
  std::atomic<bool> has_spoken_late{false};
  std::atomic<int> num_given{0};
  std::thread first([&, link = link_of(listener, 0)]() mutable {
    link.connect(kPatienceSeconds);
    work_alone(link);
    while (!has_spoken_late) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // Until rank 0 has heard it.
    link.send({.text = R"({"is":"ready","team":2})"});
    work_alone(link);
    link.send({.text = R"({"is":"bye"})"});
  });
  std::thread late([&, link = link_of(listener, 1)]() mutable {
    link.connect(kPatienceSeconds);
    work_alone(link);
    link.send({.text = R"({"is":"ready","team":1})"});
    has_spoken_late = true;
    for (Json message = Json::object(); message.value("do", "") != "end";) {
      message = Json::parse(link.receive(kPatienceSeconds).value().text);
      if (message.at("do") != "run") continue;
      ++num_given;
      end_at_once(link, message);
    }
    link.send({.text = R"({"is":"bye"})"});
  });
  const CoordinatorOptions options{.folder = folder / "study", .num_ranks = 2, .quiet = true, .summary = false, .stop_seconds = 5};
  CHECK(StudyCoordinator(team_spec(), options, MessageServer(std::move(listener))).run() == 0);
  first.join();
  late.join();
  CHECK(num_given == 0);
}

TEST_CASE("a rank that a team has lost is named with its number in the job, whoever speaks first") {
  const TemporaryFolder folder;
  const auto says = [](MessageClient& link) { link.send({.text = R"({"is":"failed","code":4,"error":"rank 7 of my team has ended"})"}); };
  const auto waits = [](MessageClient& link) { wait_for_end(link, {{"do", "phase"}}); };
  const auto dies = [](MessageClient& link) { link.close(); };
  const auto dies_later = [](MessageClient& link) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    link.close();
  };
  int number = 0;
  for (const auto& rank_1 : {std::function<void(MessageClient&)>(dies), std::function<void(MessageClient&)>(dies_later)}) {
    const std::string path = folder / concat("study", number++);
    const auto [thrown, last_word] = run_teams(path, says, rank_1, waits);
    CHECK(thrown == concat("rank 1 is gone; a team of 2 ranks needs all of them; the same command goes on with ", path));
    CHECK(last_word == thrown);
    CHECK(Store::open_readonly(path).trials(4).size() == 2);
  }
  // Nobody goes, as when a host is cut off: the team's own words are all there is.
  const auto [thrown, last_word] = run_teams(folder / "cut", says, waits, waits);
  CHECK(thrown.starts_with("rank 0: rank 7 of my team has ended; a team of 2 ranks"));
  CHECK(last_word == thrown);
}

TEST_CASE("a rank that is lost before its team is made ends the study there") {
  const TemporaryFolder folder;
  MessageListener listener = MessageListener::for_forks();
  std::vector<std::thread> threads;
  std::string last_word;
  for (const bool is_lost : {false, true}) {
    threads.emplace_back([&last_word, is_lost, link = link_of(listener, threads.size())]() mutable {
      try {
        link.connect(kPatienceSeconds);
        if (is_lost) return;
        last_word = work_alone(link).value("error", "no end");
      } catch (const std::exception& error) {
        last_word = error.what();
      }
    });
  }
  StudyCoordinator coordinator(team_spec(), {.folder = folder / "study", .num_ranks = 2, .quiet = true, .summary = false},
                               MessageServer(std::move(listener)));
  CHECK_THROWS_AS(coordinator.run(), Error);
  for (std::thread& thread : threads) thread.join();
  CHECK(last_word.starts_with("rank 1 is gone"));
  CHECK(last_word.find("; a team of 2 ranks needs all of them; the same command goes on with ") != std::string::npos);
  CHECK(Store::open_readonly(folder / "study").trials(4).size() == 2);
}

}  // namespace cohort
