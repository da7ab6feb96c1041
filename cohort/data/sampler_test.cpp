#include "cohort/data/sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "tests/support/data_files.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

std::vector<int64_t> whole_step(Sampler& sampler, int64_t step) { return sampler.samples(step, {0, sampler.batch_at(step)}); }

std::vector<int64_t> whole_epoch(Sampler& sampler, int64_t epoch) {
  std::vector<int64_t> out;
  for (int64_t step = 0; step < sampler.steps_per_epoch(); ++step) {
    const std::vector<int64_t> samples = whole_step(sampler, epoch * sampler.steps_per_epoch() + step);
    out.insert(out.end(), samples.begin(), samples.end());
  }
  return out;
}

}  // namespace

TEST_CASE("shares: contiguous, complete, whole units and even") {
  for (int64_t batch = 0; batch <= 70; ++batch) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      for (const int64_t granularity : {1, 2, 3, 4, 7, 16, 100}) {
        int64_t at = 0, smallest = batch, largest = 0, partial = 0;
        int last_with_samples = -1, rank_of_partial = -1;
        for (int rank = 0; rank < ranks; ++rank) {
          const Share share = share_of_rank(batch, rank, ranks, granularity);
          REQUIRE(share.begin == at);
          REQUIRE(share.end >= share.begin);
          at = share.end;
          smallest = std::min(smallest, share.size());
          largest = std::max(largest, share.size());
          if (share.size() > 0) last_with_samples = rank;
          if (share.size() % granularity != 0) ++partial, rank_of_partial = rank;
        }
        REQUIRE(at == batch);
        REQUIRE(largest - smallest <= granularity);
        REQUIRE(partial == (batch % granularity != 0));
        if (partial) REQUIRE(rank_of_partial == last_with_samples);
      }
    }
  }
}

TEST_CASE("shares: known answers and wrong arguments") {
  const auto sizes = [](int64_t batch, int ranks, int64_t granularity) {
    std::vector<int64_t> out;
    for (int rank = 0; rank < ranks; ++rank) out.push_back(share_of_rank(batch, rank, ranks, granularity).size());
    return out;
  };
  CHECK(sizes(10, 3, 1) == std::vector<int64_t>{4, 3, 3});
  CHECK(sizes(10, 4, 2) == std::vector<int64_t>{4, 2, 2, 2});
  CHECK(sizes(9, 2, 4) == std::vector<int64_t>{4, 5});
  CHECK(sizes(3, 3, 4) == std::vector<int64_t>{3, 0, 0});
  CHECK(sizes(2, 4, 1) == std::vector<int64_t>{1, 1, 0, 0});
  CHECK(share_of_rank(INT64_MAX, 1, 2, 1).end == INT64_MAX);
  CHECK(mentions(error_of([] { share_of_rank(4, 2, 2); }), "rank 2 of 2"));
  CHECK(mentions(error_of([] { share_of_rank(4, 0, 1, 0); }), "units of 0"));
  CHECK(mentions(error_of([] { share_of_rank(-1, 0, 1); }), "batch of -1"));
}

TEST_CASE("shares by weight: contiguous, complete, whole units, each within one unit of its quota") {
  const std::vector<std::vector<double>> all_weights = {{1},           {3, 1}, {1, 3, 1e-9}, {0.1, 0.2, 0.3, 0.4}, {7, 1e-300, 2, 2, 1},
                                                        {1e300, 1e299}};
  for (int64_t batch = 0; batch <= 70; ++batch) {
    for (const std::vector<double>& weights : all_weights) {
      for (const int64_t granularity : {1, 3, 16}) {
        const std::vector<Share> shares = shares_of_batch(batch, weights, granularity);
        REQUIRE(shares.size() == weights.size());
        double total = 0;
        for (const double weight : weights) total += weight / weights[0];
        int64_t at = 0;
        bool partial_seen = false;
        for (size_t rank = 0; rank < shares.size(); ++rank) {
          REQUIRE(shares[rank].begin == at);
          REQUIRE(shares[rank].end >= at);
          at = shares[rank].end;
          if (shares[rank].size() > 0) REQUIRE(!partial_seen);  // Nobody has samples after the part of a unit.
          partial_seen = partial_seen || shares[rank].size() % granularity != 0;
          const double quota = static_cast<double>(batch / granularity) * (weights[rank] / weights[0]) / total;
          REQUIRE(std::abs(static_cast<double>(shares[rank].size() / granularity) - quota) < 1 + 1e-6);
        }
        REQUIRE(at == batch);
      }
    }
  }
}

TEST_CASE("shares by weight: equal weights are share_of_rank, whatever their scale") {
  for (int64_t batch = 0; batch <= 70; ++batch) {
    for (size_t ranks = 1; ranks <= 9; ++ranks) {
      for (const int64_t granularity : {1, 2, 3, 7, 100}) {
        const std::vector<Share> shares = shares_of_batch(batch, std::vector<double>(ranks, ranks % 2 ? 0.1 : 1e9), granularity);
        for (size_t rank = 0; rank < ranks; ++rank) {
          const Share expected = share_of_rank(batch, static_cast<int>(rank), static_cast<int>(ranks), granularity);
          REQUIRE(shares[rank].begin == expected.begin);
          REQUIRE(shares[rank].end == expected.end);
        }
      }
    }
  }
}

TEST_CASE("shares by weight: known answers and wrong arguments") {
  const auto sizes = [](int64_t batch, const std::vector<double>& weights, int64_t granularity) {
    std::vector<int64_t> out;
    for (const Share& share : shares_of_batch(batch, weights, granularity)) out.push_back(share.size());
    return out;
  };
  CHECK(sizes(32, {3, 1}, 1) == std::vector<int64_t>{24, 8});
  CHECK(sizes(10, {1, 1, 2}, 1) == std::vector<int64_t>{3, 2, 5});  // Quotas 2.5, 2.5, 5: the tie goes to the lower rank.
  CHECK(sizes(10, {1, 2, 4}, 1) == std::vector<int64_t>{1, 3, 6});  // 1.43, 2.86, 5.71.
  CHECK(sizes(19, {1, 3}, 4) == std::vector<int64_t>{4, 15});       // Four units and a part.
  CHECK(sizes(9, {3, 1e-6}, 4) == std::vector<int64_t>{9, 0});      // The part goes to the last rank that has units,
  CHECK(sizes(3, {1, 5, 2}, 4) == std::vector<int64_t>{0, 3, 0});   // or to one after it that is further below its quota.
  CHECK(shares_of_batch(INT64_MAX, {1, 2, 1e-12})[2].end == INT64_MAX);
  CHECK(mentions(error_of([] { shares_of_batch(4, {}); }), "for 0 ranks"));
  CHECK(mentions(error_of([] { shares_of_batch(-1, {1}); }), "batch of -1"));
  CHECK(mentions(error_of([] { shares_of_batch(4, {1}, 0); }), "units of 0"));
  CHECK(mentions(error_of([] { shares_of_batch(4, {1, 0}); }), "weight of rank 1: expected a positive number, found 0"));
  CHECK(mentions(error_of([] { shares_of_batch(4, {-2, 1}); }), "weight of rank 0"));
  CHECK(mentions(error_of([] { shares_of_batch(4, {1, std::nan("")}); }), "weight of rank 1"));
  CHECK(mentions(error_of([] { shares_of_batch(4, {1, INFINITY}); }), "weight of rank 1"));
}

TEST_CASE("pieces: micro-step k of all ranks together is micro-step k of one process") {
  for (const int64_t batch : {0, 1, 2, 7, 31, 32, 33, 64}) {
    for (const int num_pieces : {1, 2, 3, 5}) {
      for (const int64_t granularity : {1, 4}) {
        for (const std::vector<double>& weights : std::vector<std::vector<double>>{{1}, {1, 1}, {3, 1}, {1, 5, 2, 1e-6}}) {
          const std::vector<Share> alone = pieces_of_rank(batch, 0, {1}, num_pieces, granularity);
          std::vector<int64_t> at;
          for (size_t piece = 0; piece < alone.size(); ++piece) {
            const Share expected = share_of_rank(batch, static_cast<int>(piece), num_pieces, granularity);
            REQUIRE(alone[piece].begin == expected.begin);
            REQUIRE(alone[piece].end == expected.end);
            REQUIRE(alone[piece].size() > 0);
            at.push_back(alone[piece].begin);
          }
          for (int rank = 0; rank < std::ssize(weights); ++rank) {
            const std::vector<Share> pieces = pieces_of_rank(batch, rank, weights, num_pieces, granularity);
            REQUIRE(pieces.size() == alone.size());
            for (size_t piece = 0; piece < pieces.size(); ++piece) {
              REQUIRE(pieces[piece].begin == at[piece]);
              at[piece] = pieces[piece].end;
            }
          }
          for (size_t piece = 0; piece < alone.size(); ++piece) REQUIRE(at[piece] == alone[piece].end);
          if (!alone.empty()) REQUIRE(alone.back().end == batch);
        }
      }
    }
  }
  CHECK(mentions(error_of([] { pieces_of_rank(4, 2, {1, 1}, 1); }), "rank 2 of 2"));
}

TEST_CASE("sampler: batches that run on are whole, and each epoch is still every sample once") {
  Sampler cut(23, 23, 5), run_on(23, 10, 5, true, Sampler::Batches::kRunOn);
  std::vector<int64_t> wanted, found;
  for (int64_t epoch = 0; epoch < 10; ++epoch)
    for (const int64_t sample : whole_step(cut, epoch)) wanted.push_back(sample);
  for (int64_t step = 0; step < 23; ++step) {
    CHECK(run_on.batch_at(step) == 10);
    for (const int64_t sample : whole_step(run_on, step)) found.push_back(sample);
  }
  CHECK(found == wanted);
  Sampler again(23, 10, 5, true, Sampler::Batches::kRunOn);
  CHECK(again.samples(6, {2, 7}) == std::vector<int64_t>(wanted.begin() + 62, wanted.begin() + 67));  // Over the end of an epoch, at once.
  Sampler large(23, 100, 5, true, Sampler::Batches::kRunOn);
  CHECK(large.batch_at(3) == 23);
  CHECK(whole_step(large, 3) == whole_step(cut, 3));
}

TEST_CASE("sampler: every epoch is another permutation, the last step takes what is left") {
  Sampler sampler(103, 10, 42);
  CHECK(sampler.steps_per_epoch() == 11);
  CHECK(sampler.batch_at(9) == 10);
  CHECK(sampler.batch_at(10) == 3);
  CHECK(sampler.batch_at(11) == 10);
  CHECK(sampler.batch_at(21) == 3);
  const std::vector<int64_t> first = whole_epoch(sampler, 0), second = whole_epoch(sampler, 1);
  CHECK(first != second);
  for (std::vector<int64_t> order : {first, second}) {
    std::ranges::sort(order);
    std::vector<int64_t> expected(103);
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(order == expected);
  }
  Sampler other_seed(103, 10, 43);
  CHECK(whole_epoch(other_seed, 0) != first);
}

TEST_CASE("sampler: any step in any order, in any shares, is the same") {
  Sampler sampler(57, 8, 1), fresh(57, 8, 1);
  std::vector<std::vector<int64_t>> steps;
  for (int64_t step = 0; step < 30; ++step) steps.push_back(whole_step(sampler, step));
  for (const int64_t step : {29, 3, 15, 0, 22}) CHECK(whole_step(fresh, step) == steps[static_cast<size_t>(step)]);
  for (int64_t step = 0; step < 30; ++step) {
    for (const int ranks : {2, 3, 5}) {
      std::vector<int64_t> joined;
      for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<int64_t> part = fresh.samples(step, share_of_rank(fresh.batch_at(step), rank, ranks));
        joined.insert(joined.end(), part.begin(), part.end());
      }
      REQUIRE(joined == steps[static_cast<size_t>(step)]);
    }
  }
}

TEST_CASE("sampler: the order of a seed is fixed for ever, or resumed runs would change") {
  Sampler sampler(8, 8, 0);
  CHECK(whole_step(sampler, 0) == std::vector<int64_t>{3, 5, 6, 4, 7, 2, 0, 1});
  CHECK(whole_step(sampler, 1) == std::vector<int64_t>{3, 6, 2, 1, 0, 5, 7, 4});
}

TEST_CASE("sampler: each sample comes to each place equally often") {
  // 6,000 epochs of 5 samples: each of the 25 cells has an expected 1,200 with a deviation of 31.
  std::array<std::array<int, 5>, 5> counts{};
  Sampler sampler(5, 5, 9);
  for (int64_t epoch = 0; epoch < 6000; ++epoch) {
    const std::vector<int64_t> order = whole_step(sampler, epoch);
    for (size_t place = 0; place < 5; ++place) ++counts[place][static_cast<size_t>(order[place])];
  }
  for (const auto& place : counts) {
    for (const int count : place) CHECK(std::abs(count - 1200) < 4.5 * 31);
  }
}

TEST_CASE("sampler: a batch that grows goes on where the smaller one was, and each epoch is still every sample once") {
  Sampler sampler(103, 10, 7, true, Sampler::Batches::kWithinEpochs, {{3, 4}, {6, 1}, {40, 10}});
  std::vector<int64_t> sizes, all;
  for (int64_t step = 0; step < 60; ++step) {
    CHECK(sampler.samples_before(step) == std::ssize(all));
    const std::vector<int64_t> samples = whole_step(sampler, step);
    sizes.push_back(std::ssize(samples));
    all.insert(all.end(), samples.begin(), samples.end());
    CHECK(sampler.steps_until(std::ssize(all)) == step + 1);
    CHECK(sampler.steps_until(std::ssize(all) - 1) == step + 1);
    Sampler fresh(103, 10, 7, true, Sampler::Batches::kWithinEpochs, {{3, 4}, {6, 1}, {40, 10}});
    CHECK(whole_step(fresh, step) == samples);  // A resumed run asks for any step.
  }
  // Three of 10, then 73 are left of the first epoch: 40 and 33; a whole 40; from step 6 on 10 again, 63 of the second epoch.
  CHECK(std::vector(sizes.begin(), sizes.begin() + 13) == std::vector<int64_t>{10, 10, 10, 40, 33, 40, 10, 10, 10, 10, 10, 10, 3});
  CHECK(sizes[40] == 53);  // What is left of an epoch, though 100 were asked for.
  CHECK(sizes[41] == 100);
  CHECK(sizes[42] == 3);
  Sampler plain(103, 10, 7);
  for (int64_t epoch = 0; (epoch + 1) * 103 <= std::ssize(all); ++epoch) {
    std::vector<int64_t> expected;
    for (int64_t step = 0; step < 11; ++step) {
      const std::vector<int64_t> samples = whole_step(plain, epoch * 11 + step);
      expected.insert(expected.end(), samples.begin(), samples.end());
    }
    CHECK(std::vector(all.begin() + epoch * 103, all.begin() + (epoch + 1) * 103) == expected);
  }
  CHECK(mentions(error_of([] { Sampler(103, 10, 7, true, Sampler::Batches::kWithinEpochs, {{3, 11}}); }), "11 times a global batch of 10"));
}

TEST_CASE("sampler: without shuffling, and with a batch larger than the data") {
  Sampler plain(10, 4, 0, false);
  CHECK(whole_step(plain, 1) == std::vector<int64_t>{4, 5, 6, 7});
  CHECK(whole_step(plain, 2) == std::vector<int64_t>{8, 9});
  CHECK(plain.samples(4, {1, 3}) == std::vector<int64_t>{5, 6});
  Sampler large(10, 1000, 0);
  CHECK(large.steps_per_epoch() == 1);
  CHECK(large.batch_at(5) == 10);
  // The largest number of samples, where order needs no memory.
  Sampler largest(INT64_C(0x7fffffff), 2, 0, false);
  CHECK(largest.steps_per_epoch() == INT64_C(1) << 30);
  CHECK(whole_step(largest, (INT64_C(1) << 30) - 1) == std::vector<int64_t>{INT64_C(0x7ffffffe)});
}

TEST_CASE("sampler: wrong arguments") {
  CHECK(mentions(error_of([] { Sampler(0, 1, 0); }), "number of samples: expected 1 to 2147483647, found 0"));
  CHECK(mentions(error_of([] { Sampler(INT64_C(1) << 31, 1, 0); }), "found 2147483648"));
  CHECK(mentions(error_of([] { Sampler(5, 0, 0); }), "global batch: expected at least 1, found 0"));
  Sampler sampler(10, 4, 0);
  CHECK(mentions(error_of([&] { sampler.batch_at(-1); }), "step: expected at least 0"));
  CHECK(mentions(error_of([&] { sampler.samples(2, {0, 3}); }), "is not inside step 2, which has 2 samples"));
  CHECK(mentions(error_of([&] { sampler.samples(0, {-1, 3}); }), "is not inside"));
  CHECK(mentions(error_of([&] { sampler.samples(0, {3, 2}); }), "is not inside"));
}
