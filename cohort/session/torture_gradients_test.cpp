// Gradients that a program keeps, adds up, differentiates or makes in backwards of backwards, and steps that an exception ends.
#include "cohort/base/fail.h"
#include "tests/support/torture_models.h"

namespace cohort {
namespace {

using namespace torture;  // NOLINT

Tensor second_loss(Net& net, const Tensor& x) { return net->forward(x).abs().mean() * 3; }

enum class Kept { kHandle, kDetached, kView };

/// PCGrad and its like: the gradients of one loss are kept while those of the next are made.
void keep_gradients(Group& group, Kept how, bool set_to_none) {
  WrappedPair pair(group);
  for (int step = 0; step < 4; ++step) {
    std::vector<Tensor> kept, expected;
    pair.zero_grad(set_to_none);
    pair.backward(step);
    for (const Tensor& parameter : pair.mine->parameters()) {
      const Tensor& gradient = parameter.grad();
      kept.push_back(how == Kept::kHandle ? gradient : how == Kept::kDetached ? gradient.detach() : gradient.view({-1}));
    }
    for (const Tensor& parameter : pair.whole->parameters()) expected.push_back(parameter.grad().clone().view_as(kept[expected.size()]));
    pair.zero_grad(/*set_to_none=*/true);
    const Tensor x = inputs(step);
    second_loss(pair.mine, rows_of(group, x)).backward(), second_loss(pair.whole, x).backward();
    pair.check("the second loss");
    for (size_t i = 0; i < kept.size(); ++i) expect_equal(kept[i], expected[i], concat("step ", step, ", kept gradient ", i));
    pair.apply();
  }
}

/// Without a holder gradients lie where they lay, so that no step copies them.
void look_for_copies(Group& group, bool set_to_none) {
  WrappedPair pair(group);
  std::vector<const void*> before;
  for (int step = 0; step < 20; ++step) {
    pair.step(step, set_to_none);
    std::vector<const void*> now;
    for (const Tensor& parameter : pair.mine->parameters()) now.push_back(parameter.grad().data_ptr());
    expect(step < 3 || now == before, concat("step ", step, ": a gradient has moved"));
    before = now;
  }
}

double share_of_loss(GradientMean mean, const Group& group) { return mean == GradientMean::kSum ? 1.0 / group.size() : 1; }

/// Three backwards that add up, with what `between` does between them.
template <typename Between>
void add_up(Group& group, GradientMean mean, const Between& between) {
  WrappedPair pair(group, small_buckets(mean));
  pair.parallel.set_local_samples(4);
  const double share = share_of_loss(mean, group);
  for (int step = 0; step < 4; ++step) {
    pair.zero_grad(step % 2 == 0);
    for (int part = 0; part < 3; ++part) {
      const Tensor x = inputs(3 * step + part);
      (loss_of(pair.mine, rows_of(group, x)) * share).backward();
      loss_of(pair.whole, x).backward();
      pair.check(concat("step ", step, ", part ", part));
      between(pair, part);
    }
    pair.apply();
  }
}

void parts_of_the_model(Group& group, GradientMean mean) {
  WrappedPair pair(group, small_buckets(mean));
  pair.parallel.set_local_samples(4);
  const double share = share_of_loss(mean, group);
  const auto lower = [](Net& net, const Tensor& x) { return net->first(x).tanh().square().mean(); };
  for (int step = 0; step < 4; ++step) {
    pair.zero_grad(step % 2 == 0);
    const Tensor x = inputs(step), mine = rows_of(group, x);
    (lower(pair.mine, mine) * share).backward(), lower(pair.whole, x).backward();
    pair.check("lower part");
    (loss_of(pair.mine, mine) * share).backward(), loss_of(pair.whole, x).backward();
    pair.check("both parts");
    (lower(pair.mine, mine) * share).backward(), lower(pair.whole, x).backward();
    pair.check("lower part again");
    pair.apply();
  }
}

void nested_micro_steps(Group& group, GradientMean mean) {
  WrappedPair pair(group, small_buckets(mean));
  pair.parallel.set_local_samples(4);
  const double share = share_of_loss(mean, group);
  const auto both = [&](int step) {
    const Tensor x = inputs(step);
    (loss_of(pair.mine, rows_of(group, x)) * share).backward(), loss_of(pair.whole, x).backward();
  };
  for (int step = 0; step < 4; ++step) {
    if (step != 2) pair.zero_grad(step % 2 == 0);  // Once what was exchanged stays, and more comes on top.
    {
      const NoSync outer(pair.parallel);
      both(10 * step);
      {
        const NoSync inner(pair.parallel);
        both(10 * step + 1);
      }
      both(10 * step + 2);
    }
    if (step == 3) pair.parallel.exchange_without_backward();
    else both(10 * step + 3);
    pair.check(concat("step ", step));
    pair.apply();
  }
}

/// Runs its function again in backward(), and a backward() of that.
struct Again : torch::autograd::Function<Again> {
  using Body = std::function<Tensor(const Tensor&)>;
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Body* body) {
    context->save_for_backward({x});
    context->saved_data["body"] = reinterpret_cast<int64_t>(body);
    at::NoGradGuard no_grad;
    return (*body)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, const torch::autograd::variable_list& above) {
    const auto* const body = reinterpret_cast<const Body*>(context->saved_data["body"].toInt());
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    at::AutoGradMode grad(true);
    torch::autograd::backward({(*body)(x)}, {above[0]});
    return {x.grad(), Tensor()};
  }
};

void recompute_in_backward(Group& group, bool nested, bool used_outside, GradientMean mean = GradientMean::kRanks) {
  WrappedPair pair(group, small_buckets(mean));
  pair.parallel.set_local_samples(4);
  for (int step = 0; step < 4; ++step) {
    pair.zero_grad();
    const Tensor x = inputs(step);
    for (Net* net : {&pair.mine, &pair.whole}) {
      Tensor h = ((*net)->first)(net == &pair.mine ? rows_of(group, x) : x);
      const Again::Body inner = [&](const Tensor& t) { return (*net)->second(t).tanh(); };
      const Again::Body outer = [&](const Tensor& t) { return (*net)->head(nested ? Again::apply(t, &inner) : inner(t)); };
      const Again::Body plain = [&](const Tensor& t) { return (*net)->head((*net)->second(t).tanh()); };
      Tensor out = net == &pair.mine ? Again::apply(h, &outer) : plain(h);
      if (used_outside) out = out + (*net)->head(h);
      out.square().mean().backward();
    }
    pair.check(concat("step ", step));
    pair.apply();
  }
}

void gradient_penalty(Group& group, bool through_grad) {
  WrappedPair pair(group);
  const auto loss = [&](Net& net, const Tensor& rows) {
    const Tensor x = rows.clone().requires_grad_(), out = net->forward(x);
    const Tensor slope = torch::autograd::grad({out.sum()}, {x}, {}, true, true)[0];
    return out.square().mean() + slope.square().sum(1).mean();
  };
  for (int step = 0; step < 3; ++step) {
    pair.zero_grad();
    const Tensor x = inputs(step);
    if (through_grad) {
      must_fail("backward() with create_graph of", [&] { loss_of(pair.mine, rows_of(group, x)).backward({}, std::nullopt, true); });
      pair.parallel.abandon_step();
      pair.zero_grad();
    }
    loss(pair.mine, rows_of(group, x)).backward(), loss(pair.whole, x).backward();
    pair.check(concat("step ", step));
    pair.apply();
  }
}

enum class Place { kNone, kForward, kBefore, kMiddle };

/// Step 2 fails, on `failing` ranks, in a place for each; the steps after it are those of one process that never made it.
void fail_once(Group& group, Place place, bool on_all, bool says_so, int bad_step = 2) {
  WrappedPair pair(group);
  for (int step = 0; step < 5; ++step) {
    if (step != bad_step) {
      pair.step(step);
      continue;
    }
    pair.zero_grad();
    const bool fails = on_all || group.rank() == 1;
    const auto throwing = [](const Tensor&) -> Tensor { throw std::runtime_error("the program's own"); };
    must_fail(fails ? "the program's own" : "rank 1 left this step", [&] {
      if (fails && place == Place::kForward) throw std::runtime_error("the program's own");
      const Tensor h = pair.mine->second(pair.mine->first(rows_of(group, inputs(step))).tanh()), out = pair.mine->head(h);
      if (fails && place == Place::kBefore) out.register_hook(throwing);
      if (fails && place == Place::kMiddle) h.register_hook(throwing);
      out.square().mean().backward();
    });
    if (says_so) pair.parallel.abandon_step();
  }
}

/// Ranks in different places: rank 0 in the middle, rank 1 in forward.
void fail_in_other_places(Group& group) {
  WrappedPair pair(group);
  pair.step(0);
  must_fail("the program's own", [&] {
    const Tensor h = pair.mine->second(pair.mine->first(rows_of(group, inputs(1))));
    if (group.rank() == 1) throw std::runtime_error("the program's own");
    h.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("the program's own"); });
    pair.mine->head(h).sum().backward();
  });
  pair.parallel.abandon_step();
  pair.step(2), pair.step(3);
}

std::vector<Case> cases_of_kept() {
  std::vector<Case> cases;
  for (const bool none : {true, false}) {
    const std::string how = none ? ", zero_grad() to none" : ", zero_grad() in place";
    cases.push_back({"kept as handles" + how, [none](Group& group) { keep_gradients(group, Kept::kHandle, none); }});
    cases.push_back({"kept detached" + how, [none](Group& group) { keep_gradients(group, Kept::kDetached, none); }});
    cases.push_back({"kept as views" + how, [none](Group& group) { keep_gradients(group, Kept::kView, none); }});
    cases.push_back({"nobody keeps any: no copies" + how, [none](Group& group) { look_for_copies(group, none); }});
  }
  const auto cached = [](Group& group, bool as_view) {
    WrappedPair pair(group);
    pair.step(0);
    const auto cache = [&](const Net& net) {
      std::vector<Tensor> all;
      for (const Tensor& parameter : net->parameters()) all.push_back(as_view ? parameter.grad().view({-1}) : parameter.grad());
      return all;
    };
    const std::vector<Tensor> mine = cache(pair.mine), whole = cache(pair.whole);
    for (int step = 1; step < 4; ++step) {
      pair.step(step, /*set_to_none=*/false);
      for (size_t i = 0; i < mine.size(); ++i) expect_equal(mine[i], whole[i], concat("step ", step, ", handle ", i));
    }
  };
  cases.push_back({"handles taken once, zero_grad() in place for ever", [cached](Group& group) { cached(group, false); }});
  cases.push_back({"views taken once, zero_grad() in place for ever", [cached](Group& group) { cached(group, true); }});
  cases.push_back({"gradients of the last step added to this one", with_pair([](WrappedPair& pair) {
                     std::vector<Tensor> mine, whole;
                     for (int step = 0; step < 5; ++step) {
                       pair.zero_grad();
                       pair.backward(step);
                       const auto parameters = pair.mine->parameters(), theirs = pair.whole->parameters();
                       for (size_t i = 0; i < mine.size(); ++i) parameters[i].grad().add_(mine[i]), theirs[i].grad().add_(whole[i]);
                       mine.clear(), whole.clear();
                       for (size_t i = 0; i < parameters.size(); ++i)
                         mine.push_back(parameters[i].grad()), whole.push_back(theirs[i].grad());
                       pair.check(concat("step ", step));
                     }
                   })});
  return cases;
}

std::vector<Case> cases_of_sums() {
  std::vector<Case> cases;
  for (const GradientMean mean : {GradientMean::kSum, GradientMean::kRanks, GradientMean::kSamples}) {
    const std::string name = mean == GradientMean::kSum     ? "sum: "
                             : mean == GradientMean::kRanks ? "mean over ranks: "
                                                            : "mean over samples: ";
    cases.push_back({name + "several backward() add up", [mean](Group& group) { add_up(group, mean, [](Pair&, int) {}); }, "", 3});
    cases.push_back({name + "clipped between them", [mean](Group& group) {
                       add_up(group, mean,
                              [](Pair& pair, int) { pair.each([](Net& net) { nn::utils::clip_grad_norm_(net->parameters(), 0.05); }); });
                     }});
    cases.push_back({name + "frozen between them", [mean](Group& group) {
                       add_up(group, mean, [](Pair& pair, int part) {
                         if (part == 1) pair.each([](Net& net) { net->set_trained(*net->first, !net->first->bias.requires_grad()); });
                       });
                     }});
    cases.push_back({name + "parts of the model in turn", [mean](Group& group) { parts_of_the_model(group, mean); }});
    cases.push_back({name + "micro-steps in micro-steps", [mean](Group& group) { nested_micro_steps(group, mean); }});
    cases.push_back({name + "one graph twice", [mean](Group& group) {
                       WrappedPair pair(group, small_buckets(mean));
                       pair.parallel.set_local_samples(4);
                       for (int step = 0; step < 3; ++step) {
                         pair.zero_grad();
                         const Tensor x = inputs(step), a = loss_of(pair.mine, rows_of(group, x)) * share_of_loss(mean, group);
                         const Tensor b = loss_of(pair.whole, x);
                         a.backward({}, true), b.backward({}, true), pair.check("once");
                         a.backward(), b.backward(), pair.check("twice");
                       }
                     }});
    cases.push_back({name + "gradients made by autograd::grad and set by hand", [mean](Group& group) {
                       WrappedPair pair(group, small_buckets(mean));
                       pair.parallel.set_local_samples(4);
                       for (int step = 0; step < 4; ++step) {
                         pair.zero_grad();
                         const Tensor x = inputs(step);
                         loss_of(pair.whole, x).backward();
                         auto parameters = pair.mine->parameters();
                         const auto made =
                             torch::autograd::grad({loss_of(pair.mine, rows_of(group, x)) * share_of_loss(mean, group)}, parameters);
                         for (size_t i = 0; i < made.size(); ++i) parameters[i].mutable_grad() = made[i];
                         pair.parallel.exchange_without_backward();
                         pair.check(concat("step ", step));
                         pair.apply();
                       }
                     }});
    cases.push_back({name + "autograd::grad after backward() leaves the gradients alone", [mean](Group& group) {
                       WrappedPair pair(group, small_buckets(mean));
                       pair.parallel.set_local_samples(4);
                       for (int step = 0; step < 3; ++step) {
                         pair.zero_grad();
                         for (int part = 0; part < 2; ++part) {
                           const Tensor x = inputs(2 * step + part);
                           (loss_of(pair.mine, rows_of(group, x)) * share_of_loss(mean, group)).backward(),
                               loss_of(pair.whole, x).backward();
                           torch::autograd::grad({loss_of(pair.mine, x)}, pair.mine->parameters());
                           pair.check(concat("step ", step, ", part ", part));
                         }
                         pair.apply();
                       }
                     }});
    cases.push_back({name + "forward again inside backward()", [mean](Group& group) {
                       if (mean == GradientMean::kSum) return;  // Its loss would need another factor; recompute_test.cpp has it.
                       recompute_in_backward(group, false, false, mean);
                     }});
  }
  return cases;
}

std::vector<Case> cases_of_graphs() {
  return {
      {"forward again inside backward(), twice deep", [](Group& group) { recompute_in_backward(group, true, false); }},
      {"a weight inside and outside of what is computed again", [](Group& group) { recompute_in_backward(group, false, true); },
       "got a second gradient in one backward()"},
      {"gradient penalty through autograd::grad", [](Group& group) { gradient_penalty(group, false); }},
      {"gradient penalty through .grad, refused, then another way", [](Group& group) { gradient_penalty(group, true); }},
      {"autograd::grad on one rank exchanges nothing", with_pair([](WrappedPair& pair) {
         for (int step = 0; step < 3; ++step) {
           if (pair.group.rank() == 1) torch::autograd::grad({loss_of(pair.mine, inputs(9))}, pair.mine->parameters());
           expect(pair.parallel.statistics().num_exchanges == step, "an exchange");
           pair.step(step);
         }
       })},
  };
}

std::vector<Case> cases_of_exceptions() {
  std::vector<Case> cases;
  for (const bool on_all : {true, false}) {
    const std::string who = on_all ? "on all ranks" : "on rank 1";
    cases.push_back({"exception in forward " + who, [on_all](Group& group) { fail_once(group, Place::kForward, on_all, true); }});
    cases.push_back(
        {"exception before the first gradient " + who, [on_all](Group& group) { fail_once(group, Place::kBefore, on_all, true); }});
    cases.push_back({"exception in the middle " + who, [on_all](Group& group) { fail_once(group, Place::kMiddle, on_all, true); }, "", 2});
    cases.push_back(
        {"exception in the middle, not told, " + who, [on_all](Group& group) { fail_once(group, Place::kMiddle, on_all, false); }});
    cases.push_back({"exception in the first step " + who, [on_all](Group& group) { fail_once(group, Place::kMiddle, on_all, true, 0); }});
  }
  cases.push_back({"exceptions in other places of the ranks", fail_in_other_places});
  return cases;
}

TEST_CASE("gradients that are kept") { run_cases("kept gradients", cases_of_kept()); }
TEST_CASE("gradients that add up") { run_cases("sums of gradients", cases_of_sums()); }
TEST_CASE("backwards in backwards") { run_cases("graphs", cases_of_graphs()); }
TEST_CASE("steps that an exception ends") { run_cases("exceptions", cases_of_exceptions()); }

}  // namespace
}  // namespace cohort
