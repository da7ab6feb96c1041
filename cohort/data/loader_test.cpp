#include "cohort/data/loader.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "cohort/base/fail.h"
#include "tests/support/data_files.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

/// Sample i has the one value i. Counts its reads; fails, or takes its time, when told to.
class CountingSource : public DataSource {
 public:
  explicit CountingSource(int64_t num_samples) : num_samples_(num_samples) {}
  const DataShape& shape() const override { return shape_; }
  int64_t num_samples() const override { return num_samples_; }
  void read(std::span<const int64_t> indices, Batch& batch) const override {
    if (reads++ == failing_read) fail(ErrorCode::kBadInput, "the disk is gone");
    std::this_thread::sleep_for(std::chrono::milliseconds(read_milliseconds));
    if (batch.values.capacity() > 0) ++reused;
    batch.num_samples = std::ssize(indices);
    batch.values.assign(indices.begin(), indices.end());
    batch.targets.assign(indices.begin(), indices.end());
  }

  int failing_read = -1;
  int read_milliseconds = 0;
  mutable std::atomic<int> reads{0}, reused{0};

 private:
  DataShape shape_{DataShape::Kind::kImage, {1}, 10, {}};
  int64_t num_samples_;
};

/// Waits until the reader has done `reads` and a little longer, in which it must not do more.
void expect_reads(const CountingSource& source, int reads) {
  for (int i = 0; i < 2000 && source.reads < reads; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(source.reads == reads);
}

}  // namespace

TEST_CASE("loader: steps in order, as the sampler has them, for every rank") {
  const auto source = std::make_shared<CountingSource>(37);
  for (const int ranks : {1, 3}) {
    for (int rank = 0; rank < ranks; ++rank) {
      Loader loader(source,
                    {.global_batch = 10, .seed = 4, .rank = rank, .num_ranks = ranks, .granularity = 2, .first_step = 2, .end_step = 12});
      CHECK(loader.steps_per_epoch() == 4);
      Sampler sampler(37, 10, 4);
      for (int64_t step = 2; step < 12; ++step) {
        LoadedBatch got = loader.next();
        const Share share = share_of_rank(sampler.batch_at(step), rank, ranks, 2);
        REQUIRE(got.step == step);
        REQUIRE(got.global_samples == sampler.batch_at(step));
        REQUIRE(got.pieces.front().begin == share.begin);
        REQUIRE(got.pieces.front().end == share.end);
        REQUIRE(got.batch.num_samples == share.size());
        REQUIRE(got.batch.targets == sampler.samples(step, share));
        REQUIRE(got.waited_seconds >= 0);
        if (step % 2) loader.recycle(std::move(got.batch));
      }
      CHECK(mentions(error_of([&] { loader.next(); }, ErrorCode::kFailed), "was asked for step 12, but ends before step 12"));
    }
  }
}

TEST_CASE("loader: micro-steps and weights as pieces_of_rank has them, samples in the order of the pieces") {
  const auto source = std::make_shared<CountingSource>(50);
  const std::vector<double> weights = {1, 3, 0.01};
  for (int rank = 0; rank < 3; ++rank) {
    Loader loader(source, {.global_batch = 16, .seed = 4, .rank = rank, .num_ranks = 3, .pieces = 4, .end_step = 9, .weights = weights});
    Sampler sampler(50, 16, 4);
    for (int64_t step = 0; step < 9; ++step) {
      const LoadedBatch got = loader.next();
      const std::vector<Share> pieces = pieces_of_rank(sampler.batch_at(step), rank, weights, 4);
      REQUIRE(got.pieces.size() == pieces.size());
      std::vector<int64_t> expected;
      for (size_t piece = 0; piece < pieces.size(); ++piece) {
        REQUIRE(got.pieces[piece].begin == pieces[piece].begin);
        REQUIRE(got.pieces[piece].end == pieces[piece].end);
        for (const int64_t sample : sampler.samples(step, pieces[piece])) expected.push_back(sample);
      }
      REQUIRE(got.batch.targets == expected);
      REQUIRE(got.num_local_samples() == std::ssize(expected));
    }
  }
}

TEST_CASE("loader: a grown step has as many times more micro-steps of the same size") {
  const auto source = std::make_shared<CountingSource>(100);
  const std::vector<BatchStage> stages = {{2, 3}, {4, 1}};
  for (int rank = 0; rank < 2; ++rank) {
    Loader loader(source, {.global_batch = 8, .stages = stages, .seed = 4, .rank = rank, .num_ranks = 2, .pieces = 2});
    Sampler sampler(100, 8, 4, true, Sampler::Batches::kWithinEpochs, stages);
    for (int64_t step = 0; step < 6; ++step) {
      const LoadedBatch got = loader.next();
      const bool has_grown = step == 2 || step == 3;
      REQUIRE(got.global_samples == (has_grown ? 24 : 8));
      REQUIRE(std::ssize(got.pieces) == (has_grown ? 6 : 2));
      for (size_t k = 0; k < got.pieces.size(); ++k) {  // Each micro-step is 4 samples, 2 a rank.
        REQUIRE(got.pieces[k].begin == static_cast<int64_t>(4 * k) + 2 * rank);
        REQUIRE(got.pieces[k].size() == 2);
      }
      std::vector<int64_t> expected;
      for (const Share& piece : got.pieces) {
        const std::vector<int64_t> samples = sampler.samples(step, piece);
        expected.insert(expected.end(), samples.begin(), samples.end());
      }
      REQUIRE(got.batch.targets == expected);
    }
  }
}

TEST_CASE("loader: weights that change hold from their step on, whatever was read ahead") {
  const auto source = std::make_shared<CountingSource>(1000);
  for (const bool reader_is_ahead : {true, false}) {
    Loader loader(source, {.global_batch = 8, .rank = 0, .num_ranks = 2, .read_ahead = 3});
    CHECK(loader.first_free_step() == 3);
    std::vector<int64_t> sizes;
    const auto take = [&](int64_t count) {
      for (int64_t i = 0; i < count; ++i) sizes.push_back(loader.next().num_local_samples());
    };
    take(2);
    CHECK(loader.first_free_step() == 5);
    if (reader_is_ahead) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(mentions(error_of([&] { loader.set_weights(4, {3, 1}); }), "weights from step 4 on: steps below 5 may have been read already"));
    CHECK(mentions(error_of([&] { loader.set_weights(5, {3, 1, 1}); }), "3 weights for 2 ranks"));
    CHECK(mentions(error_of([&] { loader.set_weights(5, {3, 0}); }), "weight of rank 1"));
    loader.set_weights(5, {3, 1});
    loader.set_weights(9, {1, 1});
    loader.set_weights(7, {1, 3});  // Takes back what was said of step 9.
    take(9);
    CHECK(sizes == std::vector<int64_t>{4, 4, 4, 4, 4, 6, 6, 2, 2, 2, 2});
  }
}

TEST_CASE("loader: an empty range of steps, and no end") {
  const auto source = std::make_shared<CountingSource>(5);
  Loader none(source, {.global_batch = 5, .first_step = 7, .end_step = 7});
  CHECK(mentions(error_of([&] { none.next(); }, ErrorCode::kFailed), "ends before step 7"));
  Loader endless(source, {.global_batch = 5});
  for (int64_t step = 0; step < 300; ++step) REQUIRE(endless.next().step == step);
}

TEST_CASE("loader: reads so far ahead and no further; the destructor does not wait for a consumer") {
  const auto source = std::make_shared<CountingSource>(100);
  {
    Loader loader(source, {.global_batch = 10, .read_ahead = 3});
    expect_reads(*source, 3);
    loader.next();
    expect_reads(*source, 4);
  }
  CHECK(source->reads == 4);
}

TEST_CASE("loader: the destructor ends a reader at any moment") {
  for (int i = 0; i < 200; ++i) {
    const auto source = std::make_shared<CountingSource>(10);
    Loader loader(source, {.global_batch = 5, .end_step = 1 + i % 4});
    if (i % 3 == 1) loader.next();
  }
}

TEST_CASE("loader: reading goes on while the consumer works") {
  const auto source = std::make_shared<CountingSource>(100);
  source->read_milliseconds = 60;
  Loader loader(source, {.global_batch = 10});
  const LoadedBatch first = loader.next();
  CHECK(first.waited_seconds > 0.03);
  expect_reads(*source, 3);
  const LoadedBatch second = loader.next();
  CHECK(second.waited_seconds < 0.03);
}

TEST_CASE("loader: an exception of the source comes after the batches before it, and stays") {
  const auto source = std::make_shared<CountingSource>(100);
  source->failing_read = 2;
  Loader loader(source, {.global_batch = 10, .read_ahead = 8});
  expect_reads(*source, 3);
  CHECK(loader.next().step == 0);
  CHECK(loader.next().step == 1);
  for (int i = 0; i < 2; ++i) CHECK(error_of([&] { loader.next(); }) == "the disk is gone");
}

TEST_CASE("loader: who answers is asked about each batch ahead of the consumer, and what it throws comes after the batches before") {
  const auto source = std::make_shared<CountingSource>(40);
  std::atomic<int> asked{0};
  const auto answer = [&](LoadedBatch& batch) {
    if (batch.step == 5) fail(ErrorCode::kFailed, "no answer");
    ++asked;
    std::vector<float> out;
    for (const int64_t sample : batch.samples) out.push_back(2 * static_cast<float>(sample));
    return out;
  };
  Loader loader(source, {.global_batch = 10, .seed = 4, .rank = 1, .num_ranks = 2, .read_ahead = 3, .answer = answer});
  for (int i = 0; i < 2000 && asked < 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(asked == 3);
  for (int64_t step = 0; step < 5; ++step) {
    LoadedBatch got = loader.next();
    REQUIRE(got.answers.size() == got.samples.size());
    for (size_t i = 0; i < got.samples.size(); ++i) REQUIRE(got.answers[i] == 2 * static_cast<float>(got.samples[i]));
    loader.recycle(std::move(got.batch));
  }
  CHECK(error_of([&] { loader.next(); }, ErrorCode::kFailed) == "no answer");
}

TEST_CASE("loader: memory that is given back is used again") {
  const auto source = std::make_shared<CountingSource>(100);
  Loader loader(source, {.global_batch = 10, .end_step = 20});
  for (int64_t step = 0; step < 20; ++step) loader.recycle(std::move(loader.next().batch));
  CHECK(source->reused >= 16);  // All but those that were read before the first came back.
}

TEST_CASE("loader: wrong options") {
  const auto source = std::make_shared<CountingSource>(10);
  CHECK(mentions(error_of([&] { Loader(source, {.global_batch = 0}); }), "global batch"));
  CHECK(mentions(error_of([&] { Loader(source, {.rank = 2, .num_ranks = 2}); }), "rank 2 of 2"));
  CHECK(mentions(error_of([&] { Loader(source, {.granularity = 0}); }), "units of 0"));
  CHECK(mentions(error_of([&] { Loader(source, {.first_step = -1}); }), "found -1"));
  CHECK(mentions(error_of([&] { Loader(source, {.read_ahead = 0}); }), "read-ahead"));
  CHECK(mentions(error_of([&] { Loader(source, {.pieces = 0}); }), "micro-steps of a step: expected at least 1, found 0"));
  CHECK(mentions(error_of([&] { Loader(source, {.num_ranks = 2, .weights = {1}}); }), "1 weights for 2 ranks"));
  CHECK(mentions(error_of([&] { Loader(nullptr, {}); }, ErrorCode::kFailed), "needs a source"));
}
