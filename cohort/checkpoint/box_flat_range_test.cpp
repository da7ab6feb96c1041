#include "cohort/checkpoint/box.h"

#include <numeric>

#include "cohort/base/random.h"
#include "tests/support/checkpoint_files.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

/// Every shape of 0 to 4 dimensions with sizes 0 to 3.
std::vector<std::vector<int64_t>> small_shapes() {
  std::vector<std::vector<int64_t>> shapes = {{}};
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (shapes[i].size() == 4) break;
    for (int64_t size = 0; size <= 3; ++size) {
      shapes.push_back(shapes[i]);
      shapes.back().push_back(size);
    }
  }
  return shapes;
}

/// Linear positions, in the whole tensor, of a box's elements in its own order.
std::vector<int64_t> positions(const Box& box, const std::vector<int64_t>& whole) {
  std::vector<int64_t> all(static_cast<size_t>(checked_num_elements(whole))), out(static_cast<size_t>(box.num_elements()));
  std::iota(all.begin(), all.end(), 0);
  copy_box(box, {all.data(), {std::vector<int64_t>(whole.size(), 0), whole}}, {out.data(), box}, 8);
  return out;
}

/// `count` places at which a tensor is cut for count + 1 ranks, in order; some ranks get nothing.
std::vector<int64_t> cut_points(int64_t num_elements, size_t count, uint64_t seed) {
  std::vector<int64_t> cuts = {0, num_elements};
  for (size_t i = 0; i < count; ++i) {
    cuts.push_back(static_cast<int64_t>(random_bits(seed, i) % static_cast<uint64_t>(num_elements + 1)));
  }
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

}  // namespace

TEST_CASE("flat range: every range of every small shape is the boxes in order, at most 2N - 1, each valid and not empty") {
  for (const std::vector<int64_t>& shape : small_shapes()) {
    const int64_t num_elements = checked_num_elements(shape);
    for (int64_t begin = 0; begin <= num_elements; ++begin) {
      for (int64_t end = begin; end <= num_elements; ++end) {
        const std::vector<Box> boxes = boxes_of_range(shape, begin, end);
        REQUIRE(boxes.size() <= std::max<size_t>(1, 2 * shape.size() - (shape.empty() ? 0 : 1)));
        int64_t at = begin;
        bool in_order = true;
        for (const Box& box : boxes) {
          REQUIRE(box_error(box, shape).empty());
          REQUIRE(box.num_elements() > 0);
          for (const int64_t position : positions(box, shape)) in_order = in_order && position == at++;
        }
        REQUIRE(in_order);
        REQUIRE(at == end);
      }
    }
  }
}

TEST_CASE("flat range: known answers, large shapes, and ranges that leave the tensor") {
  const std::vector<Box> boxes = boxes_of_range({4, 3, 5}, 7, 52);
  REQUIRE(boxes.size() == 5);
  CHECK((boxes[0].begin == std::vector<int64_t>{0, 1, 2} && boxes[0].shape == std::vector<int64_t>{1, 1, 3}));
  CHECK((boxes[1].begin == std::vector<int64_t>{0, 2, 0} && boxes[1].shape == std::vector<int64_t>{1, 1, 5}));
  CHECK((boxes[2].begin == std::vector<int64_t>{1, 0, 0} && boxes[2].shape == std::vector<int64_t>{2, 3, 5}));
  CHECK((boxes[3].begin == std::vector<int64_t>{3, 0, 0} && boxes[3].shape == std::vector<int64_t>{1, 1, 5}));
  CHECK((boxes[4].begin == std::vector<int64_t>{3, 1, 0} && boxes[4].shape == std::vector<int64_t>{1, 1, 2}));
  CHECK(boxes_of_range({}, 0, 1).size() == 1);
  CHECK(boxes_of_range({}, 1, 1).empty());
  CHECK(boxes_of_range({INT64_MAX}, 1, INT64_MAX)[0].shape[0] == INT64_MAX - 1);
  CHECK(boxes_of_range({1 << 20, 1 << 20, 1 << 20}, 1, (INT64_C(1) << 60) - 1).size() == 5);
  CHECK(error_or_none([] { boxes_of_range({2, 3}, 2, 7); }) == "elements 2 to 7 leave the tensor of shape [2, 3]");
  CHECK(contains(error_or_none([] { boxes_of_range({2, 3}, -1, 2); }), "leave the tensor"));
  CHECK(contains(error_or_none([] { boxes_of_range({2, 3}, 3, 2); }), "leave the tensor"));
  CHECK(contains(error_or_none([] { boxes_of_range({INT64_MAX, 2}, 0, 0); }), "leave the tensor"));
}

TEST_CASE("flat range: what p ranks wrote with any cuts, q ranks read with any others") {
  MemoryFolder space;
  const std::vector<std::vector<int64_t>> shapes = {{}, {1}, {13}, {0, 3}, {5, 7}, {4, 1, 6}, {2, 3, 2, 3}};
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const size_t num_writers = 1 + seed % 4, num_readers = 1 + seed / 4 % 5;
    std::vector<std::vector<TensorPiece>> ranks(num_writers);
    std::vector<std::vector<double>> values;
    for (size_t i = 0; i < shapes.size(); ++i) {
      values.emplace_back(static_cast<size_t>(checked_num_elements(shapes[i])));
      std::iota(values.back().begin(), values.back().end(), 100.0 * static_cast<double>(i) + 1e4 * static_cast<double>(seed));
      const std::vector<int64_t> cuts = cut_points(std::ssize(values.back()), num_writers - 1, random_bits(seed, i, 1));
      for (size_t rank = 0; rank < num_writers; ++rank) {
        const TensorView view{"t" + std::to_string(i), DType::kF64, shapes[i], values.back().data() + cuts[rank]};
        for (TensorPiece& piece : pieces_of_range(view, cuts[rank], cuts[rank + 1])) ranks[rank].push_back(std::move(piece));
      }
    }
    CheckpointWriter writer(space.path(), static_cast<int64_t>(seed), "n");
    writer.begin();
    std::vector<ShardInfo> shards;
    for (size_t rank = 0; rank < num_writers; ++rank) shards.push_back(writer.write_shard(static_cast<int>(rank), ranks[rank]));
    const Checkpoint checkpoint = Checkpoint::open(writer.commit(shards, Json::object()));
    for (size_t i = 0; i < shapes.size(); ++i) {
      const std::string name = "t" + std::to_string(i);
      REQUIRE(checkpoint.shape(name) == shapes[i]);
      const std::vector<int64_t> cuts = cut_points(std::ssize(values[i]), num_readers - 1, random_bits(seed, i, 2));
      for (size_t rank = 0; rank < num_readers; ++rank) {
        std::vector<double> got(static_cast<size_t>(cuts[rank + 1] - cuts[rank]), -1);
        checkpoint.read_range(name, cuts[rank], cuts[rank + 1], got.data());
        REQUIRE(got == std::vector<double>(values[i].begin() + cuts[rank], values[i].begin() + cuts[rank + 1]));
      }
    }
    if (seed == 0) {
      CHECK(contains(error_or_none([&] { checkpoint.read_range("t2", 5, 14, nullptr); }),
                     "tensor \"t2\": elements 5 to 14 leave the tensor"));
      CHECK(contains(error_or_none([&] { checkpoint.read_range("none", 0, 0, nullptr); }), "holds no tensor \"none\""));
    }
  }
}
