// Every operation, type, reduction, size, placement and aliasing against a reference that adds one element after the other in rank order;
// results must have its bits. The product is sampled so that each pair of operation and type meets every number of ranks; with
// COHORT_FULL_ORACLE=1 in the environment it is run in full.

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <complex>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <type_traits>

#include "cohort/base/fail.h"
#include "tests/support/shm_ranks.h"

using namespace cohort;

namespace {

constexpr ShmTuning kTuning{.flat_bytes = 1024, .direct_bytes = 512, .tile_bytes = 2048};
constexpr size_t kMostBytes = 8 * 6208 + 4096;

constexpr std::array kOps{Op::kAllReduce, Op::kReduce, Op::kReduceScatter, Op::kAllGather, Op::kBroadcast,
                          Op::kAllToAll,  Op::kGather, Op::kScatter,       Op::kBarrier};
constexpr std::array kTypes{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar, at::kByte,         at::kShort,        at::kUInt16,
                            at::kInt,   at::kUInt32, at::kLong, at::kUInt64,   at::kBool, at::kComplexFloat, at::kComplexDouble};
constexpr std::array kReductions{Reduction::kSum, Reduction::kAverage, Reduction::kProduct, Reduction::kMin,
                                 Reduction::kMax, Reduction::kBitAnd,  Reduction::kBitOr,   Reduction::kBitXor};
enum class Placement { kPrivate, kArena, kMixed };
enum class Aliasing { kApart, kEqual, kOwnPlace };

/// Around the sizes in bytes at which the algorithm changes: in the slot, copied, tiles (one, three).
std::vector<size_t> sizes(size_t element_bytes) {
  std::vector<size_t> counts{0, 1, 7, 31};
  for (const size_t bytes : {ShmSlot::kInlineBytes, size_t{512}, size_t{1024}, size_t{2048}, size_t{6144}})
    for (const size_t step : {0, 1, 2}) counts.push_back(bytes / element_bytes - 1 + step);
  return counts;
}

uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 31)) * 0x7fb5d329728ea185u;
  value = (value ^ (value >> 27)) * 0x81dadef4bc2dd44du;
  return value ^ (value >> 33);
}

struct Case {
  Op op;
  at::ScalarType type;
  Reduction reduction;
  size_t count;
  Placement placement;
  Aliasing aliasing;
  bool uneven;
  int root;
  uint64_t seed;
};

bool makes_sense(Reduction reduction, at::ScalarType type) {
  const bool bits = reduction == Reduction::kBitAnd || reduction == Reduction::kBitOr || reduction == Reduction::kBitXor;
  if (c10::isIntegralType(type, /*includeBool=*/true)) return reduction != Reduction::kAverage;
  return !bits && !(c10::isComplexType(type) && (reduction == Reduction::kMin || reduction == Reduction::kMax));
}

/// Calls `body` with a value of the C++ type.
template <typename Body>
void with_type(at::ScalarType type, Body body) {
  switch (type) {
    case at::kFloat:
      return body(float{});
    case at::kDouble:
      return body(double{});
    case at::kHalf:
      return body(c10::Half{});
    case at::kBFloat16:
      return body(c10::BFloat16{});
    case at::kChar:
      return body(int8_t{});
    case at::kByte:
      return body(uint8_t{});
    case at::kShort:
      return body(int16_t{});
    case at::kUInt16:
      return body(uint16_t{});
    case at::kInt:
      return body(int32_t{});
    case at::kUInt32:
      return body(uint32_t{});
    case at::kLong:
      return body(int64_t{});
    case at::kUInt64:
      return body(uint64_t{});
    case at::kBool:
      return body(bool{});
    case at::kComplexFloat:
      return body(std::complex<float>{});
    default:
      return body(std::complex<double>{});
  }
}

template <typename T>
constexpr bool is_half_wide = std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16>;
template <typename T>
constexpr bool is_complex = std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;

/// Elements [0, count) of a rank's input: any bits for integers, -2 to 2 for others.
std::vector<std::byte> data_of(const Case& of, int rank, size_t count) {
  std::vector<std::byte> data(count * c10::elementSize(of.type));
  with_type(of.type, [&]<typename T>(T) {
    for (size_t i = 0; i < count; ++i) {
      const uint64_t random = mixed(of.seed * 1000003 + static_cast<uint64_t>(rank) * 7919 + i);
      const double real = static_cast<double>(random % 40001) / 10000 - 2, other = static_cast<double>(random >> 40) / (1 << 23) - 1;
      T value{};
      if constexpr (is_complex<T>) value = T(static_cast<typename T::value_type>(real), static_cast<typename T::value_type>(other));
      else if constexpr (std::is_same_v<T, bool>) value = random % 3 == 0;
      else if constexpr (std::is_integral_v<T>) value = static_cast<T>(random);
      else value = static_cast<T>(static_cast<float>(real));
      std::memcpy(data.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return data;
}

template <typename W>
W combined(W a, W b, Reduction reduction) {
  if constexpr (std::is_same_v<W, bool>) {
    if (reduction == Reduction::kBitXor) return a != b;
    return reduction == Reduction::kSum || reduction == Reduction::kMax || reduction == Reduction::kBitOr ? a || b : a && b;
  } else if constexpr (is_complex<W>) {
    if (reduction != Reduction::kProduct) return a + b;
    return W(a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real());
  } else {
    if (reduction == Reduction::kMin) return a < b ? a : b;
    if (reduction == Reduction::kMax) return a > b ? a : b;
    if constexpr (std::is_integral_v<W>) {
      const uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
      switch (reduction) {
        case Reduction::kProduct:
          return static_cast<W>(x * y);
        case Reduction::kBitAnd:
          return static_cast<W>(x & y);
        case Reduction::kBitOr:
          return static_cast<W>(x | y);
        case Reduction::kBitXor:
          return static_cast<W>(x ^ y);
        default:
          return static_cast<W>(x + y);
      }
    } else {
      return reduction == Reduction::kProduct ? a * b : a + b;
    }
  }
}

/// `bytes` at `at` of the reduction of all ranks' inputs.
std::vector<std::byte> reduction_of(const Case& of, const std::vector<std::vector<std::byte>>& inputs, size_t at, size_t bytes) {
  std::vector<std::byte> result(bytes);
  with_type(of.type, [&]<typename T>(T) {
    using Wide = std::conditional_t<is_half_wide<T>, float, T>;
    for (size_t i = 0; i < bytes; i += sizeof(T)) {
      Wide sum{};
      for (size_t rank = 0; rank < inputs.size(); ++rank) {
        T value;
        std::memcpy(&value, inputs[rank].data() + at + i, sizeof(T));
        sum = rank == 0 ? static_cast<Wide>(value) : combined(sum, static_cast<Wide>(value), of.reduction);
      }
      if constexpr (!std::is_integral_v<Wide>) {
        if (of.reduction == Reduction::kAverage) {
          if constexpr (is_complex<Wide>) sum /= static_cast<typename Wide::value_type>(inputs.size());
          else sum /= static_cast<Wide>(inputs.size());
        }
      }
      const T rounded = static_cast<T>(sum);
      std::memcpy(result.data() + i, &rounded, sizeof(T));
    }
  });
  return result;
}

/// Elements from one rank to another in an all-to-all.
size_t piece(const Case& of, int from, int to) {
  if (!of.uneven) return of.count;
  const uint64_t random = mixed(of.seed + static_cast<uint64_t>(from * 31 + to));
  return random % 4 == 0 ? 0 : random % (of.count + 1);
}

size_t num_given(const Case& of, int rank, int size) {
  const size_t all = of.count * static_cast<size_t>(size);
  if (of.op == Op::kBarrier) return 0;
  if (of.op == Op::kBroadcast) return rank == of.root ? of.count : 0;
  if (of.op == Op::kScatter) return rank == of.root ? all : 0;
  if (of.op == Op::kReduceScatter) return all;
  if (of.op != Op::kAllToAll) return of.count;
  size_t sum = 0;
  for (int to = 0; to < size; ++to) sum += piece(of, rank, to);
  return sum;
}

void append(std::vector<std::byte>& to, const std::vector<std::byte>& from, size_t at, size_t bytes) {
  to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(at), from.begin() + static_cast<std::ptrdiff_t>(at + bytes));
}

/// The expected output of `rank`; empty where it has none.
std::vector<std::byte> expected_of(const Case& of, const std::vector<std::vector<std::byte>>& inputs, int rank) {
  const int size = static_cast<int>(inputs.size());
  const size_t element_bytes = c10::elementSize(of.type), bytes = of.count * element_bytes, place = static_cast<size_t>(rank) * bytes;
  std::vector<std::byte> output;
  const std::vector<std::byte>& roots = inputs[static_cast<size_t>(of.root)];
  switch (of.op) {
    case Op::kAllReduce:
      return reduction_of(of, inputs, 0, bytes);
    case Op::kReduce:
      return rank == of.root ? reduction_of(of, inputs, 0, bytes) : output;
    case Op::kReduceScatter:
      return reduction_of(of, inputs, place, bytes);
    case Op::kBroadcast:
      return roots;
    case Op::kScatter:
      append(output, roots, place, bytes);
      return output;
    case Op::kGather:
      if (rank != of.root) return output;
      [[fallthrough]];
    case Op::kAllGather:
      for (const auto& input : inputs) append(output, input, 0, bytes);
      return output;
    case Op::kAllToAll:
      for (int from = 0; from < size; ++from) {
        size_t at = 0;
        for (int to = 0; to < rank; ++to) at += piece(of, from, to);
        append(output, inputs[static_cast<size_t>(from)], at * element_bytes, piece(of, from, rank) * element_bytes);
      }
      return output;
    default:
      return output;
  }
}

/// One rank's memory for cases under way: some private, some in the arena, used in turn.
class Memory {
 public:
  static constexpr size_t kNumPlaces = 8;
  explicit Memory(ShmTransport& transport)
      : shared_(transport.allocate(static_cast<int64_t>(kNumPlaces * 2 * kMostBytes), at::kByte)), private_(kNumPlaces * 2 * kMostBytes) {}
  std::byte* take(bool shared, size_t offset) {
    next_ = (next_ + 1) % (2 * kNumPlaces);
    return (shared ? static_cast<std::byte*>(shared_.data_ptr()) : private_.data()) + next_ * kMostBytes + offset;
  }

 private:
  at::Tensor shared_;
  std::vector<std::byte> private_;
  size_t next_ = 0;
};

/// A case that this rank has started.
struct Started {
  Case of;
  Call call;
  std::vector<std::byte> expected;
};

void start(ShmTransport& transport, Memory& memory, const Case& of, uint64_t sequence, Started& started) {
  const int rank = transport.rank(), size = transport.size();
  std::vector<std::vector<std::byte>> inputs;
  for (int peer = 0; peer < size; ++peer) inputs.push_back(data_of(of, peer, num_given(of, peer, size)));
  const std::vector<std::byte>& mine = inputs[static_cast<size_t>(rank)];
  started.of = of;
  started.expected = expected_of(of, inputs, rank);
  const bool shared = of.placement == Placement::kArena || (of.placement == Placement::kMixed && (rank + of.seed) % 2 == 0);
  // Offsets differ from rank to rank, and from whole cache lines.
  const size_t element_bytes = c10::elementSize(of.type), offset = (of.seed + static_cast<uint64_t>(rank)) % 5 * element_bytes;
  std::byte* const output = memory.take(shared, offset);
  std::byte* input = of.aliasing == Aliasing::kApart ? memory.take(shared, offset + element_bytes) : output;
  if (of.aliasing == Aliasing::kOwnPlace && (of.op == Op::kAllGather || (of.op == Op::kGather && rank == of.root)))
    input = output + static_cast<size_t>(rank) * of.count * element_bytes;
  std::copy(mine.begin(), mine.end(), input);
  Call& call = started.call;
  call = {.op = of.op, .reduction = of.reduction, .type = of.type, .root = of.root, .input = input, .output = output, .count = of.count};
  call.name = of.seed % 2 ? "oracle" : "";
  call.sequence = sequence;
  if (started.expected.empty() && of.aliasing == Aliasing::kApart) call.output = nullptr;
  if (mine.empty() && of.aliasing == Aliasing::kApart) call.input = nullptr;
  if (of.op == Op::kAllToAll && of.uneven)
    for (int peer = 0; peer < size; ++peer) {
      call.send_counts.push_back(piece(of, rank, peer));
      call.receive_counts.push_back(piece(of, peer, rank));
    }
  transport.start(call);
}

void finish(ShmTransport& transport, Started& started) {
  transport.finish(started.call);
  const Case& of = started.of;
  if (started.expected.empty() || std::memcmp(started.call.output, started.expected.data(), started.expected.size()) == 0) return;
  fail(ErrorCode::kFailed, "rank ", transport.rank(), " of ", transport.size(), ": wrong ", name_of(of.op), " of ", of.count, " ", of.type,
       ", ", name_of(of.reduction), ", root ", of.root, ", placement ", static_cast<int>(of.placement), ", aliasing ",
       static_cast<int>(of.aliasing), ", uneven ", of.uneven);
}

/// Up to four calls are under way before the oldest is finished.
void run_cases(ShmTransport& transport, const std::vector<Case>& cases) {
  Memory memory(transport);
  std::deque<Started> under_way;
  uint64_t sequence = 0;
  for (const Case& of : cases) {
    under_way.emplace_back();
    start(transport, memory, of, ++sequence, under_way.back());
    while (under_way.size() > of.seed % 4) {
      finish(transport, under_way.front());
      under_way.pop_front();
    }
  }
  for (Started& started : under_way) finish(transport, started);
}

/// For each operation and type `samples` cases whose other properties are drawn.
std::vector<Case> sampled_cases(int size, int samples) {
  std::vector<Case> cases;
  for (int sample = 0; sample < samples; ++sample)
    for (const Op op : kOps)
      for (const at::ScalarType type : kTypes) {
        const uint64_t seed = mixed(cases.size() * 64 + static_cast<uint64_t>(size));
        auto draw = [&, number = uint64_t{0}](uint64_t below) mutable { return mixed(seed + ++number) % below; };
        Case of{op, type, kReductions[cases.size() % kReductions.size()]};
        while (!makes_sense(of.reduction, type)) of.reduction = kReductions[draw(kReductions.size())];
        const std::vector<size_t> counts = sizes(c10::elementSize(type));
        of.count = counts[draw(counts.size())];
        of.placement = static_cast<Placement>(draw(3));
        of.aliasing = static_cast<Aliasing>(draw(3));
        of.uneven = draw(2) == 1;
        of.root = static_cast<int>(draw(static_cast<uint64_t>(size)));
        of.seed = seed;
        cases.push_back(of);
      }
  return cases;
}

std::vector<Case> all_cases(int size) {
  std::vector<Case> cases;
  for (const Op op : kOps)
    for (const at::ScalarType type : kTypes)
      for (const Reduction reduction : kReductions)
        for (const size_t count : sizes(c10::elementSize(type)))
          for (const Placement placement : {Placement::kPrivate, Placement::kArena, Placement::kMixed})
            for (const Aliasing aliasing : {Aliasing::kApart, Aliasing::kEqual, Aliasing::kOwnPlace})
              for (const bool uneven : {false, true}) {
                const bool reduces = op == Op::kAllReduce || op == Op::kReduce || op == Op::kReduceScatter;
                if (reduces ? !makes_sense(reduction, type) : reduction != Reduction::kSum) continue;
                if (uneven && op != Op::kAllToAll) continue;
                const uint64_t seed = mixed(cases.size());
                cases.push_back(
                    {op, type, reduction, count, placement, aliasing, uneven, static_cast<int>(seed % static_cast<uint64_t>(size)), seed});
              }
  return cases;
}

}  // namespace

TEST_CASE("collectives over shared memory give the reference's bits") {
  const bool full = std::getenv("COHORT_FULL_ORACLE") != nullptr;
  for (const int size : {1, 2, 3, 4, 5, 7, 8}) {
    const std::vector<Case> cases = full ? all_cases(size) : sampled_cases(size, size == 2 ? 6 : 2);
    CHECK_NOTHROW(run_shm_threads(size, [&](ShmTransport& transport) { run_cases(transport, cases); }, kTuning));
  }
}
