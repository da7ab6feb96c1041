// Parameters of awkward kinds and types under DataParallel.
#include "cohort/base/fail.h"
#include "tests/support/torture_models.h"

namespace cohort {
namespace {

using namespace torture;  // NOLINT

/// `steps` of `loss(module, rows)` with SGD on both models; they are the same at each.
template <typename Module, typename Loss>
void train_both(Group& group, Module mine, Module whole, const Loss& loss, const DataParallelOptions& options = small_buckets(),
                at::IntArrayRef shape = {12, 6}, int steps = 3) {
  DataParallel parallel(*mine, group, options);
  torch::optim::SGD a(mine->parameters(), 0.125), b(whole->parameters(), 0.125);
  for (int step = 0; step < steps; ++step) {
    a.zero_grad(), b.zero_grad();
    const Tensor x = draw(shape, static_cast<uint64_t>(50 + step));
    loss(mine, rows_of(group, x)).backward();
    loss(whole, x).backward();
    expect_same(*mine, *whole, true, concat("step ", step));
    a.step(), b.step();
    expect_same(*mine, *whole, false, concat("step ", step));
  }
}

/// A loss of exact sums, in any type.
struct ExactImpl : nn::Module {
  Tensor weight;
  explicit ExactImpl(at::ScalarType type) { weight = register_parameter("weight", draw_whole({4, 5}, 3, type)); }
  Tensor loss(const Tensor& x) { return x.to(weight.scalar_type()).matmul(weight).sum(); }
};
TORCH_MODULE(Exact);

void train_exact(Group& group, at::ScalarType type) {
  Exact mine(type), whole(type);
  DataParallel parallel(*mine, group, {.mean = GradientMean::kSum});
  for (int step = 0; step < 3; ++step) {
    mine->zero_grad(), whole->zero_grad();
    const Tensor x = draw_whole({4, 4}, static_cast<uint64_t>(step));
    mine->loss(rows_of(group, x)).backward();
    whole->loss(x).backward();
    expect(at::equal(mine->weight.grad(), whole->weight.grad()), "gradient");
  }
}

struct OddImpl : nn::Module {
  nn::Linear used{nullptr}, never{nullptr}, sometimes{nullptr};
  Tensor scalar, empty, floats;
  OddImpl() {
    used = register_module("used", nn::Linear(6, 6));
    never = register_module("never", nn::Linear(3, 3));
    sometimes = register_module("sometimes", nn::Linear(6, 6));
    scalar = register_parameter("scalar", at::ones({}));
    empty = register_parameter("empty", at::ones({0, 3}));
    to(at::kDouble);
    floats = register_parameter("floats", at::ones({6}, at::kFloat));
    fill(*this, 9);
  }
  Tensor forward(const Tensor& x, bool with_sometimes) {
    Tensor h = used((used(x) * scalar).relu_()) * floats.to(at::kDouble) + empty.sum();
    if (with_sometimes) h = h + sometimes(h);
    return h;
  }
};
TORCH_MODULE(Odd);

struct TiedImpl : nn::Module {
  nn::Embedding table{nullptr};
  explicit TiedImpl(bool sparse) {
    table = register_module("table", nn::Embedding(nn::EmbeddingOptions(9, 4).sparse(sparse)));
    to(at::kDouble);
    fill(*this, 4);
  }
};
TORCH_MODULE(Tied);

Tensor ids_of(const Tensor& x) { return x.mul(3).round().abs().clamp(0, 8).to(at::kLong); }

std::vector<Case> cases_of_kinds() {
  return {
      {"another shape of as many elements (set_data)",
       [](Group& group) {
         for (const GradientMean mean : {GradientMean::kSum, GradientMean::kRanks}) {
           Exact mine(at::kFloat), whole(at::kFloat);
           DataParallel parallel(*mine, group, {.mean = mean});
           for (int step = 0; step < 4; ++step) {
             mine->zero_grad(), whole->zero_grad();
             if (step == 2)
               for (Exact* net : {&mine, &whole}) (*net)->weight.set_data(draw_whole({5, 4}, 6));
             const Tensor x = draw_whole({4, step < 2 ? 4 : 5}, static_cast<uint64_t>(step));
             const double factor = mean == GradientMean::kSum ? 1 : group.size();
             mine->loss(rows_of(group, x)).mul(factor).backward();
             whole->loss(x).backward();
             expect(at::equal(mine->weight.grad(), whole->weight.grad()), "gradient");
           }
         }
       }},
      {"half", [](Group& group) { train_exact(group, at::kHalf); }},
      {"bfloat16", [](Group& group) { train_exact(group, at::kBFloat16); }},
      {"float, bit by bit", [](Group& group) { train_exact(group, at::kFloat); }},
      {"complex",
       [](Group& group) {
         Exact mine(at::kComplexFloat), whole(at::kComplexFloat);
         DataParallel parallel(*mine, group, {.mean = GradientMean::kSum});
         const Tensor x = draw_whole({4, 4}, 1);
         at::real(mine->loss(rows_of(group, x))).backward();
         at::real(whole->loss(x)).backward();
         expect(at::equal(mine->weight.grad(), whole->weight.grad()), "gradient");
       }},
      {"unused, empty, scalar, two types, used twice, on one rank alone",
       [](Group& group) {
         Odd mine, whole;
         DataParallel parallel(*mine, group, small_buckets(GradientMean::kSum));
         for (int step = 0; step < 5; ++step) {
           mine->zero_grad(), whole->zero_grad();
           Tensor loss;
           for (int rank = 0; rank < group.size(); ++rank) {
             const Tensor x = draw({4, 6}, static_cast<uint64_t>(10 * step + rank));
             const bool with = step % 3 == 0 || (step % 3 == 1 && rank == 0);
             const Tensor part = whole->forward(x, with).square().sum();
             loss = loss.defined() ? loss + part : part;
             if (rank == group.rank()) mine->forward(x, with).square().sum().backward();
           }
           loss.backward();
           for (const auto& item : whole->named_parameters())
             expect_equal(mine->named_parameters()[item.key()].grad(), item.value().grad(), concat("step ", step, " ", item.key()), 1e-6);
         }
       },
       "", 3},
      {"sparse gradients",
       [](Group& group) {
         for (const bool sparse : {true, false})
           train_both(group, Tied(sparse), Tied(false), [](Tied& net, const Tensor& x) { return net->table(ids_of(x)).square().mean(); });
       }},
      {"tied weights",
       [](Group& group) {
         train_both(group, Tied(false), Tied(false),
                    [](Tied& net, const Tensor& x) { return net->table(ids_of(x)).tanh().matmul(net->table->weight.t()).square().mean(); });
       }},
      {"in place operations and channels_last input of a convolution",
       [](Group& group) {
         const auto make = [] {
           nn::Sequential net(nn::Conv2d(2, 4, 3), nn::ReLU(nn::ReLUOptions(true)), nn::Conv2d(4, 2, 3));
           net->to(at::kDouble), fill(*net, 2);
           return net;
         };
         train_both(group, make(), make(),
                    [](nn::Sequential& net, const Tensor& x) {
                      return net->forward(x.contiguous(at::MemoryFormat::ChannelsLast)).square().mean();
                    },
                    small_buckets(), {6, 2, 7, 7});
       }},
      {"parameter that is not contiguous",
       [](Group& group) {
         nn::Linear net(4, 3);
         net->weight.set_data(at::ones({4, 3}).t());
         DataParallel parallel(*net, group);
       },
       "is not contiguous"},
      {"parameter that becomes not contiguous", with_pair([](WrappedPair& pair) {
         pair.step(0);
         pair.each([](Net& net) { net->head->weight.set_data(draw({8, 3}, 5).t()); });
         pair.step(1), pair.step(2);
       })},
      {"default type double",
       [](Group& group) {
         if (group.rank() == 0) torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
         group.barrier();
         WrappedPair pair(group);
         pair.step(0), pair.step(1);
         group.barrier();
         if (group.rank() == 0) torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
         group.barrier();
       }},
      {"nothing is trained",
       [](Group& group) {
         Pair pair(group);
         pair.each([](Net& net) { net->set_trained(*net, false); });
         DataParallel parallel(*pair.mine, group);
         parallel.set_control(0, 2);
         parallel.exchange_without_backward();
         expect(parallel.control_sum(0) == 2 * group.size(), "control sum");
         pair.check("nothing");
       }},
  };
}

TEST_CASE("parameters of awkward kinds") { run_cases("kinds of parameters", cases_of_kinds()); }

}  // namespace
}  // namespace cohort
