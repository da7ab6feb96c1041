#include "cohort/train/async/divided_server.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/train/async/server_parts.h"

namespace cohort {
namespace {

/// Five parameters of different sizes, and a running statistic with a count.
struct Toy : torch::nn::Module {
  Toy() {
    for (const int64_t size : {7, 40, 3, 64, 11})
      all.push_back(register_parameter("p" + std::to_string(size), at::full({size}, 1.0 / static_cast<double>(size))));
    mean = register_buffer("mean", at::full({2}, 10.0));
    batches = register_buffer("batches", at::full({}, 0, at::kLong));
  }
  TicketResult result(int seed) const {
    at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
    TicketResult out{.loss = 1, .gradients = {}, .buffers = {at::full({2}, static_cast<double>(seed)), at::full({}, seed, at::kLong)}};
    for (size_t i = 0; i < all.size(); ++i)
      out.gradients.push_back(i == 2 && seed % 2 == 0 ? at::Tensor() : at::randn(all[i].sizes(), generator, at::TensorOptions()));
    return out;
  }
  std::vector<at::Tensor> all;
  at::Tensor mean, batches;
};

Ticket ticket_of(int64_t samples) { return {0, 0, {0, samples}, 12}; }

/// What a worker's process and the servers' do with tickets, some late, in one process. Returns the staleness of the pushes.
std::vector<int64_t> train(const std::vector<AsyncMode*>& servers, const Toy& toy, GradientWorker& worker, double clip_norm) {
  const std::vector<int> owners = servers_of(ServedModel(toy).trained, static_cast<int>(servers.size()));
  std::vector<std::vector<Work>> in_hand;
  std::vector<int64_t> staleness;
  const auto pull = [&](int64_t samples, double rate) {
    std::vector<Work>& works = in_hand.emplace_back();
    for (AsyncMode* const server : servers) {
      Work& work = works.emplace_back(Work{.ticket = ticket_of(samples)});
      server->pull(work, {rate, clip_norm});
      server->handed_out(work);
    }
  };
  const auto push = [&](size_t which, int seed, double rate) {
    std::vector<Work> works = std::move(in_hand[which]);
    in_hand.erase(in_hand.begin() + static_cast<std::ptrdiff_t>(which));
    const HandedOver result = worker.hand_over(works[0].ticket, toy.result(seed), {rate, clip_norm});
    for (size_t i = 0; i < servers.size(); ++i) {
      std::vector<at::Tensor> its =
          tensors_of_server(result.tensors, servers.size() == 1 ? std::vector<int>() : owners, static_cast<int>(i));
      its.insert(its.end(), works[i].tensors.begin(), works[i].tensors.end());
      works[i].tensors = std::move(its);
      works[i].squares = servers.size() == 1 ? -1 : result.squares;
      const PushOutcome outcome = servers[i]->push(works[i], {rate, clip_norm});
      if (i == 0) staleness.push_back(outcome.staleness);
      CHECK(outcome.staleness == staleness.back());
    }
  };
  for (int round = 0; round < 4; ++round) {
    pull(4, 0.1), pull(3, 0.09), pull(5, 0.08);
    push(1, 3 * round + 1, 0.08), push(0, 3 * round + 2, 0.07), push(0, 3 * round + 3, 0.07);
  }
  return staleness;
}

std::vector<AsyncMode*> parts_of(const DividedServer& divided) {
  std::vector<AsyncMode*> parts;
  for (size_t server = 0; server < divided.num_servers(); ++server) parts.push_back(&divided.part(server));
  return parts;
}

TEST_CASE("divided server: the largest parameters first, each to the server with the fewest bytes") {
  const Toy toy;
  const std::vector<NamedTensor> trained = ServedModel(toy).trained;
  CHECK(servers_of(trained, 1) == std::vector<int>{0, 0, 0, 0, 0});
  CHECK(servers_of(trained, 2) == std::vector<int>{1, 1, 1, 0, 1});  // 64 and 61 elements.
  CHECK(servers_of(trained, 3) == std::vector<int>{2, 1, 2, 0, 2});
  CHECK_NOTHROW(check_servers(trained, 5, "async:servers=5"));
  CHECK_THROWS_WITH_AS(check_servers(trained, 6, "async:servers=6"), doctest::Contains("use servers=5 or fewer"), Error);
  CHECK(ServedModel(toy, {1, 2}).buffers.empty());
  CHECK(ServedModel(toy, {0, 2}).buffers.size() == 2);
  CHECK(ServedModel(toy, {0, 2}).num_bytes + ServedModel(toy, {1, 2}).num_bytes == ServedModel(toy).num_bytes);
}

TEST_CASE("divided server: the bits of one server, with any optimizer, remedy, clipping and compression") {
  using Kind = UpdateRule::Kind;
  struct Case {
    Kind kind;
    const char *remedy, *compress;
    double clip_norm;
  };
  for (const Case& one : {Case{Kind::kSgd, "", "none", 0}, Case{Kind::kMomentum, "lookahead", "none", 0.5},
                          Case{Kind::kAdamW, "", "none", 0.5}, Case{Kind::kAdam, "staleness", "int8", 0},
                          Case{Kind::kNesterov, "compensate", "none", 0}, Case{Kind::kSgd, "drop:0.5", "fp16", 0.2}}) {
    CAPTURE(one.remedy);
    const GradientServerOptions options{
        .rule = {.kind = one.kind, .weight_decay = 0.01}, .remedy = parse_remedy(one.remedy), .global_batch = 12, .compress = one.compress};
    const bool may_drop = options.remedy.name == "drop";
    const Toy whole_toy;
    GradientServer whole(whole_toy, options);
    GradientWorker worker(whole_toy, one.compress, may_drop);
    const std::vector<int64_t> staleness = train({&whole}, whole_toy, worker, one.clip_norm);
    CHECK(staleness[2] == 2);
    for (const int num_servers : {2, 3, 5}) {
      CAPTURE(num_servers);
      const Toy toy;
      GradientServerOptions divided_options = options;
      divided_options.part.num_servers = num_servers;
      DividedServer divided(toy, divided_options);
      GradientWorker its_worker(toy, one.compress, may_drop, one.clip_norm > 0);
      CHECK(train(parts_of(divided), toy, its_worker, one.clip_norm) == staleness);
      for (size_t i = 0; i < toy.all.size(); ++i) CHECK(at::equal(toy.all[i], whole_toy.all[i]));
      CHECK(at::equal(toy.mean, whole_toy.mean));
      CHECK(at::equal(toy.batches, whole_toy.batches));
      CHECK(divided.pull_bytes() == whole.pull_bytes());
      CHECK(divided.push_bytes() == whole.push_bytes());
    }
  }
}

TEST_CASE("divided server: a saved state goes on bit by bit; one of another number of servers is refused") {
  const GradientServerOptions options{.rule = {.kind = UpdateRule::Kind::kAdam}, .global_batch = 12, .part = {.num_servers = 3}};
  const Toy first_toy, second_toy;
  DividedServer first(first_toy, options), second(second_toy, options);
  GradientWorker worker(first_toy, "none", false);
  train(parts_of(first), first_toy, worker, 0);
  const Json state = first.state();
  std::vector<FlatPiece> from = first.saved_pieces(), to = second.loaded_pieces(state, "here");
  REQUIRE(from.size() == to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    CHECK(from[i].name == to[i].name);
    to[i].values.copy_(from[i].values);
  }
  ServedModel(second_toy).set_weights(ServedModel(first_toy).weights);
  ServedModel(second_toy).set_buffers(ServedModel(first_toy).copy_of_buffers());
  second.loaded(state);
  CHECK(second.state() == state);
  train(parts_of(first), first_toy, worker, 0);
  train(parts_of(second), second_toy, worker, 0);
  for (size_t i = 0; i < first_toy.all.size(); ++i) CHECK(at::equal(first_toy.all[i], second_toy.all[i]));

  GradientServerOptions two = options;
  two.part.num_servers = 2;
  DividedServer other(second_toy, two);
  CHECK_THROWS_WITH_AS(other.loaded_pieces(state, "here"), doctest::Contains("not that of 2 servers"), Error);
  Json damaged = state;
  damaged["parts"][1].erase("version");
  CHECK_THROWS_AS(second.loaded_pieces(damaged, "here"), Error);
  damaged = state;
  damaged.erase("parts");
  CHECK_THROWS_AS(second.loaded_pieces(damaged, "here"), Error);
}

}  // namespace
}  // namespace cohort
