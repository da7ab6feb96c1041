#include "tests/support/transport_oracle.h"

#include <ATen/ATen.h>

#include <cmath>
#include <iterator>

#include "cohort/base/fail.h"
#include "cohort/comm/net/composite_transport.h"
#include "cohort/comm/transport/calls.h"
#include "tests/support/naive_reduction.h"

namespace cohort {
namespace {

constexpr bool is_half_wide(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 31)) * 0x7fb5d329728ea185u;
  value = (value ^ (value >> 27)) * 0x81dadef4bc2dd44du;
  return value ^ (value >> 33);
}

/// Rank's data for one call. Whole numbers: 1 or 2, so that products over some ranks do not overflow. Others: random mantissas of unlike
/// size, so that sums and products in another order have other bits (of half precision, which is carried in float, other bits than one
/// rounding gives). Of complex products `whole` ones: how many roundings one has is the compiler's choice.
at::Tensor data_of(int rank, size_t count, at::ScalarType type, int salt, bool whole = false) {
  const auto at = [&](size_t i) { return mixed((static_cast<uint64_t>(salt) << 40) + (static_cast<uint64_t>(rank) << 32) + i); };
  if (whole || at::isIntegralType(type, /*includeBool=*/true)) {
    const at::Tensor values = at::empty({static_cast<int64_t>(count)}, at::kLong);
    for (size_t i = 0; i < count; ++i) values.data_ptr<int64_t>()[i] = 1 + static_cast<int64_t>(at(i) % 2);
    return type == at::kBool ? values.eq(1) : values.to(type);
  }
  const size_t numbers = at::isComplexType(type) ? 2 * count : count;
  const at::Tensor values = at::empty({static_cast<int64_t>(numbers)}, at::kDouble);
  for (size_t i = 0; i < numbers; ++i) {
    const uint64_t bits = at(i);
    values.data_ptr<double>()[i] =
        std::ldexp(1 + static_cast<double>(bits >> 11) / (uint64_t{1} << 53), type == at::kHalf ? 0 : static_cast<int>(bits % 7));
  }
  return (at::isComplexType(type) ? at::view_as_complex(values.view({-1, 2})) : values).to(type);
}

/// One array after the other, in the order given; half precision in float, rounded once.
at::Tensor folded(const std::vector<at::Tensor>& arrays, Reduction reduction) {
  const at::ScalarType type = arrays.front().scalar_type(), wide = is_half_wide(type) ? at::kFloat : type;
  at::Tensor result = arrays.front().to(wide);
  for (size_t i = 1; i < arrays.size(); ++i) result = combined(result, arrays[i].to(wide), reduction).to(wide);
  if (reduction == Reduction::kAverage) result = result.div(static_cast<int64_t>(arrays.size()));
  return result.to(type);
}

constexpr Reduction kOthers[] = {Reduction::kProduct, Reduction::kMin,   Reduction::kMax,
                                 Reduction::kBitAnd,  Reduction::kBitOr, Reduction::kBitXor};

bool makes_sense(Reduction reduction, at::ScalarType type) {
  const bool compares = reduction == Reduction::kMin || reduction == Reduction::kMax, multiplies = reduction == Reduction::kProduct;
  if (at::isIntegralType(type, /*includeBool=*/true)) return true;
  return at::isComplexType(type) ? multiplies : multiplies || compares;
}

class Oracle {
 public:
  explicit Oracle(Transport& transport) : transport_(transport), rank_(transport.rank()), size_(transport.size()) {
    if (const auto* composite = dynamic_cast<const CompositeTransport*>(&transport)) hosts_ = &composite->hosts();
  }

  void check_moves(at::ScalarType type, size_t count) {
    all_gather(type, count);
    for (const bool in_place : {false, true}) all_to_all(type, count, in_place);
    uneven_all_to_all(type, count);
    for (const int root : {0, size_ - 1}) {
      broadcast(type, count, root);
      for (const bool in_place : {false, true}) {
        gather(type, count, root, in_place);
        scatter(type, count, root, in_place);
      }
    }
    barrier();
  }

  void check_reductions(at::ScalarType type, size_t count, Reduction reduction) {
    for (const bool in_place : {false, true}) {
      all_reduce(type, count, reduction, in_place);
      for (const int root : {0, size_ - 1}) reduce(type, count, reduction, root, in_place);
      reduce_scatter(type, count, reduction, in_place);
    }
  }

  void check_messages();
  void check_from_any();
  size_t num_calls() const { return sequence_; }

 private:
  size_t all(size_t count) const { return count * static_cast<size_t>(size_); }
  static at::Tensor nothing_like(const at::Tensor& tensor) { return at::zeros_like(tensor); }

  at::Tensor piece(const at::Tensor& whole, int place, size_t count) const {
    return whole.narrow(0, static_cast<int64_t>(static_cast<size_t>(place) * count), static_cast<int64_t>(count));
  }

  Call call(Op op, at::ScalarType type, size_t count, const at::Tensor& input, const at::Tensor& output) {
    Call made;
    made.op = op;
    made.type = type;
    made.count = count;
    made.input = input.defined() ? input.data_ptr() : nullptr;
    made.output = output.defined() ? output.data_ptr() : nullptr;
    made.name = "oracle";
    made.sequence = ++sequence_;
    return made;
  }

  void run(Call made, const at::Tensor& output, const at::Tensor& expected) {
    transport_.start(made);
    transport_.finish(made);
    // An average over hosts is rounded more than once.
    const double slack = made.reduction == Reduction::kAverage && hosts_ ? (is_half_wide(made.type) ? 2e-2 : 1e-6) : 0;
    if (!expected.defined() || at::equal(output, expected) || (slack > 0 && at::allclose(output, expected, slack))) return;
    throw std::runtime_error(concat(transport_.name(), ", rank ", rank_, " of ", size_, ": ", name_of(made.op), " (",
                                    name_of(made.reduction), ", root ", made.root, ") of ", made.count, " ", made.type, " is wrong\n",
                                    output, "\nexpected\n", expected));
  }

  /// Over hosts what does not fit into a call's frame is reduced inside each host first, and rounded (composite_transport.h).
  at::Tensor reduced(at::ScalarType type, size_t count, Reduction reduction, int salt) const {
    std::vector<at::Tensor> all;
    for (int peer = 0; peer < size_; ++peer) all.push_back(reduced_data(peer, count, type, reduction, salt));
    if (!hosts_ || reduction == Reduction::kAverage || count * c10::elementSize(type) <= CallFrame::kPayloadBytes)
      return folded(all, reduction);
    std::vector<at::Tensor> of_hosts;
    for (int host = 0; host < hosts_->num_hosts(); ++host) {
      std::vector<at::Tensor> inside;
      for (const int peer : hosts_->ranks_of(host)) inside.push_back(all[static_cast<size_t>(peer)]);
      of_hosts.push_back(folded(inside, reduction));
    }
    return folded(of_hosts, reduction);
  }
  static at::Tensor reduced_data(int rank, size_t count, at::ScalarType type, Reduction reduction, int salt) {
    return data_of(rank, count, type, salt, /*whole=*/at::isComplexType(type) && reduction == Reduction::kProduct);
  }

  void all_reduce(at::ScalarType type, size_t count, Reduction reduction, bool in_place) {
    const at::Tensor input = reduced_data(rank_, count, type, reduction, 1), output = in_place ? input : nothing_like(input);
    Call made = call(Op::kAllReduce, type, count, input, output);
    made.reduction = reduction;
    run(made, output, reduced(type, count, reduction, 1));
  }
  void reduce(at::ScalarType type, size_t count, Reduction reduction, int root, bool in_place) {
    const at::Tensor input = reduced_data(rank_, count, type, reduction, 2);
    const at::Tensor output = rank_ != root ? at::Tensor() : in_place ? input : nothing_like(input);
    Call made = call(Op::kReduce, type, count, input, output);
    made.reduction = reduction;
    made.root = root;
    run(made, output, rank_ == root ? reduced(type, count, reduction, 2) : at::Tensor());
  }
  void reduce_scatter(at::ScalarType type, size_t count, Reduction reduction, bool in_place) {
    const at::Tensor input = reduced_data(rank_, all(count), type, reduction, 3);
    const at::Tensor output = in_place ? piece(input, 0, count) : at::zeros({static_cast<int64_t>(count)}, type);
    Call made = call(Op::kReduceScatter, type, count, input, output);
    made.reduction = reduction;
    run(made, output, piece(reduced(type, all(count), reduction, 3), rank_, count));
  }
  void all_gather(at::ScalarType type, size_t count) {
    std::vector<at::Tensor> parts;
    for (int peer = 0; peer < size_; ++peer) parts.push_back(data_of(peer, count, type, 4));
    const at::Tensor expected = at::cat(parts), output = nothing_like(expected);
    run(call(Op::kAllGather, type, count, parts[static_cast<size_t>(rank_)], output), output, expected);
    for (const int place : {rank_, 0}) {  // Its own place in the output, and the beginning.
      const at::Tensor in_place = nothing_like(expected);
      piece(in_place, place, count).copy_(parts[static_cast<size_t>(rank_)]);
      run(call(Op::kAllGather, type, count, piece(in_place, place, count), in_place), in_place, expected);
    }
  }
  void all_to_all(at::ScalarType type, size_t count, bool in_place) {
    std::vector<at::Tensor> parts;
    for (int peer = 0; peer < size_; ++peer) parts.push_back(piece(data_of(peer, all(count), type, 5), rank_, count));
    const at::Tensor input = data_of(rank_, all(count), type, 5), output = in_place ? input : nothing_like(input);
    run(call(Op::kAllToAll, type, count, input, output), output, at::cat(parts));
  }
  void uneven_all_to_all(at::ScalarType type, size_t count) {
    const auto sent = [&](int from, int to) {
      return (from + 2 * to) % 3 == 0 ? 0 : count + static_cast<size_t>(from) + 2 * static_cast<size_t>(to);
    };
    const auto begin = [&](int from, int to) {
      size_t at = 0;
      for (int other = 0; other < to; ++other) at += sent(from, other);
      return at;
    };
    std::vector<at::Tensor> parts;
    std::vector<size_t> send_counts, receive_counts;
    for (int peer = 0; peer < size_; ++peer) {
      send_counts.push_back(sent(rank_, peer));
      receive_counts.push_back(sent(peer, rank_));
      parts.push_back(data_of(peer, begin(peer, size_), type, 6)
                          .narrow(0, static_cast<int64_t>(begin(peer, rank_)), static_cast<int64_t>(sent(peer, rank_))));
    }
    const at::Tensor input = data_of(rank_, begin(rank_, size_), type, 6), expected = at::cat(parts), output = nothing_like(expected);
    Call made = call(Op::kAllToAll, type, 0, input, output);
    made.send_counts = send_counts;
    made.receive_counts = receive_counts;
    run(made, output, expected);
  }
  void broadcast(at::ScalarType type, size_t count, int root) {
    const at::Tensor expected = data_of(root, count, type, 7), tensor = rank_ == root ? expected.clone() : nothing_like(expected);
    Call made = call(Op::kBroadcast, type, count, tensor, tensor);
    made.root = root;
    run(made, tensor, expected);
  }
  void gather(at::ScalarType type, size_t count, int root, bool in_place) {
    std::vector<at::Tensor> parts;
    for (int peer = 0; peer < size_; ++peer) parts.push_back(data_of(peer, count, type, 8));
    const at::Tensor expected = rank_ == root ? at::cat(parts) : at::Tensor(),
                     output = rank_ == root ? nothing_like(expected) : at::Tensor();
    at::Tensor input = parts[static_cast<size_t>(rank_)];
    if (in_place && rank_ == root) input = piece(output, rank_, count).copy_(input);
    Call made = call(Op::kGather, type, count, input, output);
    made.root = root;
    run(made, output, expected);
  }
  void scatter(at::ScalarType type, size_t count, int root, bool in_place) {
    const at::Tensor whole = data_of(root, all(count), type, 9), expected = piece(whole, rank_, count).clone();
    const at::Tensor output = in_place && rank_ == root ? piece(whole, 0, count) : at::zeros({static_cast<int64_t>(count)}, type);
    Call made = call(Op::kScatter, type, count, rank_ == root ? whole : at::Tensor(), output);
    made.root = root;
    run(made, output, expected);
  }
  void barrier() { run(call(Op::kBarrier, at::kByte, 0, {}, {}), {}, {}); }

  Transport& transport_;
  int rank_, size_;
  const HostMap* hosts_ = nullptr;  ///< Of a transport over several hosts.
  uint64_t sequence_ = 0;
};

/// Every rank sends two messages to every other, of a size and tag of their own, and takes the last first.
void Oracle::check_messages() {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{300}, size_t{70001}}) {
    std::vector<at::Tensor> kept;
    std::vector<std::shared_ptr<Message>> sent, received;
    for (const int tag : {5, 6})
      for (int peer = 0; peer < size_; ++peer) {
        if (peer == rank_) continue;
        const size_t to = bytes + static_cast<size_t>(peer), from = bytes + static_cast<size_t>(rank_);
        kept.push_back(data_of(rank_, to, at::kByte, tag));
        sent.push_back(transport_.send(kept.back().data_ptr(), to, peer, tag));
        kept.push_back(at::zeros({static_cast<int64_t>(from)}, at::kByte));
        received.push_back(transport_.receive(kept.back().data_ptr(), from, peer, tag));
      }
    for (size_t i = received.size(); i-- > 0;) {
      received[i]->wait();
      sent[i]->wait();
      const int peer = received[i]->source(), tag = i < received.size() / 2 ? 5 : 6;
      if (!at::equal(kept[2 * i + 1], data_of(peer, bytes + static_cast<size_t>(rank_), at::kByte, tag)))
        throw std::runtime_error(concat(transport_.name(), ": a wrong message of ", bytes, " bytes from rank ", peer, " at rank ", rank_));
    }
  }
}

/// Rank 0 hears from all.
void Oracle::check_from_any() {
  if (size_ == 1) return;
  if (rank_ != 0) return transport_.send(&rank_, sizeof rank_, 0, 3)->wait();
  int sum = 0;
  for (int i = 1; i < size_; ++i) {
    int text = 0;
    const auto message = transport_.receive(&text, sizeof text, -1, 3);
    while (!message->done()) continue;
    if (message->source() != text) throw std::runtime_error(concat(transport_.name(), ": rank ", text, " passed for ", message->source()));
    sum += text;
  }
  if (sum != size_ * (size_ - 1) / 2) throw std::runtime_error(concat(transport_.name(), ": a message from any rank came twice or never"));
}

}  // namespace

size_t check_transport(Transport& transport, const OracleOptions& options) {
  Oracle oracle(transport);
  for (const at::ScalarType type : options.types)
    for (size_t i = 0; i < options.counts.size(); ++i) {
      const size_t count = options.counts[i];
      oracle.check_moves(type, count);
      oracle.check_reductions(type, count, Reduction::kSum);
      if (at::isFloatingType(type)) oracle.check_reductions(type, count, Reduction::kAverage);
      for (size_t k = 0; k < std::size(kOthers); ++k) {
        const bool asked = type == at::kFloat || type == at::kInt || i % std::size(kOthers) == k;
        if (asked && makes_sense(kOthers[k], type)) oracle.check_reductions(type, count, kOthers[k]);
      }
    }
  oracle.check_messages();
  if (options.from_any) oracle.check_from_any();
  return oracle.num_calls();
}

}  // namespace cohort
