#include "cohort/checkpoint/parameter_shard.h"

#include <numeric>

#include "cohort/base/random.h"
#include "cohort/checkpoint/box.h"
#include "tests/support/checkpoint_files.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

/// How one parameter is divided between ranks.
struct Division {
  int dim = 0, num_parts = 1, num_blocks = 1;
  int64_t unit = 1;

  ParameterShard part(const std::vector<int64_t>& shape, int index) const {
    return even_shard(shape, dim, num_parts, index, "weight", num_blocks, unit);
  }
};

/// What part `shard` holds when the whole tensor's elements are `first`, `first` + 1, ...: by the definition of a range, index by index.
std::vector<int32_t> expected_part(const ParameterShard& shard, int32_t first) {
  const std::vector<int64_t> shape = shard.local_shape();
  std::vector<int64_t> index_in_whole;  // of the divided dimension
  for (const SliceRange& range : shard.ranges) {
    for (int64_t i = 0; i < range.count; ++i) index_in_whole.push_back(range.whole + i);
  }
  std::vector<int32_t> values(static_cast<size_t>(checked_num_elements(shape)));
  for (size_t position = 0; position < values.size(); ++position) {
    int64_t rest = static_cast<int64_t>(position), in_whole = 0, stride = 1;
    for (size_t d = shape.size(); d-- > 0; rest /= shape[d], stride *= shard.whole_shape[d]) {
      const int64_t index = rest % shape[d];
      in_whole += stride * (static_cast<int>(d) == shard.dim ? index_in_whole[static_cast<size_t>(index)] : index);
    }
    values[position] = first + static_cast<int32_t>(in_whole);
  }
  return values;
}

/// Rank r of `num_ranks` has [cuts[r], cuts[r + 1]) of a flat array; some have nothing.
std::vector<int64_t> cut_points(int64_t num_elements, int num_ranks, uint64_t seed) {
  std::vector<int64_t> cuts = {0, num_elements};
  for (int i = 1; i < num_ranks; ++i) {
    cuts.push_back(static_cast<int64_t>(random_bits(seed, static_cast<uint64_t>(i)) % static_cast<uint64_t>(num_elements + 1)));
  }
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

/// Writes the tensor "w" with elements 1000, 1001, ...: part by part, each in `num_slices` flat ranges, every slice by a rank of its own.
Checkpoint write(const std::string& folder, int64_t step, const std::vector<int64_t>& shape, const Division& division, int num_slices) {
  CheckpointWriter writer(folder, step, "n");
  writer.begin();
  std::vector<ShardInfo> shards;
  for (int part = 0; part < division.num_parts; ++part) {
    const ParameterShard shard = division.part(shape, part);
    const std::vector<int32_t> values = expected_part(shard, 1000);
    const std::vector<int64_t> cuts = cut_points(std::ssize(values), num_slices, static_cast<uint64_t>(step * 10 + part));
    for (size_t slice = 0; slice + 1 < cuts.size(); ++slice) {
      std::vector<std::vector<char>> scratch;
      const auto pieces =
          pieces_of_shard("w", DType::kI32, shard, cuts[slice], cuts[slice + 1] - cuts[slice], values.data() + cuts[slice], scratch);
      shards.push_back(writer.write_shard(static_cast<int>(shards.size()), pieces));
    }
  }
  return Checkpoint::open(writer.commit(shards, Json::object()));
}

/// Every part of `division`, read in `num_slices` flat ranges, holds what it should and nothing around a range is touched.
void check_reads(const Checkpoint& checkpoint, const std::vector<int64_t>& shape, const Division& division, int num_slices) {
  for (int part = 0; part < division.num_parts; ++part) {
    const ParameterShard shard = division.part(shape, part);
    const std::vector<int32_t> expected = expected_part(shard, 1000);
    const std::vector<int64_t> cuts = cut_points(std::ssize(expected), num_slices, static_cast<uint64_t>(part) + 99);
    for (size_t slice = 0; slice + 1 < cuts.size(); ++slice) {
      const int64_t begin = cuts[slice], count = cuts[slice + 1] - begin;
      std::vector<int32_t> got(static_cast<size_t>(count) + 2, -1);
      read_shard(checkpoint, "w", shard, begin, count, got.data() + 1);
      REQUIRE(got.front() == -1);
      REQUIRE(got.back() == -1);
      REQUIRE(std::equal(got.begin() + 1, got.end() - 1, expected.begin() + begin));
    }
  }
}

struct Case {
  std::vector<int64_t> shape;
  std::vector<Division> divisions;
};
const std::vector<Case> kCases = {
    {{12}, {{0, 1}, {0, 2}, {0, 4}, {0, 2, 3}, {0, 2, 3, 2}, {0, 3, 2, 2}, {0, 12}}},
    {{12, 5}, {{0, 1}, {0, 3}, {0, 2, 3}, {0, 2, 1, 3}, {1, 1}, {1, 5}}},
    {{5, 12}, {{1, 4}, {1, 2, 3}, {1, 2, 2, 3}, {0, 5}, {0, 1}}},
    {{3, 8, 1, 2}, {{1, 2}, {1, 4, 2}, {3, 2}, {0, 3}, {2, 1}}},
    {{2, 3, 6}, {{2, 3}, {2, 1}, {2, 3, 2}, {0, 2}, {1, 3}}},
    {{0, 4}, {{0, 2}, {1, 2}, {1, 2, 2}}},
    {{1}, {{0, 1}}},
};

}  // namespace

TEST_CASE("parameter shard: parts are equal, hold each index once and keep units and blocks together") {
  const ParameterShard heads = even_shard({24, 8}, 0, 2, 1, "qkv.weight", 3, 4);
  CHECK(heads.ranges == std::vector<SliceRange>{{0, 4, 4}, {4, 12, 4}, {8, 20, 4}});
  CHECK(heads.local_shape() == std::vector<int64_t>{12, 8});
  CHECK(even_shard({6, 10}, 1, 5, 3, "w").ranges == std::vector<SliceRange>{{0, 6, 2}});
  CHECK(even_shard({24}, 0, 1, 0, "w", 3).ranges == std::vector<SliceRange>{{0, 0, 24}});
  CHECK(even_shard({0, 3}, 0, 2, 1, "w").local_shape() == std::vector<int64_t>{0, 3});
  for (const Case& c : kCases) {
    for (const Division& division : c.divisions) {
      std::vector<int> seen(static_cast<size_t>(c.shape[static_cast<size_t>(division.dim)]), 0);
      for (int part = 0; part < division.num_parts; ++part) {
        const ParameterShard shard = division.part(c.shape, part);
        CHECK(shard.local_shape()[static_cast<size_t>(division.dim)] * division.num_parts == std::ssize(seen));
        for (const SliceRange& range : shard.ranges) {
          for (int64_t i = 0; i < range.count; ++i) ++seen[static_cast<size_t>(range.whole + i)];
        }
      }
      CHECK(seen == std::vector<int>(seen.size(), 1));
    }
  }
}

TEST_CASE("parameter shard: what ranks wrote as slices of their parts, others read under any other division") {
  MemoryFolder space;
  int64_t step = 0;
  for (const Case& c : kCases) {
    for (const Division& writers : c.divisions) {
      const int num_slices = 1 + static_cast<int>(step % 4);
      const Checkpoint checkpoint = write(space.path(), ++step, c.shape, writers, num_slices);
      REQUIRE(checkpoint.shape("w") == c.shape);
      std::vector<int32_t> whole(static_cast<size_t>(checked_num_elements(c.shape))), expected(whole.size());
      std::iota(expected.begin(), expected.end(), 1000);
      checkpoint.read_whole("w", whole.data());
      REQUIRE(whole == expected);
      for (const Division& readers : c.divisions) check_reads(checkpoint, c.shape, readers, 1 + static_cast<int>(step % 3));
    }
  }
}

TEST_CASE("parameter shard: only rows that are not contiguous are copied") {
  const std::vector<int32_t> values(60, 7);
  std::vector<std::vector<char>> scratch;
  const auto pieces_of = [&](const ParameterShard& shard) {
    return pieces_of_shard("w", DType::kI32, shard, 0, 60, values.data(), scratch);
  };
  const auto blocks = pieces_of(even_shard({24, 5}, 0, 2, 0, "w", 3));  // three runs of rows
  REQUIRE(blocks.size() == 3);
  CHECK(blocks[2].view.data == values.data() + 40);
  CHECK(blocks[2].begin == std::vector<int64_t>{16, 0});
  const auto columns = pieces_of(even_shard({5, 24}, 1, 2, 1, "w"));  // one box, whose rows are the part's
  REQUIRE(columns.size() == 1);
  CHECK(columns[0].view.data == values.data());
  CHECK(scratch.empty());
  CHECK(pieces_of(even_shard({5, 24}, 1, 2, 1, "w", 3)).size() == 3);
  CHECK(scratch.size() == 3);
}

TEST_CASE("parameter shard: what cannot be is refused with its name and numbers") {
  CHECK(error_or_none([] { even_shard({10, 4}, 0, 3, 0, "fc.weight"); }) ==
        "fc.weight of shape [10, 4] cannot be divided in 3 equal parts: dimension 0 has 10 indices");
  CHECK(error_or_none([] { even_shard({24}, 0, 4, 0, "qkv.bias", 3, 4); }) ==
        "qkv.bias of shape [24] cannot be divided in 4 equal parts: dimension 0 has 24 indices in 3 blocks, of which 4 stay together");
  CHECK(contains(error_or_none([] { even_shard({10}, 0, 2, 0, "w", 3); }), "in 3 blocks"));
  CHECK(contains(error_or_none([] { even_shard({}, 0, 2, 0, "w"); }), "tensor w of shape [] has no dimension 0"));
  CHECK(contains(error_or_none([] { even_shard({4}, 1, 2, 0, "w"); }), "has no dimension 1"));
  CHECK(contains(error_or_none([] { even_shard({4}, -1, 2, 0, "w"); }), "has no dimension -1"));
  CHECK(contains(error_or_none([] { even_shard({4}, 0, 2, 2, "w"); }), "no part 2 of 2"));
  CHECK(contains(error_or_none([] { even_shard({4}, 0, 0, 0, "w"); }), "no part 0 of 0"));
  CHECK(contains(error_or_none([] { even_shard({INT64_MAX, 4}, 0, 1, 0, "w"); }), "no dimension 0 that could be divided"));

  const ParameterShard shard = even_shard({6, 4}, 0, 2, 1, "w");
  const std::vector<int32_t> values(24, 0);
  std::vector<std::vector<char>> scratch;
  const auto pieces = [&](const ParameterShard& part, int64_t begin, int64_t count) {
    return error_or_none([&] { pieces_of_shard("w", DType::kI32, part, begin, count, values.data(), scratch); });
  };
  CHECK(pieces(shard, 10, 3) == "tensor w: elements 10 + 3 leave the part of shape [3, 4]");
  CHECK(contains(pieces(shard, -1, 3), "elements -1 + 3 leave"));
  CHECK(contains(pieces(shard, 1, INT64_MAX), "leave the part"));
  CHECK(contains(pieces({{6, 4}, 0, {{0, 4, 3}}}, 0, 1), "[4, 4 + 3) of dimension 0 does not lie in it"));
  CHECK(contains(pieces({{6, 4}, 0, {{0, 0, 2}, {3, 3, 1}}}, 0, 1), "indices from 3 on"));  // a gap

  MemoryFolder space;
  const Checkpoint checkpoint = write(space.path(), 1, {6, 4}, {0, 2}, 1);
  std::vector<int32_t> got(12);
  CHECK(contains(error_or_none([&] { read_shard(checkpoint, "w", even_shard({8, 4}, 0, 2, 0, "w"), 0, 1, got.data()); }),
                 "tensor w has shape [6, 4], but a part of [8, 4] is wanted"));
  CHECK(contains(error_or_none([&] { read_shard(checkpoint, "v", shard, 0, 1, got.data()); }), "holds no tensor \"v\""));
  CHECK(contains(error_or_none([&] { read_shard(checkpoint, "w", shard, 12, 1, got.data()); }), "leave the part"));
}
