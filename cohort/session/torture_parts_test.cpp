// Sequentials and LayerGraphs cut into stages and divided tensors, in a program's own loop, against one process that sees the whole batch.
#include <filesystem>
#include <optional>
#include <sstream>

#include "cohort/base/fail.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/models/graph/layer_graph.h"
#include "tests/support/torture_models.h"

namespace cohort {
namespace {

using namespace torture;  // NOLINT
namespace optim = torch::optim;

/// Seven layers, three of them with parameters; named as the graph's below.
nn::Sequential a_sequential() {
  nn::Sequential net;
  net->push_back("in", nn::Linear(6, 8));
  net->push_back("bend", nn::Tanh());
  net->push_back("middle", nn::Linear(8, 8));
  net->push_back("norm", nn::LayerNorm(nn::LayerNormOptions({8})));
  net->push_back("bend2", nn::Tanh());
  net->push_back("out", nn::Linear(8, 4));
  net->to(at::kDouble);
  fill(*net, 1);
  return net;
}

/// The same with a branch, which a Sequential cannot have.
std::shared_ptr<LayerGraph> a_graph() {
  auto graph = std::make_shared<LayerGraph>();
  graph->add("in", "linear", nn::Linear(6, 8));
  const int bend = graph->add("bend", "tanh", [](const LayerGraph::Inputs& in) { return at::tanh(in[0]); });
  const int middle = graph->add("middle", "linear", nn::Linear(8, 8));
  graph->add("sum", "add", [](const LayerGraph::Inputs& in) { return in[0] + in[1]; }, {bend, middle});
  graph->add("out", "linear", nn::Linear(8, 4));
  graph->to(at::kDouble);
  fill(*graph, 1);
  return graph;
}

Tensor square_loss(const Tensor& output, const Tensor& target) { return (output - target).square().mean(); }
Tensor targets(int64_t rows, int64_t step) { return draw({rows, 4}, static_cast<uint64_t>(9000 + 70 * step + rows)); }

struct Way {
  std::string layout;
  double clip = 0;
  bool by_hand = false;  ///< forward(), loss and backward() of the program's own: not in a pipeline.
  std::vector<int64_t> rows = {12, 12, 12};
};

/// Four steps of AdamW with a rate of each step's own; weights in a checkpoint and outputs against the whole's after each.
template <typename MakeModel>
void train_in_parts(Session& session, const Way& way, const MakeModel& make_model) {
  auto mine = make_model();
  auto whole = make_model();
  if (!session.is_first()) fill(*mine, 77);  // Rank 0's weights count.
  Parallel parallel(*mine, session, {.layout = way.layout, .optimizer = optim::AdamWOptions(0.03).eps(1e-3), .example = batch(8, 99)});
  optim::AdamW optimizer(whole->parameters(), optim::AdamWOptions(0.03).eps(1e-3));
  for (size_t step = 0; step < way.rows.size(); ++step) {
    const Tensor x = batch(way.rows[step], static_cast<int64_t>(step)), y = targets(way.rows[step], static_cast<int64_t>(step));
    const Tensor loss = square_loss(whole->forward(x), y);
    loss.backward();
    const double rate = 0.03 / static_cast<double>(step + 1);
    parallel.set_learning_rate(rate);
    static_cast<optim::AdamWOptions&>(optimizer.param_groups()[0].options()).lr(rate);
    double found = 0;
    if (way.by_hand) {
      const Tensor mine_loss = square_loss(mine->forward(session.local(x)), session.local(y));
      mine_loss.backward();
      found = session.mean(mine_loss.template item<double>());
    } else {
      found = parallel.forward_backward(session.local(x), session.local(y), square_loss);
    }
    expect_equal(at::full({1}, found, at::kDouble), loss.detach().view({1}), concat("loss of step ", step));
    if (way.clip > 0) {
      double squares = 0;
      for (const Tensor& parameter : whole->parameters()) squares += parameter.grad().square().sum().template item<double>();
      for (const Tensor& parameter : whole->parameters()) parameter.grad().mul_(std::min(1.0, way.clip / (std::sqrt(squares) + 1e-6)));
    }
    parallel.step({.clip_norm = way.clip});
    optimizer.step(), optimizer.zero_grad();
    const Tensor probe = batch(6, 500);
    expect_equal(parallel.forward(session.local(probe)).detach(), whole->forward(session.local(probe)).detach(),
                 concat("output after step ", step));
  }
}

/// A temporary folder that rank 0 names.
struct Folder {
  explicit Folder(Session& session) : session(session) {
    char name[] = "/tmp/cohort-parts-XXXXXX";
    path = session.group().all_gather_text(session.is_first() ? ::mkdtemp(name) : "", "folder").front();
  }
  ~Folder() {
    std::error_code ignored;
    if (session.is_first()) std::filesystem::remove_all(path, ignored);
  }
  Session& session;
  std::string path;
};

/// Two steps under one layout, saved; two more under another from there, against four of one process.
void from_one_to_another(Session& session, const std::string& first, const std::string& second) {
  const Folder folder(session);
  auto whole = a_sequential();
  optim::AdamW optimizer(whole->parameters(), optim::AdamWOptions(0.03).eps(1e-3));
  for (int leg = 0; leg < 2; ++leg) {
    Session own(session.world());  // Another layout divides batches otherwise.
    auto mine = a_sequential();
    Parallel parallel(*mine, own,
                      {.layout = leg == 0 ? first : second, .optimizer = optim::AdamWOptions(0.03).eps(1e-3), .example = batch(8, 99)});
    if (leg == 1) expect(parallel.load(folder.path) == 2, "the step that was saved");
    for (int step = 2 * leg; step < 2 * leg + 2; ++step) {
      const Tensor x = batch(12, step), y = targets(12, step);
      square_loss(whole->forward(x), y).backward();
      optimizer.step(), optimizer.zero_grad();
      parallel.forward_backward(own.local(x), own.local(y), square_loss);
      parallel.step();
    }
    parallel.save(folder.path, 2 * leg + 2);
    const auto saved = Checkpoint::open_latest(folder.path);
    expect(saved.has_value(), "a checkpoint");
    for (const auto& item : whole->named_parameters()) {
      Tensor values = at::empty_like(item.value());
      expect(saved->shape("model/" + item.key()) == values.sizes().vec(), item.key() + " has its whole shape");
      saved->read_whole("model/" + item.key(), values.data_ptr());
      expect_equal(values, item.value().detach(), item.key() + " as saved");
    }
    session.barrier();
  }
}

void accumulated(Session& session, const std::string& layout) {
  auto mine = a_sequential(), whole = a_sequential();
  Parallel parallel(*mine, session, {.layout = layout, .optimizer = optim::SGDOptions(0.1), .example = batch(8, 99)});
  optim::SGD optimizer(whole->parameters(), 0.1);
  for (int step = 0; step < 2; ++step) {
    for (int piece = 0; piece < 2; ++piece) {
      const Tensor x = batch(8, 2 * step + piece), y = targets(8, 2 * step + piece);
      (square_loss(whole->forward(x), y) / 2).backward();
      std::shared_ptr<void> held;
      if (piece == 0) held = parallel.accumulate();
      parallel.forward_backward(session.local(x), session.local(y),
                                [](const Tensor& out, const Tensor& y) { return square_loss(out, y) / 2; });
    }
    parallel.step();
    optimizer.step(), optimizer.zero_grad();
    expect_equal(parallel.forward(batch(6, 500)).detach(), whole->forward(batch(6, 500)).detach(), concat("output after step ", step));
  }
}

/// A program's own classes with names that LibTorch has: rules for LibTorch's are none for them.
namespace mine {
struct LinearImpl : nn::LinearImpl {
  using nn::LinearImpl::LinearImpl;
  Tensor forward(const Tensor& x) { return 3 * at::sin(nn::LinearImpl::forward(x)); }
};
TORCH_MODULE(Linear);
struct ReLUImpl : nn::Module {
  Tensor forward(const Tensor& x) { return at::softmax(x, -1) * at::relu(x); }
};
TORCH_MODULE(ReLU);
}  // namespace mine

nn::Sequential with_own_layers() {
  nn::Sequential net(nn::Linear(6, 8), mine::ReLU(), mine::Linear(8, 8), nn::Linear(8, 4));
  net->to(at::kDouble);
  fill(*net, 1);
  return net;
}

/// Frozen after a step, through the Sequential that the program has.
void frozen_later(Session& session, const std::string& layout) {
  auto mine = a_sequential(), whole = a_sequential();
  Parallel parallel(*mine, session, {.layout = layout, .optimizer = optim::SGDOptions(0.1), .example = batch(8, 99)});
  optim::SGD optimizer(whole->parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    if (step == 2)
      for (auto* net : {&mine, &whole})
        for (Tensor& parameter : (*net)[2]->parameters()) parameter.set_requires_grad(false);
    const Tensor x = batch(12, step), y = targets(12, step);
    square_loss(whole->forward(x), y).backward();
    parallel.forward_backward(session.local(x), session.local(y), square_loss);
    parallel.step(), optimizer.step(), optimizer.zero_grad();
    expect_equal(parallel.forward(batch(6, 500)).detach(), whole->forward(batch(6, 500)).detach(), concat("output after step ", step));
  }
}

Parallel parts(nn::Sequential& net, Session& session, const std::string& layout) {
  return Parallel(*net, session, {.layout = layout, .optimizer = optim::SGDOptions(0.1), .example = batch(8, 99)});
}

}  // namespace

TEST_CASE("a model in parts, in a loop of one's own, trains as one process") {
  std::vector<Case> cases;
  const auto add = [&](const Way& way, int num_ranks) {
    const std::string how =
        concat(way.layout, way.by_hand ? " by hand" : "", way.clip > 0 ? " clipped" : "", way.rows[0] == 12 ? "" : " uneven");
    cases.push_back(session_case("Sequential, " + how, [=](Session& s) { train_in_parts(s, way, a_sequential); }, "", num_ranks));
    cases.push_back(session_case("LayerGraph, " + how, [=](Session& s) { train_in_parts(s, way, a_graph); }, "", num_ranks));
  };
  for (const char* layout : {"tp=2", "pp=2", "pp=2,microbatches=3", "pp=2,microbatches=4,schedule=zb-h1", "pp=2,microbatches=2,split=even",
                             "dp=2,recompute=all", "zero=1,dp=2", "dp=2"})
    add({.layout = layout}, 2);
  for (const char* layout : {"dp=2,tp=2", "dp=2,pp=2,microbatches=2", "pp=2,tp=2,microbatches=2", "dp=2,pp=2,microbatches=2,zero=1"}) {
    add({.layout = layout, .rows = {11, 12, 9}}, 4);
    add({.layout = layout, .clip = 0.05}, 4);
  }
  add({.layout = "tp=2", .by_hand = true}, 2);
  add({.layout = "dp=2,tp=2", .by_hand = true, .rows = {11, 12, 9}}, 4);
  add({.layout = "dp=2,tp=2,zero=2", .by_hand = true}, 4);
  for (const char* layout : {"tp=2", "pp=2,microbatches=2", "dp=2"})
    cases.push_back(session_case(concat("accumulated, ", layout), [=](Session& s) { accumulated(s, layout); }));
  cases.push_back(session_case("a Sequential's parameters are those of its rank", [](Session& s) {
    auto net = a_sequential();
    const auto numel = [&net] {
      int64_t sum = 0;
      for (const Tensor& parameter : net->parameters()) sum += parameter.numel();
      return sum;
    };
    const int64_t whole = numel();
    const Parallel parallel = parts(net, s, "pp=2");
    expect(numel() > 0 && numel() < whole, "a part of them");
    expect(static_cast<int64_t>(s.sum(static_cast<double>(numel()))) == whole, "each on one rank");
  }));
  for (const char* layout : {"tp=2", "pp=2,microbatches=2", "dp=2,recompute=all"}) {
    cases.push_back(session_case(concat("layers of the program's own, ", layout),
                                 [=](Session& s) { train_in_parts(s, {.layout = layout}, with_own_layers); }));
    cases.push_back(session_case(concat("frozen later, ", layout), [=](Session& s) { frozen_later(s, layout); }));
  }
  const std::vector<std::pair<std::string, std::string>> moves = {
      {"dp=2", "tp=2"}, {"tp=2", "pp=2"}, {"pp=2,microbatches=2", "zero=1,dp=2"}, {"zero=3,dp=2", "tp=2"}};
  for (const auto& [first, second] : moves)
    cases.push_back(session_case(concat("saved under ", first, ", loaded under ", second),
                                 [first = first, second = second](Session& s) { from_one_to_another(s, first, second); }));
  run_cases("parts of models", cases);
}

TEST_CASE("what a model in parts cannot do is said") {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, const std::string& error, const std::function<void(Session&)>& program) {
    cases.push_back(session_case(name, program, error));
  };
  for (const char* layout : {"pp=2", "tp=2", "dp=2,recompute=all"})
    add(concat("a module of one piece, ", layout), "is one module, whose layers only its forward() knows", [=](Session& s) {
      Net net;
      Parallel(*net, s, {.layout = layout, .optimizer = optim::SGDOptions(0.1), .example = batch(8, 99)});
    });
  add("no example", "measures the layers to cut the model between them", [](Session& s) {
    auto net = a_sequential();
    Parallel(*net, s, {.layout = "pp=2", .optimizer = optim::SGDOptions(0.1)});
  });
  add("an optimizer of LibTorch's", "leaves each rank a part of the model", [](Session& s) {
    auto net = a_sequential();
    Parallel(*net, s, {.layout = "tp=2"});
  });
  add("batch norm over ranks", "sync_batch_norm goes with dp and zero", [](Session& s) {
    auto net = a_sequential();
    Parallel(*net, s, {.layout = "tp=2", .optimizer = optim::SGDOptions(0.1), .sync_batch_norm = true});
  });
  add("nothing to divide", "divides no layer", [](Session& s) {
    nn::Sequential net(nn::Linear(3, 5), nn::Tanh(), nn::Linear(5, 3));
    parts(net, s, "tp=2");
  });
  add("micro-batches without a pipeline", "microbatches", [](Session& s) {
    auto net = a_sequential();
    parts(net, s, "dp=2,microbatches=2");
  });
  add("two ways to divide a batch", "the models of a session divide each batch alike", [](Session& s) {
    auto first = a_sequential(), second = a_sequential();
    const Parallel one = parts(first, s, "tp=2");
    parts(second, s, "dp=2");
  });
  add("a stage of another rank", "is on another rank", [](Session& s) {
    auto net = a_sequential();
    const Parallel parallel = parts(net, s, "pp=2");
    net->forward(batch(4, 0));
  });
  add("a step left", "ends the job", [](Session& s) {
    auto net = a_sequential();
    Parallel parallel = parts(net, s, "tp=2");
    parallel.abandon_step();
  });
  add("no samples in a pipeline", "in a pipeline all ranks call forward_backward()", [](Session& s) {
    auto net = a_sequential();
    Parallel parallel = parts(net, s, "pp=2");
    parallel.no_samples();
  });
  add("a step of nothing", "there was no forward_backward() since the last one", [](Session& s) {
    auto net = a_sequential();
    Parallel parallel = parts(net, s, "pp=2");
    parallel.step();
  });
  for (const char* layout : {"tp=2", "pp=2"})
    add(concat("other rows on a rank of one copy, ", layout), "were given different rows", [=](Session& s) {
      auto net = a_sequential();
      Parallel parallel = parts(net, s, layout);
      parallel.forward_backward(batch(4, s.rank()), targets(4, 0), square_loss);
    });
  add("other rows under tp, by hand", "were given different rows", [](Session& s) {
    auto net = a_sequential();
    Parallel parallel = parts(net, s, "tp=2");
    net->forward(batch(4, s.rank()));
  });
  add("other targets under tp, by hand", "were given different targets", [](Session& s) {
    auto net = a_sequential();
    Parallel parallel = parts(net, s, "tp=2");
    square_loss(net->forward(batch(4, 0)), targets(4, s.rank())).backward();
  });
  add("other random numbers under tp", "ranks that divide tensors (layout tp=2) have come apart", [](Session& s) {
    struct Noise : nn::Module {
      explicit Noise(Session& s) : s(s) {}
      Tensor forward(const Tensor& x) { return x * draw(x.sizes(), 900 + static_cast<uint64_t>(s.rank())); }
      Session& s;
    };
    nn::Sequential net(nn::Linear(6, 6), nn::LayerNorm(nn::LayerNormOptions({6})), Noise(s), nn::Linear(6, 8), nn::Tanh(),
                       nn::Linear(8, 4));
    net->to(at::kDouble);
    Parallel parallel = parts(net, s, "tp=2");
    for (int step = 0; step < 200; ++step) {
      square_loss(net->forward(batch(4, 0)), targets(4, 0)).backward();
      parallel.step();
    }
  });
  add("another model on one rank", "ranks disagree in the model's parameters", [](Session& s) {
    nn::Sequential net(nn::Linear(6, s.rank() == 0 ? 8 : 10), nn::Tanh(), nn::Linear(s.rank() == 0 ? 8 : 10, 4));
    parts(net, s, "tp=2");
  });
  for (const char* layout : {"tp=2", "pp=2"}) {
    add(concat("torch::save, ", layout), "Parallel::save() writes all of it", [=](Session& s) {
      auto net = a_sequential();
      const Parallel parallel = parts(net, s, layout);
      std::ostringstream out;
      torch::save(net, out);
    });
    add(concat("clone(), ", layout), "clone it before Parallel is made", [=](Session& s) {
      auto net = a_sequential();
      const Parallel parallel = parts(net, s, layout);
      net->clone();
    });
  }
  const auto in_place = [](Session& s) {
    nn::Sequential net(nn::Linear(6, 8), nn::ReLU(nn::ReLUOptions(true)), nn::Linear(8, 4));
    net->to(at::kDouble);
    Parallel parallel = parts(net, s, "pp=2,split=1");
    // Rank 0 misses what rank 1 does not send: the ranks of a test are threads, which do not end.
    must_fail(s.rank() == 1 ? "layer '1' works in place on its input" : "micro-batch 0",
              [&] { parallel.forward_backward(batch(4, 0), targets(4, 0), square_loss); });
  };
  cases.push_back(session_case("a layer that works in place at the start of a stage", in_place, "", 2, 2));
  add("a loss of many numbers", "the loss is one floating-point number", [](Session& s) {
    auto net = a_sequential();
    Parallel parallel = parts(net, s, "tp=2");
    parallel.forward_backward(batch(4, 0), targets(4, 0), [](const Tensor& out, const Tensor& y) { return out - y; });
  });
  add("rates that differ between stages", "ranks step with different learning rates", [](Session& s) {
    auto net = a_sequential();
    Parallel parallel = parts(net, s, "pp=2");
    for (int step = 0; step < 3; ++step) {
      parallel.set_learning_rate(s.rank() == 0 ? 0.1 : 0.2);
      parallel.forward_backward(batch(4, 0), targets(4, 0), square_loss);
      parallel.step();
    }
  });
  add("forward() of a module of one piece", "is neither a cohort::LayerGraph", [](Session& s) {
    Net net;
    Parallel parallel(*net, s);
    parallel.forward(batch(4, 0));
  });
  run_cases("parts of models, refused", cases);
}

}  // namespace cohort
