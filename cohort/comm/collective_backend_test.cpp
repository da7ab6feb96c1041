#include "cohort/comm/collective_backend.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "cohort/base/fail.h"
#include "tests/support/backend_ranks.h"

namespace cohort {
namespace {

/// Element i of rank r's data: small enough for products in every type.
int64_t value(int rank, int64_t i) { return (rank * 5 + i * 7) % 3 + 1; }

at::Tensor from_values(int64_t count, at::ScalarType type, const std::function<int64_t(int64_t)>& value_of) {
  at::Tensor values = at::empty({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) values.data_ptr<int64_t>()[i] = value_of(i);
  if (type == at::kBool) return values.remainder(2).to(at::kBool);
  return c10::isComplexType(type) ? (values.to(at::kComplexDouble) * c10::complex<double>(1, 2)).to(type) : values.to(type);
}

at::Tensor data_of(int rank, int64_t count, at::ScalarType type, int64_t first = 0) {
  return from_values(count, type, [&](int64_t i) { return value(rank, first + i); });
}

int64_t folded(RedOp op, int size, int64_t i) {
  int64_t result = value(0, i);
  for (int rank = 1; rank < size; ++rank) {
    const int64_t next = value(rank, i);
    switch (op) {
      case RedOp::PRODUCT:
        result *= next;
        break;
      case RedOp::MIN:
        result = std::min(result, next);
        break;
      case RedOp::MAX:
        result = std::max(result, next);
        break;
      case RedOp::BAND:
        result &= next;
        break;
      case RedOp::BOR:
        result |= next;
        break;
      case RedOp::BXOR:
        result ^= next;
        break;
      default:
        result += next;
    }
  }
  return result;
}

const std::vector<at::ScalarType> kTypes = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong,         at::kInt,
                                            at::kShort, at::kChar,   at::kByte, at::kBool,     at::kComplexFloat, at::kComplexDouble};

void check_reductions(CollectiveBackend& backend, int64_t count) {
  const int rank = backend.getRank(), size = backend.getSize();
  for (const at::ScalarType type : {at::kFloat, at::kLong})
    for (const RedOp op : {RedOp::SUM, RedOp::PRODUCT, RedOp::MIN, RedOp::MAX, RedOp::BAND, RedOp::BOR, RedOp::BXOR, RedOp::AVG}) {
      const bool bits = op == RedOp::BAND || op == RedOp::BOR || op == RedOp::BXOR;
      if ((bits && type == at::kFloat) || (op == RedOp::AVG && type == at::kLong)) continue;
      at::Tensor expected = from_values(count, type, [&](int64_t i) { return folded(op, size, i); });
      if (op == RedOp::AVG) expected = expected / size;
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      for (const bool gaps : {false, true}) {
        Tensors tensor{gaps ? with_gaps(data_of(rank, count, type)) : data_of(rank, count, type)};
        backend.allreduce(tensor, options)->wait();
        require(at::equal(tensor[0], expected), concat("all-reduce ", static_cast<int>(op), " of ", count));
      }
      c10d::ReduceOptions to_last;
      to_last.reduceOp = op;
      to_last.rootRank = size - 1;
      Tensors tensor{data_of(rank, count, type)};
      backend.reduce(tensor, to_last)->wait();
      require(at::equal(tensor[0], rank == size - 1 ? expected : data_of(rank, count, type)), "reduce");
      c10d::ReduceScatterOptions scattered;
      scattered.reduceOp = op;
      // Block r is the data from element r * count on.
      at::Tensor input = data_of(rank, count * size, type), output = at::empty({count}, type);
      at::Tensor mine = from_values(count, type, [&](int64_t i) { return folded(op, size, rank * count + i); });
      if (op == RedOp::AVG) mine = mine / size;
      backend._reduce_scatter_base(output, input, scattered)->wait();
      require(at::equal(output, mine), "reduce-scatter into tensor");
      std::vector<Tensors> inputs{{}};
      for (int peer = 0; peer < size; ++peer) inputs[0].push_back(with_gaps(input.narrow(0, peer * count, count)));
      Tensors outputs{with_gaps(at::zeros({count}, type))};
      backend.reduce_scatter(outputs, inputs, scattered)->wait();
      require(at::equal(outputs[0], mine), "reduce-scatter of a list");
    }
}

void check_moves(CollectiveBackend& backend, int64_t count, at::ScalarType type) {
  const int rank = backend.getRank(), size = backend.getSize();
  const std::string where = concat(count, " ", c10::toString(type));
  at::Tensor mine = data_of(rank, count, type);
  Tensors tensor{mine.clone()};
  c10d::AllreduceOptions sum;
  if (type != at::kBool) {
    backend.allreduce(tensor, sum)->wait();
    require(at::equal(tensor[0], from_values(count, type, [&](int64_t i) { return folded(RedOp::SUM, size, i); })), "all-reduce " + where);
  }
  for (int root = 0; root < size; ++root) {
    c10d::BroadcastOptions broadcast;
    broadcast.rootRank = root;
    Tensors sent{with_gaps(mine)};
    backend.broadcast(sent, broadcast)->wait();
    require(at::equal(sent[0], data_of(root, count, type)), "broadcast " + where);
    c10d::GatherOptions gather;
    gather.rootRank = root;
    std::vector<Tensors> gathered;
    if (rank == root) gathered.push_back({});
    for (int peer = 0; peer < size && rank == root; ++peer) gathered[0].push_back(at::zeros({count}, type));
    Tensors input{mine};
    backend.gather(gathered, input, gather)->wait();
    for (int peer = 0; peer < size && rank == root; ++peer)
      require(at::equal(gathered[0][peer], data_of(peer, count, type)), "gather " + where);
    c10d::ScatterOptions scatter;
    scatter.rootRank = root;
    std::vector<Tensors> pieces;
    if (rank == root) pieces.push_back({});
    for (int peer = 0; peer < size && rank == root; ++peer) pieces[0].push_back(data_of(root, count, type, peer * count));
    Tensors piece{at::zeros({count}, type)};
    backend.scatter(piece, pieces, scatter)->wait();
    require(at::equal(piece[0], data_of(root, count, type, rank * count)), "scatter " + where);
  }
  at::Tensor all = at::zeros({size, count}, type), expected = at::zeros({size, count}, type);
  for (int peer = 0; peer < size; ++peer) expected[peer].copy_(data_of(peer, count, type));
  backend._allgather_base(all, mine)->wait();
  require(at::equal(all, expected), "all-gather into tensor " + where);
  // In place: the input is this rank's row of the output.
  all.zero_();
  all[rank].copy_(mine);
  at::Tensor row = all[rank];
  backend._allgather_base(all, row)->wait();
  require(at::equal(all, expected), "all-gather in place " + where);
  for (const bool gaps : {false, true}) {
    std::vector<Tensors> lists{{}};
    for (int peer = 0; peer < size; ++peer) lists[0].push_back(gaps ? with_gaps(at::zeros({count}, type)) : all[peer].zero_());
    Tensors input{mine};
    backend.allgather(lists, input)->wait();
    for (int peer = 0; peer < size; ++peer) require(at::equal(lists[0][peer], expected[peer]), "all-gather of a list " + where);
  }
}

void check_all_to_all(CollectiveBackend& backend, int64_t count) {
  const int rank = backend.getRank(), size = backend.getSize();
  // Even: row r of the input goes to rank r.
  at::Tensor input = data_of(rank, size * count, at::kFloat).view({size, count}), output = at::empty({size, count}),
             expected = at::empty({size, count});
  for (int peer = 0; peer < size; ++peer) expected[peer].copy_(data_of(peer, count, at::kFloat, rank * count));
  std::vector<int64_t> none;
  backend.alltoall_base(output, input, none, none)->wait();
  require(at::equal(output, expected), "even all-to-all");
  // Uneven: rank i sends (i + 2 j) % 4 rows of 3 to rank j.
  std::vector<int64_t> send, receive;
  for (int peer = 0; peer < size; ++peer) send.push_back((rank + 2 * peer) % 4), receive.push_back((peer + 2 * rank) % 4);
  const int64_t sent = std::accumulate(send.begin(), send.end(), int64_t{0}),
                received = std::accumulate(receive.begin(), receive.end(), int64_t{0});
  at::Tensor rows = data_of(rank, sent * 3, at::kLong).view({sent, 3}), got = at::zeros({received, 3}, at::kLong);
  backend.alltoall_base(got, rows, receive, send)->wait();
  Tensors parts, inputs, outputs;
  for (int peer = 0; peer < size; ++peer) {
    int64_t before = 0, total = 0;
    for (int to = 0; to < size; ++to) (to < rank ? before : total) += (peer + 2 * to) % 4;
    parts.push_back(data_of(peer, (before + total) * 3, at::kLong).view({-1, 3}).narrow(0, before, (peer + 2 * rank) % 4));
    inputs.push_back(data_of(rank, peer + 1, at::kInt));
    outputs.push_back(at::zeros({rank + 1}, at::kInt));
  }
  require(at::equal(got, at::cat(parts)), "uneven all-to-all");
  backend.alltoall(outputs, inputs)->wait();
  for (int peer = 0; peer < size; ++peer) require(at::equal(outputs[peer], data_of(peer, rank + 1, at::kInt)), "all-to-all of lists");
}

TEST_CASE("every collective of c10d gives what a scalar loop gives, in both ways of running calls") {
  for (const RankKind kind : kRankKinds)
    for (const int size : {1, 2, 3, 4})
      run_ranks_well(size, kind, [&](CollectiveBackend& backend) {
        const torch::NoGradGuard no_gradients;
        for (const int64_t count : {0, 1, 13}) {
          check_reductions(backend, count);
          check_all_to_all(backend, count);
        }
        for (const at::ScalarType type : kTypes) check_moves(backend, 7, type);
        check_moves(backend, 0, at::kFloat);
        backend.barrier()->wait();
        backend.monitoredBarrier({});
        require(backend.recorder().last(1)[0].state == CallRecord::State::kDone, "recorded");
      });
}

TEST_CASE("coalesced forms and coalescing") {
  for (const RankKind kind : kRankKinds)
    run_ranks_well(3, kind, [](CollectiveBackend& backend) {
      const int rank = backend.getRank();
      Tensors many{data_of(rank, 5, at::kFloat), data_of(rank, 2, at::kLong), data_of(rank, 0, at::kDouble)};
      backend.allreduce_coalesced(many)->wait();
      for (int i = 0; i < 3; ++i)
        require(at::equal(many[i], from_values(many[i].numel(), many[i].scalar_type(), [](int64_t k) { return folded(RedOp::SUM, 3, k); })),
                "coalesced sums");
      Tensors inputs{data_of(rank, 4, at::kFloat), data_of(rank, 1, at::kInt)}, wide{at::zeros({12}), at::zeros({3}, at::kInt)};
      backend.allgather_into_tensor_coalesced(wide, inputs)->wait();
      std::vector<Tensors> lists;
      for (int peer = 0; peer < 3; ++peer) lists.push_back({at::zeros({4}), at::zeros({1}, at::kInt)});
      backend.allgather_coalesced(lists, inputs)->wait();
      for (int peer = 0; peer < 3; ++peer) {
        require(at::equal(lists[peer][0], data_of(peer, 4, at::kFloat)) && at::equal(lists[peer][1], data_of(peer, 1, at::kInt)), "lists");
        require(at::equal(wide[0].narrow(0, 4 * peer, 4), lists[peer][0]), "wide");
      }
      Tensors pieces{at::zeros({4})}, whole{wide[0].clone()};
      backend.reduce_scatter_tensor_coalesced(pieces, whole)->wait();
      require(at::equal(pieces[0], wide[0].narrow(0, 4 * rank, 4) * 3), "pieces");

      backend.startCoalescing();
      Tensors one{at::full({3}, rank)}, right{at::full({2}, rank)}, left{at::zeros({2})};
      right[0] = right[0].to(at::kFloat);
      backend.allreduce(one);
      backend.send(right, (rank + 1) % 3, 4);
      backend.recv(left, (rank + 2) % 3, 4);
      const auto work = backend.endCoalescing();
      const auto future = work->getFuture();
      work->wait();
      future->wait();
      require(one[0].eq(3).all().item<bool>() && left[0].eq((rank + 2) % 3).all().item<bool>(), "coalescing");
      require(future->value().toTensorVector().size() == 3, "the future of a bundle");
    });
}

}  // namespace
}  // namespace cohort
