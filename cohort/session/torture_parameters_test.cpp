// Parameters that come, go, are frozen or change their type, under DataParallel.
#include "cohort/base/fail.h"
#include "tests/support/torture_models.h"

namespace cohort {
namespace {

using namespace torture;  // NOLINT

nn::Linear replaced_head(Net& net, int64_t inputs, uint64_t seed) {
  nn::Linear head(inputs, 3);
  head->to(at::kDouble);
  fill(*head, seed);
  net->head = std::dynamic_pointer_cast<nn::LinearImpl>(net->replace_module("head", head.ptr()));
  return head;
}

void gan_style(Group& group, const DataParallelOptions& options) {
  WrappedPair pair(group, options);
  for (int step = 0; step < 7; ++step) {
    pair.each([&](Net& net) {
      net->set_trained(*net->first, step % 2 == 0);
      net->set_trained(*net->head, step % 2 == 1);
    });
    pair.step(step);
  }
}

/// Accumulates one micro-step, changes the model, and exchanges with the next.
template <typename Change>
void change_in_accumulation(Group& group, const Change& change) {
  WrappedPair pair(group);
  pair.step(0);
  pair.zero_grad();
  {
    const NoSync micro(pair.parallel);
    pair.backward(1);
  }
  pair.each(change);
  pair.backward(2);
  pair.check("after the exchange");
  pair.apply();
  pair.step(3);
}

std::vector<Case> cases_of_changes() {
  return {
      {"unfrozen after construction",
       [](Group& group) {
         Pair pair(group);
         pair.each([](Net& net) { net->set_trained(*net->first, false); });
         DataParallel parallel(*pair.mine, group, small_buckets());
         pair.step(0), pair.step(1);
         pair.each([](Net& net) { net->set_trained(*net->first, true); });
         pair.step(2), pair.step(3), pair.step(4);
       },
       "", 3},
      {"unfrozen before the first step",
       [](Group& group) {
         Pair pair(group);
         pair.each([](Net& net) { net->set_trained(*net, false); });
         DataParallel parallel(*pair.mine, group, small_buckets());
         pair.each([](Net& net) { net->set_trained(*net, true); });
         pair.step(0), pair.step(1);
       }},
      {"frozen after construction", with_pair([](WrappedPair& pair) {
         pair.step(0);
         pair.each([](Net& net) { net->set_trained(*net->second, false); });
         pair.step(1), pair.step(2);
       })},
      {"frozen between forward and backward", with_pair([](WrappedPair& pair) {
         const Tensor x = inputs(0), a = loss_of(pair.mine, rows_of(pair.group, x)), b = loss_of(pair.whole, x);
         pair.each([](Net& net) { net->set_trained(*net->second, false); });
         a.backward(), b.backward();
         pair.check("frozen");
         pair.step(1);
       })},
      {"registered after construction", with_pair([](WrappedPair& pair) {
         pair.step(0), pair.step(1);
         pair.each([](Net& net) { net->add_extra(draw({8}, 77)); });
         pair.renew_optimizers();
         pair.step(2), pair.step(3);
       })},
      {"head replaced by one of the same shape", with_pair([](WrappedPair& pair) {
         pair.step(0);
         pair.each([](Net& net) { replaced_head(net, 8, 5); });
         pair.renew_optimizers();
         pair.step(1), pair.step(2);
       })},
      {"new head only, all else frozen", with_pair([](WrappedPair& pair) {
         pair.step(0);
         pair.each([](Net& net) {
           net->set_trained(*net, false);
           replaced_head(net, 8, 5);
         });
         pair.renew_optimizers();
         pair.step(1), pair.step(2);
       }),
       "", 3},
      {"head replaced again and again, the old one let go", with_pair([](WrappedPair& pair) {
         for (int step = 0; step < 6; ++step) {
           pair.each([&](Net& net) { replaced_head(net, 8, static_cast<uint64_t>(step)); });
           pair.renew_optimizers();
           pair.step(step);
         }
       })},
      {"one by one unfrozen from the head down",
       [](Group& group) {
         Pair pair(group);
         pair.each([](Net& net) { net->set_trained(*net->first, false), net->set_trained(*net->second, false); });
         DataParallel parallel(*pair.mine, group, small_buckets());
         pair.step(0);
         pair.each([](Net& net) { net->set_trained(*net->second, true); });
         pair.step(1);
         pair.each([](Net& net) { net->set_trained(*net->first, true); });
         pair.step(2), pair.step(3);
       }},
      {"frozen on one rank alone", with_pair([](WrappedPair& pair) {
         pair.step(0);
         if (pair.group.rank() == 1) pair.mine->set_trained(*pair.mine->first, false);
         pair.backward(1);
       }),
       "has changed model 0: parameter first.weight Double [8, 6] frozen came"},
      {"unfrozen on one rank alone",
       [](Group& group) {
         Pair pair(group);
         pair.each([](Net& net) { net->set_trained(*net->second, false); });
         DataParallel parallel(*pair.mine, group, small_buckets());
         pair.step(0);
         if (group.rank() == 1) pair.mine->set_trained(*pair.mine->second, true);
         pair.backward(1);
       },
       "has changed model 0: parameter second.weight Double [8, 8]"},
      {"registered on one rank alone", with_pair([](WrappedPair& pair) {
         pair.step(0);
         if (pair.group.rank() == 1) pair.mine->add_extra(draw({8}, 4));
         pair.backward(1);
       }),
       "has changed model 0: parameter extra Double [8] trained came"},
      {"replaced on one rank alone", with_pair([](WrappedPair& pair) {
         pair.step(0);
         if (pair.group.rank() == 1) replaced_head(pair.mine, 8, 5);
         pair.backward(1);
       }),
       "has changed model 0: parameter head.weight is another tensor"},
      {"new parameter with other values on the ranks", with_pair([](WrappedPair& pair) {
         pair.step(0);
         pair.each([&](Net& net) { net->add_extra(draw({8}, 77 + pair.group.rank())); });
         pair.backward(1);
       }),
       "new parameters must begin with the same values"},
      {"new parameter with other values, adopted", with_pair([](WrappedPair& pair) {
         pair.step(0);
         pair.mine->add_extra(draw({8}, 77 + pair.group.rank()));
         pair.whole->add_extra(draw({8}, 77));
         pair.parallel.adopt_model();
         pair.renew_optimizers();
         pair.step(1), pair.step(2);
       }),
       "", 3},
      {"to(double) after wrapping",
       [](Group& group) {
         Pair pair(group, 1, at::kFloat);
         DataParallel parallel(*pair.mine, group, small_buckets());
         pair.step(0);
         // Rounding has already made a difference in the last bits.
         for (size_t i = 0; i < pair.whole->parameters().size(); ++i)
           pair.whole->parameters()[i].detach().copy_(pair.mine->parameters()[i].detach());
         pair.zero_grad();
         pair.each([](Net& net) { net->to(at::kDouble); });
         pair.renew_optimizers();
         pair.step(1), pair.step(2);
       }},
      {"other numbers in the same parameter (set_data)", with_pair([](WrappedPair& pair) {
         pair.step(0);
         pair.each([](Net& net) { net->head->weight.set_data(draw({3, 8}, 5)); });
         pair.step(1), pair.step(2);
       })},
      {"frozen in turns, as a GAN does it", [](Group& group) { gan_style(group, small_buckets()); }},
      {"frozen in turns, mean over samples",
       [](Group& group) {
         WrappedPair pair(group, small_buckets(GradientMean::kSamples));
         pair.parallel.set_local_samples(4);
         for (int step = 0; step < 4; ++step) {
           pair.each([&](Net& net) { net->set_trained(*net->first, step % 2 == 0); });
           pair.step(step);
         }
       }},
      {"frozen in turns under compression",
       [](Group& group) {
         DataParallelOptions options = small_buckets();
         options.compress = "bf16";
         gan_style(group, options);
       },
       "make a new DataParallel after the change, or use compress=none"},
      {"unfrozen during NoSync",
       [](Group& group) {
         Pair pair(group);
         pair.each([](Net& net) { net->set_trained(*net->first, false); });
         DataParallel parallel(*pair.mine, group, small_buckets());
         pair.step(0);
         pair.zero_grad();
         const NoSync outer(parallel);
         pair.each([](Net& net) { net->set_trained(*net->first, true); });
         pair.backward(1);
         parallel.set_sync(true);
         pair.backward(2);
         pair.check("after the exchange");
         pair.apply();
       }},
      {"frozen between NoSync and the exchange",
       [](Group& group) { change_in_accumulation(group, [](Net& net) { net->set_trained(*net->first, false); }); },
       "parameter first.weight of model 0 was frozen between micro-steps (NoSync) and their exchange"},
      {"frozen between NoSync and the exchange, its gradient set to none",
       [](Group& group) {
         change_in_accumulation(group, [](Net& net) {
           net->set_trained(*net->first, false);
           net->first->zero_grad();
         });
       }},
      {"registered between NoSync and the exchange",
       [](Group& group) { change_in_accumulation(group, [](Net& net) { net->add_extra(draw({8}, 4)); }); }},
      {"layer added to a Sequential after construction",
       [](Group& group) {
         const auto layer = [](int64_t width, uint64_t seed) {
           nn::Linear made(6, width);
           made->to(at::kDouble), fill(*made, seed);
           return made;
         };
         nn::Sequential mine(layer(6, 1)), whole(layer(6, 1));
         DataParallel parallel(*mine, group, small_buckets());
         for (int step = 0; step < 4; ++step) {
           mine->zero_grad(), whole->zero_grad();
           const Tensor x = inputs(step);
           mine->forward(rows_of(group, x)).square().mean().backward();
           whole->forward(x).square().mean().backward();
           expect_same(*mine, *whole, true, concat("step ", step));
           if (step % 2 == 1) mine->push_back(layer(6, 8)), whole->push_back(layer(6, 8));
         }
       }},
  };
}

TEST_CASE("parameters that change after construction") { run_cases("parameters that change", cases_of_changes()); }

}  // namespace
}  // namespace cohort
