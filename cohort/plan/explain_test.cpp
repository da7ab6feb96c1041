// What is said of a plan: the tables of tests/plans/ word for word, and what each sentence promises.

#include "cohort/plan/explain.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/plan.h"
#include "tests/support/places.h"

namespace cohort {
namespace {

constexpr int64_t kMiB = INT64_C(1) << 20;

/// Cores of hosts that share what links there are.
Cluster cores(int num_hosts, int per_host, double bytes_per_second, int64_t memory_bytes) {
  Cluster out;
  out.name = "cores";
  DeviceKind core;
  core.name = "core";
  core.memory_bytes = memory_bytes;
  core.rates = {{"fp32", 6e10}};
  core.memory_bytes_per_second = 8e9;
  out.devices = {core};
  out.hosts = {{num_hosts, per_host, 0}};
  for (Link& link : out.inside.by_exchange) link = {2e-5, 0, bytes_per_second};
  for (Link& link : out.across.by_exchange) link = {1e-4, 0, bytes_per_second};
  return out;
}

/// Degrees are given, so that the pieces of a batch divide it; micro-batches too where a search would be long under a sanitizer.
SearchRequest chain_on(const Cluster& cluster, const std::map<std::string, std::string>& fixed) {
  SearchRequest request;
  request.problem.profile = read_model_profile(repository_file("examples/profiles/chain.json"));
  request.problem.cluster = cluster;
  request.problem.global_batch = 16;
  request.fixed = fixed;
  request.search_seconds = 6000;  // Never reached: a search that is cut short says something else.
  return request;
}

bool any_has(const std::vector<std::string>& sentences, const std::string& words) {
  return std::any_of(sentences.begin(), sentences.end(), [&](const std::string& one) { return one.find(words) != std::string::npos; });
}

/// What the verb prints, without the seconds of the search.
std::string text_of(const SearchRequest& request) {
  const PlanAnswer answer = search_plan(request, {}, nullptr);
  std::string out = plan_table(request, answer) + "\n";
  for (const std::string& reason : reasons_of(request, answer)) out += "- " + reason + "\n";
  return out;
}

/// COHORT_WRITE_PLANS=1 writes the files anew.
void check_text(const std::string& name, const std::string& text) {
  const std::string path = repository_file("tests/plans") + "/" + name + ".txt";
  if (std::getenv("COHORT_WRITE_PLANS")) write_file_atomically(path, text);
  CHECK(text == read_small_file(path, 1 << 20));
}

}  // namespace

TEST_CASE("explain: the tables of tests/plans/") {
  check_text("chain_two_replicas", text_of(chain_on(cores(1, 2, 2e9, 4096 * kMiB), {{"dp", "2"}})));
  check_text("chain_pipeline", text_of(chain_on(cores(1, 2, 2e9, 4096 * kMiB), {{"pp", "2"}, {"dp", "1"}})));
  check_text("chain_pipeline_between_hosts",
             text_of(chain_on(cores(4, 1, 1.25e8, 4096 * kMiB), {{"pp", "2"}, {"dp", "2"}, {"microbatches", "8"}})));
}

TEST_CASE("explain: reasons name the bound, where time and memory go, and each of the next plans once") {
  const SearchRequest request = chain_on(cores(1, 2, 2e9, 4096 * kMiB), {{"pp", "2"}, {"dp", "1"}});
  const PlanAnswer answer = search_plan(request, {}, nullptr);
  const std::vector<std::string> reasons = reasons_of(request, answer);
  CHECK(any_has(reasons, answer.bound_by));
  CHECK(any_has(reasons, "the busiest worker spends its step on"));
  CHECK(any_has(reasons, "the fullest rank holds"));
  REQUIRE(!answer.runners_up.empty());
  for (const RankedPlan& other : answer.runners_up) {
    const std::string why = why_not(request, answer, other);
    CHECK(std::count(reasons.begin(), reasons.end(), why) == 1);
    CHECK(why.find(to_text(layout_of(request.problem.profile, other))) != std::string::npos);
  }
}

TEST_CASE("explain: a plan ties within the noise of measurements or its interval, and loses beyond both") {
  const SearchRequest request = chain_on(cores(1, 2, 2e9, 4096 * kMiB), {{"dp", "2"}});
  PlanAnswer answer = search_plan(request, {}, nullptr);
  const auto verdict = [&](double behind, double low) {
    RankedPlan other = answer.best;
    other.objective = answer.best.objective * (1 + behind);
    other.low = answer.best.high * low;
    return why_not(request, answer, other);
  };
  CHECK(verdict(0.039, 2).starts_with("tied with"));
  CHECK(verdict(0.2, 0.99).starts_with("tied with"));
  CHECK(verdict(0.2, 0.99).find("intervals of the forecasts overlap") != std::string::npos);
  CHECK(verdict(0.2, 1.01).find("lost: 20 % behind") != std::string::npos);
  RankedPlan larger = answer.best;
  larger.objective *= 2, larger.low = larger.objective;
  larger.forecast.workers.front().memory.stash += 3 * 1024 * kMiB;
  CHECK(why_not(request, answer, larger).find("3.0 GiB more memory a rank") != std::string::npos);
}

TEST_CASE("explain: more bandwidth, memory or devices is never said to be worse, less never to be better") {
  const SearchRequest request = chain_on(cores(2, 2, 1e7, 70 * kMiB), {{"pp", "4"}, {"dp", "1"}, {"microbatches", "8"}});
  const PlanAnswer answer = search_plan(request, {}, nullptr);
  const std::vector<WhatIf> changes = what_if(request, answer, 5, nullptr);
  REQUIRE(changes.size() == 7);
  int num_better = 0;
  for (const WhatIf& change : changes) {
    CAPTURE(change.sentence);
    CHECK(change.sentence.starts_with(change.change + ": "));
    const bool is_more = change.change.find("twice") != std::string::npos || change.change.find("more") != std::string::npos ||
                         change.change.find("10 Gbit/s") != std::string::npos;
    if (is_more) CHECK(change.feasible);
    if (!change.feasible) continue;
    CHECK((is_more ? change.gain >= -1e-12 : change.gain <= 1e-12));
    num_better += change.gain > 0.01;
  }
  CHECK(num_better > 0);
  CHECK(shadow_prices(changes).size() == 2);
}

TEST_CASE("explain: keys that the changed cluster cannot hold are named, and links without a limit are not halved") {
  SearchRequest request = chain_on(cores(1, 2, 0, 4096 * kMiB), {{"dp", "2"}});
  const PlanAnswer answer = search_plan(request, {}, nullptr);
  const std::vector<WhatIf> changes = what_if(request, answer, 5, nullptr);
  bool found = false;
  for (const WhatIf& change : changes) {
    CHECK(change.change.find("rate") == std::string::npos);
    if (change.change != "half the devices") continue;
    found = true;
    CHECK(!change.feasible);
    CHECK(change.sentence.find("not searched: ") != std::string::npos);
  }
  CHECK(found);
  request.least_workers = 2;  // Fewer have a machine of their own.
  for (const WhatIf& change : what_if(request, answer, 5, nullptr)) CHECK(change.change != "half the devices");
}

TEST_CASE("explain: a search that is stopped says nothing half searched") {
  const SearchRequest request = chain_on(cores(1, 2, 2e9, 4096 * kMiB), {{"dp", "2"}});
  const PlanAnswer answer = search_plan(request, {}, nullptr);
  std::atomic<bool> stop{false};
  int looks = 0;
  const auto changes = what_if(request, answer, 5, &stop, [&] { stop = ++looks > 0; });
  CHECK(looks > 0);
  CHECK(changes.empty());
}

TEST_CASE("explain: a plain cut keeps one worker busy at a time, a pipeline several") {
  const SearchRequest request = chain_on(cores(1, 2, 2e9, 4096 * kMiB), {{"pp", "2"}, {"dp", "1"}});
  const PlanAnswer answer = search_plan(request, {}, nullptr);
  const Utilisation shares = utilisation_of(request, answer.best);
  REQUIRE(shares.naive.size() == 2);
  REQUIRE(shares.planned.size() == 2);
  CHECK(shares.naive[0] + shares.naive[1] <= 1 + 1e-9);
  for (const double share : shares.planned) CHECK((share > 0 && share <= 1 + 1e-9));
  CHECK(shares.planned[0] + shares.planned[1] > shares.naive[0] + shares.naive[1]);
  const SearchRequest alone = chain_on(cores(1, 2, 2e9, 4096 * kMiB), {{"dp", "2"}});
  CHECK(utilisation_of(alone, search_plan(alone, {}, nullptr).best).naive.empty());
}

TEST_CASE("plan: its JSON has a layout that reads back, and every rank once") {
  for (const auto& fixed : {std::map<std::string, std::string>{{"dp", "2"}, {"pp", "2"}, {"microbatches", "8"}},
                            {{"dp", "4"}},
                            {{"pp", "4"}, {"dp", "1"}, {"microbatches", "8"}}}) {
    Plan plan{.request = chain_on(cores(2, 2, 1.25e8, 4096 * kMiB), fixed)};
    plan.answer = search_plan(plan.request, {}, nullptr);
    plan.reasons = reasons_of(plan.request, plan.answer);
    const Json json = to_json(plan);
    CHECK(json["format"] == "cohort-plan");
    const Layout layout = layout_of(plan.request.problem.profile, plan.answer.best);
    CHECK(to_text(parse_layout(json["layout"].dump(), 0)) == to_text(layout));
    CHECK(to_text(parse_layout(json.dump(), 0)) == to_text(layout));
    std::vector<int> ranks;
    size_t num_layers = 0;
    for (const Json& worker : json["workers"]) {
      CHECK(worker["ranks"].size() == worker["num_ranks"].get<size_t>());
      for (const Json& rank : worker["ranks"]) ranks.push_back(rank.get<int>());
      num_layers += worker["layers"].size();
    }
    std::sort(ranks.begin(), ranks.end());
    REQUIRE(ranks.size() == 4);
    for (int rank = 0; rank < 4; ++rank) CHECK(ranks[static_cast<size_t>(rank)] == rank);
    CHECK(num_layers == plan.request.problem.profile.layers.size());
    CHECK(json["lower_bound"].get<double>() <= json["objective"].get<double>() * (1 + 1e-9));
    for (const Json& other : json["runners_up"]) CHECK(!other["why_not"].get<std::string>().empty());
  }
}

}  // namespace cohort
