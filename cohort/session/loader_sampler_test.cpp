// Programs with torch::data::make_data_loader whose sampler was exchanged, against one process.
#include "cohort/session/loader_sampler.h"
#include "cohort/base/fail.h"

#include <vector>

#include "tests/support/torture_models.h"

namespace cohort {
namespace {

using namespace torture;  // NOLINT
namespace data = torch::data;

/// Small pictures and their classes.
struct Pictures : data::datasets::Dataset<Pictures> {
  Tensor images, labels;
  explicit Pictures(int64_t count) : images(draw({count, 1, 3, 2}, 5)), labels(draw_whole({count}, 6, at::kLong).abs()) {}
  data::Example<> get(size_t index) override { return {images[static_cast<int64_t>(index)], labels[static_cast<int64_t>(index)]}; }
  std::optional<size_t> size() const override { return static_cast<size_t>(images.size(0)); }
};

struct Program {
  int64_t samples, batch;
  bool tells = true;  ///< Calls set_samples().
  size_t workers = 0;
  bool loader_drops = false;
  LoaderSamplerOptions sampler;
};

/// Three epochs; the weights, and the losses of all steps.
std::pair<Net, std::vector<double>> train(Session& session, const Program& program) {
  Net net;
  Parallel parallel(*net, session);
  torch::optim::SGD optimizer(net->parameters(), 0.125);
  LoaderSampler sampler(session, static_cast<size_t>(program.samples), program.sampler);
  auto loader = data::make_data_loader(
      Pictures(program.samples).map(data::transforms::Stack<>()), sampler,
      data::DataLoaderOptions().batch_size(static_cast<size_t>(program.batch)).workers(program.workers).drop_last(program.loader_drops));
  std::vector<double> losses;
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto& rows : *loader) {
      if (program.tells) session.set_samples(rows.data.size(0));
      const Tensor loss = torch::cross_entropy_loss(net->forward(rows.data.view({-1, 6})), rows.target);
      loss.backward();
      parallel.step(optimizer);
      losses.push_back(session.mean(loss.item<double>()));
    }
  }
  return {net, losses};
}

Case like_one_process(const std::string& name, const Program& program, size_t num_steps, int num_ranks = 2) {
  return session_case(
      name,
      [=](Session& session) {
        const auto [net, losses] = train(session, program);
        Session alone{World()};
        const auto [whole, expected] = train(alone, program);
        expect(losses.size() == num_steps && expected.size() == num_steps, concat(losses.size(), " and ", expected.size(), " steps"));
        for (size_t i = 0; i < num_steps; ++i) expect(std::abs(losses[i] - expected[i]) < 1e-9, concat("loss of step ", i));
        expect(std::abs(losses[0] - losses[num_steps / 3]) > 1e-6, "another order each epoch");
        expect_same(*net, *whole, false, "after training");
      },
      "", num_ranks);
}

std::vector<size_t> rows_of(LoaderSampler& sampler, size_t batch) {
  const std::optional<LoaderRows> rows = sampler.next(batch);
  return rows ? std::vector<size_t>(*rows) : std::vector<size_t>();
}

TEST_CASE("a data loader with LoaderSampler trains as in one process") {
  run_cases("data loaders",
            {
                like_one_process("even batches, nothing said", {.samples = 12, .batch = 4, .tells = false}, 9),
                like_one_process("even batches, read ahead", {.samples = 12, .batch = 4, .tells = false, .workers = 2}, 9),
                like_one_process("uneven batches", {.samples = 11, .batch = 4}, 9, 3),
                like_one_process("uneven batches, read ahead", {.samples = 18, .batch = 5, .workers = 2}, 12, 3),
                like_one_process("the loader drops the last batch", {.samples = 14, .batch = 4, .loader_drops = true}, 9),
                like_one_process("the sampler drops the last batch",
                                 {.samples = 13, .batch = 4, .tells = false, .sampler = {.drop_last = true}}, 9),
                session_case(
                    "uneven batches, nothing said", [](Session& session) { train(session, {.samples = 11, .batch = 4, .tells = false}); },
                    "call session.set_samples(batch.data.size(0)) after each batch"),
                session_case("said of the batch before, read ahead",
                             [](Session& session) {
                               Net net;
                               Parallel parallel(*net, session);
                               LoaderSampler sampler(session, 11);
                               auto loader = data::make_data_loader(Pictures(11).map(data::transforms::Stack<>()), sampler,
                                                                    data::DataLoaderOptions().batch_size(4).workers(2));
                               auto at = loader->begin();
                               session.set_samples(at->data.size(0));
                               net->forward(at->data.view({-1, 6})).sum().backward();
                               ++at, ++at;
                               must_fail("set_samples", [&] { session.mean(1.0); });
                               must_fail("set_samples", [&] { net->forward(at->data.view({-1, 6})).sum().backward(); });
                               session.set_samples(at->data.size(0));
                               expect(session.mean(1.0) == 1, "mean");
                             }),
                session_case(
                    "a last batch of fewer rows than ranks", [](Session& session) { train(session, {.samples = 10, .batch = 4}); },
                    "the last of the batches of 4 from 10 samples has 2, less than one for each of 3 ranks", 3),
                session_case(
                    "a batch of fewer rows than ranks", [](Session& session) { train(session, {.samples = 10, .batch = 2}); },
                    "the batch size of the data loader is that of all ranks together", 3),
                session_case("even batches after uneven ones of another loader",
                             [](Session& session) {
                               session.set_samples(1 + session.rank());
                               LoaderSampler sampler(session, 8);
                               sampler.next(4);
                               must_fail("set_samples", [&] { session.mean(1.0); });
                             }),
            });
}

TEST_CASE("the batches of LoaderSampler are those of SessionSampler") {
  Session session{World()};
  SessionSampler expected(session, 10, 4);
  LoaderSampler sampler(session, 10), later(session, 10, {.first_epoch = 1});
  const auto of_step = [&](int64_t step) {
    const std::vector<int64_t> rows = expected.next(step);
    return std::vector<size_t>(rows.begin(), rows.end());
  };
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    sampler.reset();
    for (int64_t step = 0; step < 3; ++step) CHECK(rows_of(sampler, 4) == of_step(3 * epoch + step));
    CHECK(!sampler.next(4));
  }
  CHECK(rows_of(later, 4) == of_step(3));  // Nobody has reset it.
  later.reset();
  CHECK(rows_of(later, 4) == of_step(6));

  LoaderSampler in_order(session, 6, {.shuffle = false});
  CHECK(rows_of(in_order, 4) == std::vector<size_t>{0, 1, 2, 3});
  CHECK_THROWS_WITH_AS(in_order.next(3), doctest::Contains("a batch of 3 in an epoch of batches of 4"), Error);
  in_order.reset(3);
  CHECK(rows_of(in_order, 4) == std::vector<size_t>{0, 1, 2});
  CHECK_THROWS_AS(LoaderSampler(session, 0), Error);
  CHECK_THROWS_AS(LoaderSampler(session, 1, {.first_epoch = -1}), Error);
  LoaderSampler dropping(session, 3, {.drop_last = true});
  CHECK_THROWS_WITH_AS(dropping.next(4), doctest::Contains("leaves nothing of 3 samples"), Error);
}

TEST_CASE("LoaderSampler goes on from an archive") {
  Session session{World()};
  LoaderSampler sampler(session, 10);
  sampler.reset(), sampler.reset();
  sampler.next(4);
  torch::serialize::OutputArchive saved;
  sampler.save(saved);
  std::stringstream file;
  saved.save_to(file);

  torch::serialize::InputArchive archive;
  archive.load_from(file);
  LoaderSampler loaded(session, 10), other(session, 11);
  CHECK_THROWS_WITH_AS(other.load(archive), doctest::Contains("one of 10 samples, and this one of 11"), Error);
  loaded.load(archive);
  for (int i = 0; i < 3; ++i) CHECK(rows_of(loaded, 4) == rows_of(sampler, 4));
  loaded.reset(), sampler.reset();
  CHECK(rows_of(loaded, 4) == rows_of(sampler, 4));

  torch::serialize::OutputArchive empty;
  std::stringstream nothing;
  empty.write("other", at::ones({1}));
  empty.save_to(nothing);
  torch::serialize::InputArchive foreign;
  foreign.load_from(nothing);
  CHECK_THROWS_WITH_AS(loaded.load(foreign), doctest::Contains("holds no sampler of this kind"), Error);
}

}  // namespace
}  // namespace cohort
