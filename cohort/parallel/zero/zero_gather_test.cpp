#include "cohort/parallel/zero/zero_gather.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "cohort/base/fail.h"
#include "cohort/parallel/watch/weight_watch.h"
#include "tests/support/thread_ranks.h"

namespace cohort {
namespace {

constexpr int kNumUnits = 6;

/// Units of different sizes; element i of unit u is 1000 u + i + generation.
struct Fixture {
  Group group;
  UnitMemory memory{1 << 20};
  std::vector<at::Tensor> slices, wholes;
  std::vector<int64_t> started;
  int64_t num_ready = 0;
  std::unique_ptr<ZeroGather> gather;
  int generation = 0;

  Fixture(Group group_, int64_t live_bytes) : group(std::move(group_)) {
    std::vector<GatheredUnit> units;
    for (int unit = 0; unit < kNumUnits; ++unit) {
      const int64_t slice_elements = 16 * (unit + 1);
      wholes.push_back(without_memory(slice_elements * group.size(), at::kFloat));
      slices.push_back(whole_values(unit).narrow(0, group.rank() * slice_elements, slice_elements).clone());
      units.push_back({concat("unit ", unit), slices.back(), wholes.back()});
    }
    gather = std::make_unique<ZeroGather>(group, std::move(units), memory,
                                          ZeroGather::Options{.live_bytes = live_bytes,
                                                              .num_ready = [this] { return num_ready; },
                                                              .start_exchanges = [this](int64_t count) { started.push_back(count); },
                                                              .num_exchanges = 9});
  }
  at::Tensor whole_values(int unit) const { return at::arange(16 * (unit + 1) * group.size(), at::kFloat).add_(1000 * unit + generation); }
  void use(const std::vector<int>& units) {
    gather->use(units);
    for (const int unit : units)
      if (!at::equal(wholes[static_cast<size_t>(unit)], whole_values(unit)))
        FAIL(concat("unit ", unit, " is wrong on rank ", group.rank()));
  }
  void change_weights() {
    gather->settle();
    ++generation;
    for (at::Tensor& slice : slices) slice.add_(1);
    gather->weights_changed();
  }
};

int64_t bytes_of_all(int num_ranks) { return 64 * num_ranks * (1 + 2 + 3 + 4 + 5 + 6); }

TEST_CASE("a repeated order is gathered ahead of use, within the allowed bytes") {
  run_thread_ranks(3, [](Group& group) {
    const int64_t allowed = 2 * 64 * 3 * kNumUnits;
    Fixture f(group, allowed);
    int64_t unforeseen = 0;
    for (int step = 0; step < 4; ++step) {
      unforeseen = f.gather->num_unforeseen();
      for (int unit = 0; unit < kNumUnits; ++unit) f.use({unit});
      {
        c10::AutoGradMode backward(false);
        for (int unit = kNumUnits - 1; unit >= 0; --unit) f.use({unit});
      }
      if (f.gather->live_bytes() > allowed) FAIL("too much is live");
      f.gather->finish(Section::kPass);
      f.change_weights();
      if (f.memory.lent_bytes() != 0) FAIL("something is left");
    }
    if (f.gather->num_unforeseen() - unforeseen != 1) FAIL(concat(f.gather->num_unforeseen() - unforeseen, " gathers were unforeseen"));
  });
}

TEST_CASE("any orders of use are served, with any limit") {
  for (const int num_ranks : {1, 2, 4}) {
    for (const int64_t allowed : {int64_t{1}, bytes_of_all(num_ranks) / 2, bytes_of_all(num_ranks)}) {
      run_thread_ranks(num_ranks, [&](Group& group) {
        Fixture f(group, allowed);
        std::mt19937 shared(7), own(static_cast<unsigned>(100 + group.rank()));
        for (int section = 0; section < 30; ++section) {
          // Sections in which all ranks do the same, the same in another order, different things, and nothing on some ranks.
          const unsigned way = shared() % 4;
          std::vector<std::vector<int>> uses;
          for (unsigned i = 0, count = shared() % 12; i < count; ++i) {
            uses.push_back({static_cast<int>(shared() % kNumUnits)});
            if (shared() % 3 == 0) uses.back().push_back(static_cast<int>(shared() % kNumUnits));
          }
          if (way == 1) std::shuffle(uses.begin(), uses.end(), own);
          if (way == 2) uses.resize(own() % (uses.size() + 1), {static_cast<int>(own() % kNumUnits)});
          if (way == 3 && own() % 2 == 0) uses.clear();
          for (const auto& units : uses) f.use(units);
          f.gather->finish(section % 5 == 4 ? Section::kEvaluation : Section::kPass);
          if (section % 3 == 0) f.change_weights();
          if (section % 7 == 0) {
            f.gather->hold_all();
            f.use({0, 1, 2, 3, 4, 5});
            f.gather->release_all();
          }
        }
      });
    }
  }
}

TEST_CASE("exchanges start when all ranks are ready for them, the same on all") {
  run_thread_ranks(2, [](Group& group) {
    Fixture f(group, 1);
    f.use({0});
    f.num_ready = group.rank() == 0 ? 2 : 1;
    f.use({1});
    f.num_ready = 3;
    f.use({2});
    f.gather->finish(Section::kPass);
    if (f.started.back() != 9) FAIL("the end of a pass starts everything");
    f.started.pop_back();
    if (!std::is_sorted(f.started.begin(), f.started.end())) FAIL("exchanges went backwards");
    if (std::find(f.started.begin(), f.started.end(), 1) == f.started.end()) FAIL("nothing started before the end");
    if (std::find(f.started.begin(), f.started.end(), 2) != f.started.end()) FAIL("started before rank 1 was ready");
  });
}

TEST_CASE("a unit that was written to is sent as it is now, also where it is live and another rank asks for it") {
  run_thread_ranks(2, [](Group& group) {
    Fixture f(group, group.rank() == 0 ? bytes_of_all(2) : 1);  // Rank 1 drops what it does not use.
    f.use({0});
    ++f.generation;
    f.gather->mark_written({0});
    f.wholes[0].add_(1);
    if (group.rank() == 1) {
      f.gather->use({1});
      f.use({0});
    }
    f.gather->finish(Section::kEvaluation);
    if (!f.gather->was_written(0) || f.gather->was_written(1)) FAIL("was_written()");
    f.gather->keep_writes();
    const std::vector<int64_t> checksums = f.gather->written_checksums();
    if (checksums[0] != checksum(f.whole_values(0)) || checksums[1] != 0) FAIL("written_checksums()");
    if (!at::equal(f.slices[0], f.whole_values(0).narrow(0, group.rank() * 16, 16))) FAIL("slice");
    f.gather->forget_writes();
    if (f.gather->was_written(0)) FAIL("forget_writes()");
  });
}

}  // namespace
}  // namespace cohort
