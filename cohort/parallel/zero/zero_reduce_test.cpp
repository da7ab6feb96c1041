#include "cohort/parallel/zero/zero_reduce.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <string>

#include "cohort/base/fail.h"
#include "cohort/parallel/common/parameters.h"
#include "tests/support/thread_ranks.h"

namespace cohort {
namespace {

/// Parameters a.w (20), b.w (7), c.w (33), one unit each for small unit_bytes.
struct Fixture {
  std::vector<NamedTensor> parameters;
  std::vector<ZeroUnit> units;
  UnitMemory memory{1 << 20};

  explicit Fixture(int num_ranks) {
    for (const auto& [name, count] : {std::pair{"a.w", 20}, {"b.w", 7}, {"c.w", 33}})
      parameters.push_back({name, at::zeros({count}).set_requires_grad(true)});
    units = plan_units(parameters, 1, num_ranks);
  }
  void set_gradient(int parameter, double value) {
    const at::Tensor& tensor = parameters[static_cast<size_t>(parameter)].tensor;
    tensor.mutable_grad() = at::full(tensor.sizes(), value);
  }
};

/// Sum of a rank's slice over the elements of the parameter.
double slice_sum(const ZeroReduce& reduce, const Fixture& f, size_t unit, int rank) {
  double sum = 0;
  for (const SlicePiece& piece : slice_pieces(f.units[unit], f.parameters, rank))
    sum += reduce.slice(unit).narrow(0, piece.slice_offset, piece.count).sum().item<double>();
  return sum;
}

TEST_CASE("slices hold the sum over ranks, passes add up, what nobody has is not used") {
  for (const bool keep_whole : {false, true}) {
    run_thread_ranks(3, [&](Group& group) {
      Fixture f(group.size());
      ZeroReduce reduce(group, f.parameters, f.units, f.memory, keep_whole);
      const int num_passes = keep_whole ? 1 : 2;
      for (int pass = 0; pass < num_passes; ++pass) {
        f.set_gradient(2, 1 + group.rank());
        reduce.on_gradient(2);
        if (group.rank() == 1) {
          f.set_gradient(0, 10);
          reduce.on_gradient(0);
        }
        reduce.start_up_to(reduce.num_ready());
        reduce.start_up_to(reduce.num_units());
        if (reduce.used() != std::vector<uint8_t>{group.rank() == 1, 0, 1}) FAIL("used");
        reduce.finish_pass();
      }
      std::vector<double> expected = {10.0 * 20, 0, 6.0 * 33};
      at::Tensor mine = at::zeros({3}, at::kDouble);
      for (int64_t unit = 0; unit < 3; ++unit) mine[unit].fill_(slice_sum(reduce, f, static_cast<size_t>(unit), group.rank()));
      group.all_reduce_sum(mine, "sums");
      for (int64_t unit = 0; unit < 3; ++unit)
        if (mine[unit].item<double>() != num_passes * expected[static_cast<size_t>(unit)]) FAIL(concat("unit ", unit));
      if (f.parameters[2].tensor.grad().defined() != keep_whole) FAIL(".grad");
      if (f.memory.lent_bytes() != 0) FAIL("memory is left");
      reduce.clear();
      if (f.parameters[2].tensor.grad().defined()) FAIL("zero_grad");
    });
  }
}

TEST_CASE("the order is that of rank 0's first pass, and waits for gaps") {
  run_thread_ranks(2, [](Group& group) {
    Fixture f(group.size());
    ZeroReduce reduce(group, f.parameters, f.units, f.memory, false);
    const auto arrive = [&](int parameter) {
      f.set_gradient(parameter, 1);
      reduce.on_gradient(parameter);
      return reduce.num_ready();
    };
    // In the first pass the last unit is sent first.
    const std::vector<int> first = group.rank() == 0 ? std::vector<int>{1, 0, 2} : std::vector<int>{2, 1, 0};
    std::vector<int64_t> ready;
    for (const int parameter : first) ready.push_back(arrive(parameter));
    if (ready != (group.rank() == 0 ? std::vector<int64_t>{0, 0, 3} : std::vector<int64_t>{1, 2, 3})) FAIL("ready in the first pass");
    reduce.start_up_to(3);
    reduce.finish_pass();
    if (arrive(0) != 0 || arrive(1) != 2 || arrive(2) != 3) FAIL("ready in the second pass: the order should be 1, 0, 2");
    reduce.start_up_to(1);
    std::string text;
    try {
      reduce.on_gradient(1);
    } catch (const Error& error) {
      text = error.what();
    }
    if (text.find("b.w got a second gradient") == std::string::npos) FAIL(text);
    reduce.start_up_to(3);
    reduce.finish_pass();
  });
}

}  // namespace
}  // namespace cohort
