// A program writes to the weights of a wrapped model: what can be kept trains as in one process, the rest is an error.
#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>

#include "cohort/parallel/zero/zero_data_parallel.h"
#include "tests/support/own_code.h"

namespace cohort {
namespace {

using namespace own_code_test;

std::string saved_net() {
  Net other(99);
  std::ostringstream out;
  torch::save(other, out);
  return out.str();
}

void load_other(Net& net) {
  static const std::string bytes = saved_net();
  std::istringstream in(bytes);
  torch::load(net, in);
}

std::map<std::string, Edit> edits_in_place() {
  std::map<std::string, Edit> all;
  all["clamp_"] = [](Net& net) {
    torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : net->parameters()) parameter.clamp_(-0.1, 0.1);
  };
  all["copy_"] = [](Net& net) {
    torch::NoGradGuard no_grad;
    net->first->weight.copy_(torch::linspace(-1, 1, 280).view({40, 7}));
  };
  all["nn::init"] = [](Net& net) {
    nn::init::eye_(net->second->weight);
    nn::init::constant_(net->first->bias, 0.25);
  };
  all["data()"] = [](Net& net) { net->second->weight.data().mul_(0.5); };
  all["twice"] = [](Net& net) {
    torch::NoGradGuard no_grad;
    net->first->weight.mul_(0.5);
    net->second->weight.mul_(0.5);
    net->first->weight.add_(net->first->bias.unsqueeze(1), 0.125);
  };
  return all;
}

std::map<std::string, Edit> edits_by_other_memory() {
  std::map<std::string, Edit> all;
  all["torch::load"] = load_other;
  all["set_data"] = [](Net& net) { net->first->weight.set_data(torch::full({40, 7}, 0.01f)); };
  all["vector_to_parameters"] = [](Net& net) {
    const torch::Tensor vector = torch::linspace(-0.3, 0.3, 280 + 40 + 120 + 3);
    std::vector<torch::Tensor> trained{net->first->weight, net->first->bias, net->second->weight, net->second->bias};
    nn::utils::vector_to_parameters(vector, trained);
  };
  return all;
}

std::map<std::string, Edit> all_edits() {
  std::map<std::string, Edit> all = edits_in_place();
  all.merge(edits_by_other_memory());
  return all;
}

TEST_CASE("zero: what a program writes to weights of any stage is trained on, as in one process") {
  for (const int stage : {1, 2, 3, kTight})
    for (const int num_ranks : {1, 2, 3})
      for (const auto& [name, edit] : all_edits())
        check_as_alone(stage, num_ranks, name, edit, [&edit = edit](Net& net, Strategy&, Group&) { edit(net); });
}

TEST_CASE("zero: the same after an evaluation of different numbers of batches, and while weights are gathered") {
  for (const int stage : {1, 3, kTight})
    for (const auto& [name, edit] : all_edits()) {
      check_as_alone(stage, 3, "evaluated, " + name, edit, [&edit = edit](Net& net, Strategy& strategy, Group& group) {
        {
          torch::NoGradGuard no_grad;
          for (int batch = 0; batch < group.rank(); ++batch) loss_of(net, batch, 0);
        }
        strategy.finish_evaluation();
        edit(net);
      });
      check_as_alone(stage, 2, "held, " + name, edit, [&edit = edit](Net& net, Strategy& strategy, Group&) {
        strategy.gather_weights();
        edit(net);
      });
    }
}

TEST_CASE("zero: writes between gather_weights() and release_weights() are kept, also through data_ptr()") {
  std::map<std::string, Edit> edits = all_edits();
  edits["data_ptr()"] = [](Net& net) { std::fill_n(net->second->weight.data_ptr<float>(), 100, 0.125f); };
  for (const int stage : {1, 3})
    for (const auto& [name, edit] : edits)
      check_as_alone(stage, 3, "gathered " + name, edit, [&edit = edit](Net& net, Strategy& strategy, Group& group) {
        strategy.gather_weights();
        edit(net);
        group.barrier();
        strategy.release_weights();
      });
}

TEST_CASE("zero: clamping after every step, with clipping, is that of one process in every stage") {
  std::vector<Weights> all;
  for (const int stage : {1, 2, 3})
    run_thread_ranks(3, [&](Group& group) {
      Net net;
      const auto strategy = make(stage, net, group);
      for (int step = 0; step < kSteps; ++step) {
        loss_of(net, step, group.rank()).backward();
        strategy->step({.learning_rate = 0.1, .clip_norm = 0.5});
        torch::NoGradGuard no_grad;
        for (torch::Tensor& parameter : net->parameters()) parameter.clamp_(-0.05, 0.05);
      }
      const Weights found = gathered_weights(*strategy, net, group);
      for (const auto& [name, value] : found)
        if (value.abs().max().item<float>() > 0.05f) FAIL(name);
      if (group.rank() == 1) all.push_back(found);
      group.barrier();
    });
  check_equal(all[1], all[0], "stage 2");
  check_equal(all[2], all[0], "stage 3");
}

TEST_CASE("load_weights() gives all ranks what rank 0 has") {
  for (const int stage : {kShared, 1, 2, 3}) {
    std::map<std::string, Edit> edits = edits_by_other_memory();
    for (const auto& [name, edit] : edits)
      check_as_alone(stage, 3, "rank 0: " + name, edit,
                     [&edit = edit, loads = name == "torch::load"](Net& net, Strategy& strategy, Group& group) {
                       if (group.rank() == 0) edit(net);
                       strategy.load_weights();
                       if (loads && net->named_buffers()["counts"].min().item<double>() != 99) FAIL("buffers");
                     });
    for (const auto& [name, edit] : edits_in_place())
      check_as_alone(stage, 2, "rank 0: " + name, edit, [&edit = edit](Net& net, Strategy& strategy, Group& group) {
        // Late, rank 1 does not take what rank 0 writes next for what was written before.
        if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        strategy.gather_weights();
        if (group.rank() == 0) edit(net);
        strategy.load_weights();
        group.barrier();
        strategy.release_weights();
      });
  }
}

TEST_CASE("zero: ranks that write differently are reported at the end of the next backward") {
  for (const int stage : {1, 2, 3}) {
    const std::string alone_0 = refused_edit(stage, [](Net& net, Strategy&, Group& group) {
      if (group.rank() == 0) load_other(net);
    });
    check_says(alone_0, "wrote to parameter frozen on ranks 0 and 1 differently, or on one of them alone");
    check_says(alone_0, "write the same values on all ranks");
    const std::string other_values = refused_edit(stage, [](Net& net, Strategy&, Group& group) {
      torch::NoGradGuard no_grad;
      net->second->weight.mul_(group.rank() + 1);
    });
    check_says(other_values, "on ranks 0 and 1 differently");
    check_says(other_values, "second.");
  }
  check_says(refused_edit(3,
                          [](Net& net, Strategy& strategy, Group& group) {
                            torch::NoGradGuard no_grad;
                            if (group.rank() == 0) net->second->weight.mul_(2);
                            strategy.load_weights();
                          }),
             "all between gather_weights() and release_weights()");
}

TEST_CASE("zero: one rank may put other weights in, evaluate and put the own ones back") {
  for (const int stage : {1, 2, 3})
    check_as_alone(stage, 2, "swapped", nullptr, [](Net& net, Strategy& strategy, Group& group) {
      strategy.gather_weights();
      if (group.rank() == 0) {
        torch::NoGradGuard no_grad;
        const torch::Tensor own = net->first->weight.clone();
        net->first->weight.fill_(1);
        loss_of(net, 7, 0);
        net->first->weight.copy_(own);
      }
      strategy.release_weights();
    });
}

TEST_CASE("shared weights: other memory is taken over, writes of every rank are refused") {
  for (const auto& [name, edit] : edits_by_other_memory())
    check_as_alone(kShared, 3, name, edit, [&edit = edit](Net& net, Strategy&, Group&) { edit(net); });
  check_says(refused_edit(kShared, [](Net& net, Strategy&, Group&) { edits_in_place()["clamp_"](net); }),
             "wrote to parameter frozen in place");
  check_says(refused_edit(kShared,
                          [](Net& net, Strategy&, Group& group) {
                            if (group.rank() == 0) load_other(net);
                          }),
             "do not have the same parameters in memory of the program's own");
  check_says(refused_edit(kShared,
                          [](Net& net, Strategy& strategy, Group&) {
                            edits_in_place()["copy_"](net);
                            strategy.load_weights();
                          }),
             "2 ranks wrote to weights in place, rank 1 to parameter first.weight");
}

TEST_CASE("what a program wrote is saved") {
  for (const int stage : {kShared, 1, 2, 3})
    run_thread_ranks(2, [&](Group& group) {
      Net net, other(99);
      const auto strategy = make(stage, net, group);
      load_other(net);
      if (stage != kShared) {
        torch::NoGradGuard no_grad;
        net->first->weight.mul_(2);
        other->first->weight.mul_(2);
      }
      const auto expected = other->named_parameters();
      for (const FlatPiece& piece : strategy->saved_pieces()) {
        if (!piece.name.starts_with("model/")) continue;
        const torch::Tensor whole = expected[piece.name.substr(6)].detach().view({-1});
        if (!torch::equal(piece.values.view({-1}), whole.narrow(0, piece.begin, piece.values.numel()))) FAIL(piece.name);
      }
      group.barrier();
      strategy->finish_evaluation();
    });
}

}  // namespace
}  // namespace cohort
