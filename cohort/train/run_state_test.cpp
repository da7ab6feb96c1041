#include "cohort/train/run_state.h"

#include <doctest/doctest.h>

#include "cohort/parallel/local/fragments.h"

namespace cohort {

using Names = std::vector<std::string>;

TEST_CASE("names of local steps are put together and taken apart") {
  const StateName worker = split_state_name(name_of_worker(12, "optimizer/a.b/momentum"));
  CHECK(worker.worker == 12);
  CHECK(worker.name == "optimizer/a.b/momentum");
  CHECK(!worker.of_outer);
  const StateName outer = split_state_name(name_of_outer("optimizer/a/momentum"));
  CHECK(outer.of_outer);
  CHECK(outer.name == "optimizer/a/momentum");
  const StateName weights = split_state_name(name_of_own_weights(3, "a.b")), round = split_state_name(name_of_round(3, 4));
  CHECK(weights.name == "model/a.b");
  CHECK(round.name == "round/4/samples");
  for (const StateName& split : {weights, round}) {
    CHECK(split.worker == 3);
    CHECK(split.of_fragments);
  }
  for (const std::string plain : {"model/worker-1.weight", "optimizer/outer/momentum", "worker-x/optimizer/a/m", "worker--1/optimizer/a/m",
                                  "worker-1/model/a", "model/a", "", "worker-1", "outer/"}) {
    const StateName split = split_state_name(plain);
    CHECK(split.name == plain);
    CHECK(!split.worker);
    CHECK(!split.of_outer);
  }
}

TEST_CASE("where the optimizer's state of a resumed run comes from") {
  const Names of_two{"model/a", "outer/optimizer/a/momentum", "worker-0/optimizer/a/m", "worker-1/optimizer/a/m"};
  const Names both{"worker-0/optimizer/a/m", "worker-1/optimizer/a/m"};
  CHECK(StateSources(of_two, 2).of("worker-1/optimizer/a/m") == Names{"worker-1/optimizer/a/m"});
  CHECK(StateSources(of_two, 2).of("optimizer/a/m") == both);  // One process, or sync=step.
  CHECK(StateSources(of_two, 3).of("worker-1/optimizer/a/m") == both);
  CHECK(StateSources(of_two, 1).of("worker-0/optimizer/a/m") == both);
  CHECK(StateSources(of_two, 2).of("outer/optimizer/a/momentum") == Names{"outer/optimizer/a/momentum"});
  CHECK(StateSources(of_two, 2).of("model/a") == Names{"model/a"});
  CHECK(StateSources(of_two, 2).num_states() == 2);

  // Own weights beside those that were exchanged: of this number of workers, or of none.
  Names in_turn = of_two;
  for (const int worker : {0, 1}) in_turn.push_back(name_of_own_weights(worker, "a")), in_turn.push_back(name_of_round(worker, 4));
  for (const std::string& name : {name_of_own_weights(1, "a"), name_of_round(1, 4)}) {
    CHECK(StateSources(in_turn, 2).of(name) == Names{name});
    CHECK(StateSources(in_turn, 3).of(name) == Names{});
    CHECK(StateSources(in_turn, 1).of(name_of_own_weights(0, "a")) == Names{});
    CHECK(StateSources(of_two, 2).of(name) == Names{});
  }
  CHECK(StateSources(in_turn, 2).of(name_of_round(1, 2)) == Names{});
  CHECK(StateSources(in_turn, 2).of("model/a") == Names{"model/a"});
  CHECK(StateSources(in_turn, 2).num_states() == 2);

  const Names of_all{"model/a", "optimizer/a/m"};
  CHECK(StateSources(of_all, 2).of("worker-1/optimizer/a/m") == Names{"optimizer/a/m"});
  CHECK(StateSources(of_all, 2).of("optimizer/a/m") == Names{"optimizer/a/m"});
  CHECK(StateSources(of_all, 2).of("outer/optimizer/a/momentum") == Names{});
  CHECK(StateSources(of_all, 2).of("optimizer/b/m") == Names{"optimizer/b/m"});
  CHECK(StateSources(of_all, 2).num_states() == 0);
}

}  // namespace cohort
