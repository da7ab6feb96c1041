// Executes a pipeline schedule.
//
// A step goes down this rank's list of actions:
//   forward (s, k)    the stage's inputs become leaves of their own autograd graph: values that arrived, the model's input, or outputs of
//                     another own stage, detached. Layers run in their order; what other stages read is kept.
//   send / receive    one packet for each edge of stages and micro-batch (comm/tensor_channels.h): its values, or their gradients. Nobody
//                     waits for a receiver; a packet is waited for only where its values are needed.
//   backward (s, k)   from the gradients that the readers of each output handed back, added up in the order in which they came, which the
//                     schedule fixes; or from the loss in the stage that makes the model's output. In two parts where the schedule has
//                     two (split_backward.h).
// A weight that several stages use lives in the first of them: its value goes to the others before the step, their gradients come back
// after it, once each a step, so that optimizers, sharding and clipping see one weight.
//
// Cost a step and edge: 2 m messages of the values' size, m micro-batches. Memory: what the schedule says it stashes.
// Source: Huang et al. 2019 (GPipe), Narayanan et al. 2019 (PipeDream), Qi et al. 2024 (zero bubble); values go straight from the stage
// that makes them to each that reads them, where other systems know chains only.

#include "cohort/pipeline/pipeline_runner.h"

#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <set>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/pipeline/split_backward.h"
#include "cohort/pipeline/stage_mail.h"
#include "cohort/schedule/scheduler.h"

namespace cohort {
namespace {

using Tensors = std::vector<at::Tensor>;

/// State between the forward and the end of the backward of one (stage, micro-batch).
struct InFlight {
  std::map<int, at::Tensor> inputs;            ///< By value (layer index): leaves.
  std::map<int, at::Tensor> outputs;           ///< Read by other stages.
  std::map<int, at::Tensor> output_gradients;  ///< Accumulated as they arrive.
  at::Tensor loss;
  SplitBackward split;
};

using StageAndMicroBatch = std::pair<int, int>;

void add_gradient(at::Tensor& sum, const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  if (sum.defined()) sum = sum + gradient;
  else sum = gradient;
}

}  // namespace

struct PipelineRunner::State {
  LayerGraph& graph;
  StageCut cut;
  ScheduleMaker make_schedule;
  Group group;
  PacketMail mail;
  std::unique_ptr<TiedWeights> tied;
  std::vector<int> own_stages;
  bool first = false, last = false;
  struct Made {
    Schedule schedule;
    std::vector<std::vector<int>> rank_of;  ///< [stage][micro-batch]
  };
  std::map<int, Made> made;
  std::vector<std::vector<int>> ranks_of_stage;

  const PipelineWork* work = nullptr;
  const Made* now = nullptr;
  std::map<StageAndMicroBatch, InFlight> in_flight;
  std::map<PacketKey, Tensors> outgoing_gradients;
  int num_kept = 0;
  PipelineStatistics statistics;
  std::vector<TimedAction>* recorded = nullptr;

  State(LayerGraph& graph_, StageCut cut_, ScheduleMaker maker, Group group_)
      : graph(graph_), cut(std::move(cut_)), make_schedule(std::move(maker)), group(group_), mail(group_) {}

  const Made& schedule_of(int num_micro_batches);
  void find_own_stages();
  void drop_others();
  const StageEdge& edge(int from, int to) const;
  void run(const Action& action);
  void forward(int stage, int k);
  std::map<int, at::Tensor> run_layers(int stage, const std::map<int, at::Tensor>& inputs, const std::function<at::Tensor()>& model_input);
  void collect_inputs(int stage, int k, InFlight& flight);
  void backward(int stage, int k, bool whole);
  void finish_backward(int stage, int k);
  void take_gradients(int stage, int k, InFlight& flight);
  void hand_back(int stage, int k, const std::map<int, at::Tensor>& gradients);
};

const PipelineRunner::State::Made& PipelineRunner::State::schedule_of(int num_micro_batches) {
  const auto found = made.find(num_micro_batches);
  if (found != made.end()) return found->second;
  Made one{make_schedule(num_micro_batches), {}};
  one.schedule.edges = cut.stage_edges();
  add_transfers(one.schedule);
  check_schedule(one.schedule);
  if (one.schedule.num_ranks() != group.size() || one.schedule.num_stages != cut.num_stages())
    fail(ErrorCode::kBadInput, "the schedule ", one.schedule.name, " is for ", one.schedule.num_ranks(), " ranks and ",
         one.schedule.num_stages, " stages, but there are ", group.size(), " ranks and ", cut.num_stages(), " stages");
  one.rank_of = ranks_of_stages(one.schedule);
  return made.emplace(num_micro_batches, std::move(one)).first->second;
}

/// With as many micro-batches as ranks every replica of a stage has one.
void PipelineRunner::State::find_own_stages() {
  const Made& probe = schedule_of(group.size());
  ranks_of_stage.resize(static_cast<size_t>(cut.num_stages()));
  for (int stage = 0; stage < cut.num_stages(); ++stage) {
    std::vector<int>& ranks = ranks_of_stage[static_cast<size_t>(stage)];
    for (const int rank : probe.rank_of[static_cast<size_t>(stage)])
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
    if (std::find(ranks.begin(), ranks.end(), group.rank()) == ranks.end()) continue;
    own_stages.push_back(stage);
    first |= cut.reads_input(graph, stage);
    last |= stage == cut.last_stage();
  }
}

void PipelineRunner::State::drop_others() {
  const auto is_own = [&](int stage) { return std::find(own_stages.begin(), own_stages.end(), stage) != own_stages.end(); };
  tied = std::make_unique<TiedWeights>(graph, cut.tied, ranks_of_stage, group);
  for (size_t layer = 0; layer < cut.stage_of.size(); ++layer)
    if (!is_own(cut.stage_of[layer])) graph.drop_layer(layer);
}

const StageEdge& PipelineRunner::State::edge(int from, int to) const {
  for (const StageEdge& one : cut.edges)
    if (one.from == from && one.to == to) return one;
  fail(ErrorCode::kFailed, "pipeline: stage ", from, " hands nothing to stage ", to);
}

void PipelineRunner::State::run(const Action& action) {
  const int stage = action.stage, k = action.micro_batch, other = action.peer;
  const auto peer = [&] { return now->rank_of[static_cast<size_t>(other)][static_cast<size_t>(k)]; };
  switch (action.kind) {
    case ActionKind::kForward:
      return forward(stage, k);
    case ActionKind::kBackward:
      return backward(stage, k, /*whole=*/true);
    case ActionKind::kBackwardInput:
      return backward(stage, k, /*whole=*/false);
    case ActionKind::kBackwardWeight:
      return finish_backward(stage, k);
    case ActionKind::kSendForward: {
      const InFlight& flight = in_flight.at({stage, k});
      Tensors values;
      for (const int value : edge(stage, other).values) values.push_back(flight.outputs.at(value).detach());
      return mail.send({PacketKey::kActivations, stage, other, k}, peer(), std::move(values));
    }
    case ActionKind::kReceiveForward:
      return mail.wait_for({PacketKey::kActivations, other, stage, k}, peer());
    case ActionKind::kSendBackward: {
      const auto gradients = outgoing_gradients.find({PacketKey::kGradients, other, stage, k});
      if (gradients == outgoing_gradients.end())
        fail(ErrorCode::kFailed, "pipeline: no gradients of stage ", stage, ", micro-batch ", k, " to send");
      mail.send(gradients->first, peer(), std::move(gradients->second));
      outgoing_gradients.erase(gradients);
      return;
    }
    case ActionKind::kReceiveBackward:
      return mail.wait_for({PacketKey::kGradients, stage, other, k}, peer());
  }
}

void PipelineRunner::State::collect_inputs(int stage, int k, InFlight& flight) {
  for (const StageEdge& one : cut.edges) {
    if (one.to != stage) continue;
    Tensors values;
    if (now->rank_of[static_cast<size_t>(one.from)][static_cast<size_t>(k)] == group.rank()) {
      const InFlight& source = in_flight.at({one.from, k});
      for (const int value : one.values) values.push_back(source.outputs.at(value).detach());
    } else {
      values = mail.take({PacketKey::kActivations, one.from, stage, k});
    }
    if (values.size() != one.values.size())
      fail(ErrorCode::kFailed, "pipeline: stage ", stage, " got ", values.size(), " values from stage ", one.from, " and expected ",
           one.values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      if (at::isFloatingType(values[i].scalar_type())) values[i].requires_grad_();
      flight.inputs[one.values[i]] = std::move(values[i]);
    }
  }
}

std::map<int, at::Tensor> PipelineRunner::State::run_layers(int stage, const std::map<int, at::Tensor>& inputs,
                                                            const std::function<at::Tensor()>& model_input) {
  std::map<int, at::Tensor> values = inputs;
  std::set<int> kept;  // Read outside; other values are freed after their last use.
  for (const StageEdge& one : cut.edges)
    if (one.from == stage) kept.insert(one.values.begin(), one.values.end());
  if (stage == cut.last_stage()) kept.insert(static_cast<int>(cut.stage_of.size()) - 1);
  const std::vector<int>& own = cut.layers[static_cast<size_t>(stage)];
  std::map<int, int> last_use;
  for (const int layer : own)
    for (const int input : graph.layers()[static_cast<size_t>(layer)].inputs) last_use[input] = layer;
  at::Tensor from_outside;
  for (const int layer : own) {
    LayerGraph::Inputs arguments;
    const std::vector<int>& sources = graph.layers()[static_cast<size_t>(layer)].inputs;
    for (const int source : sources) {
      if (source == LayerGraph::kInput && !from_outside.defined()) from_outside = model_input();
      arguments.push_back(source == LayerGraph::kInput ? from_outside : values.at(source));
    }
    for (const int source : sources)
      if (source != LayerGraph::kInput && last_use[source] == layer && !kept.contains(source)) values.erase(source);
    values[layer] = run_layer_of_stage(graph, static_cast<size_t>(layer), arguments);
  }
  std::erase_if(values, [&](const auto& entry) { return !kept.contains(entry.first); });
  return values;
}

void PipelineRunner::State::forward(int stage, int k) {
  InFlight& flight = in_flight[{stage, k}];
  collect_inputs(stage, k, flight);
  const auto compute = [&] {
    std::map<int, at::Tensor> outputs = run_layers(stage, flight.inputs, [&] { return work->input(k); });
    if (stage == cut.last_stage()) {
      const int output = static_cast<int>(cut.stage_of.size()) - 1;
      flight.loss = work->loss(k, outputs.at(output));
      outputs.erase(output);
    }
    flight.outputs = std::move(outputs);
  };
  if (work->around_forward) work->around_forward(k, compute);
  else compute();
  statistics.most_kept = std::max(statistics.most_kept, ++num_kept);
}

/// Adds gradients sent by readers on other ranks; those of this rank are already there.
void PipelineRunner::State::take_gradients(int stage, int k, InFlight& flight) {
  for (const StageEdge& one : cut.edges) {
    if (one.from != stage || now->rank_of[static_cast<size_t>(one.to)][static_cast<size_t>(k)] == group.rank()) continue;
    const Tensors gradients = mail.take({PacketKey::kGradients, stage, one.to, k});
    for (size_t i = 0; i < gradients.size(); ++i) add_gradient(flight.output_gradients[one.values.at(i)], gradients[i]);
  }
}

void PipelineRunner::State::backward(int stage, int k, bool whole) {
  InFlight& flight = in_flight.at({stage, k});
  take_gradients(stage, k, flight);
  Tensors roots, gradients, leaves;
  std::vector<int> leaf_values;
  for (const auto& [value, output] : flight.outputs) {
    const at::Tensor& gradient = flight.output_gradients[value];
    if (!output.requires_grad() || !gradient.defined()) continue;
    roots.push_back(output);
    gradients.push_back(gradient);
  }
  if (flight.loss.defined() && flight.loss.requires_grad()) {
    roots.push_back(flight.loss);
    gradients.push_back(at::ones_like(flight.loss));
  }
  for (const auto& [value, input] : flight.inputs)
    if (input.requires_grad()) {
      leaves.push_back(input);
      leaf_values.push_back(value);
    }
  std::map<int, at::Tensor> input_gradients;
  if (whole) {
    if (!roots.empty()) torch::autograd::backward(roots, gradients);
    for (size_t i = 0; i < leaves.size(); ++i) input_gradients[leaf_values[i]] = leaves[i].grad();
  } else if (!roots.empty()) {
    std::vector<const SplitBackward*> before;
    for (auto other = in_flight.lower_bound({stage, 0}); other != in_flight.end() && other->first.first == stage; ++other)
      if (other->first.second != k) before.push_back(&other->second.split);
    const Tensors parts = flight.split.input_part(roots, gradients, leaves, before);
    for (size_t i = 0; i < leaves.size(); ++i) input_gradients[leaf_values[i]] = parts[i];
  }
  hand_back(stage, k, input_gradients);
  if (whole) {
    in_flight.erase({stage, k});
    --num_kept;
  } else {
    flight.inputs.clear();
    flight.outputs.clear();
    flight.output_gradients.clear();
    flight.loss.reset();
  }
}

void PipelineRunner::State::finish_backward(int stage, int k) {
  in_flight.at({stage, k}).split.weight_part();
  in_flight.erase({stage, k});
  --num_kept;
}

/// Passes gradients of a stage's inputs to the stages that computed them.
void PipelineRunner::State::hand_back(int stage, int k, const std::map<int, at::Tensor>& gradients) {
  for (const StageEdge& one : cut.edges) {
    if (one.to != stage) continue;
    Tensors of_edge;
    for (const int value : one.values) {
      const auto found = gradients.find(value);
      of_edge.push_back(found == gradients.end() ? at::Tensor() : found->second);
    }
    if (now->rank_of[static_cast<size_t>(one.from)][static_cast<size_t>(k)] == group.rank()) {
      InFlight& source = in_flight.at({one.from, k});
      for (size_t i = 0; i < of_edge.size(); ++i) add_gradient(source.output_gradients[one.values[i]], of_edge[i]);
    } else {
      outgoing_gradients[{PacketKey::kGradients, one.from, stage, k}] = std::move(of_edge);
    }
  }
}

PipelineRunner::PipelineRunner(LayerGraph& graph, StageCut cut, ScheduleMaker make_schedule, Group group)
    : state_(std::make_unique<State>(graph, std::move(cut), std::move(make_schedule), std::move(group))) {
  state_->find_own_stages();
  state_->drop_others();
}
PipelineRunner::~PipelineRunner() = default;

void PipelineRunner::step(int num_micro_batches, const PipelineWork& work) {
  State& s = *state_;
  const double began = steady_seconds();
  const double waited_before = s.mail.channels().waited_seconds();
  const int64_t sent_before = s.mail.channels().sent_bytes();
  s.now = &s.schedule_of(num_micro_batches);
  s.work = &work;
  s.in_flight.clear(), s.mail.forget(), s.outgoing_gradients.clear();
  s.num_kept = 0;
  s.tied->lend(s.mail);
  for (const Action& action : s.now->schedule.actions[static_cast<size_t>(s.group.rank())]) {
    const double start = steady_seconds();
    s.run(action);
    if (s.recorded) s.recorded->push_back({action, start, steady_seconds()});
  }
  s.tied->give_back(s.mail);
  s.mail.channels().flush();
  s.work = nullptr;
  s.statistics.waited_seconds = s.mail.channels().waited_seconds() - waited_before;
  s.statistics.compute_seconds = steady_seconds() - began - s.statistics.waited_seconds;
  s.statistics.sent_bytes = s.mail.channels().sent_bytes() - sent_before;
}

void PipelineRunner::begin_evaluation() {
  state_->mail.forget();
  state_->tied->lend(state_->mail);
}

at::Tensor PipelineRunner::evaluate(int64_t index, const std::function<at::Tensor()>& input) {
  State& s = *state_;
  at::NoGradGuard no_grad;
  const auto rank_of = [&](int stage) {
    const std::vector<int>& ranks = s.ranks_of_stage[static_cast<size_t>(stage)];
    return ranks[static_cast<size_t>(index) % ranks.size()];
  };
  std::map<int, std::map<int, at::Tensor>> outputs_of;
  at::Tensor result;
  for (const int stage : s.own_stages) {
    if (rank_of(stage) != s.group.rank()) continue;
    std::map<int, at::Tensor> inputs;
    for (const StageEdge& one : s.cut.edges) {
      if (one.to != stage) continue;
      const PacketKey key{PacketKey::kActivations, one.from, stage, index};
      Tensors values;
      if (rank_of(one.from) == s.group.rank()) {
        for (const int value : one.values) values.push_back(outputs_of[one.from].at(value));
      } else {
        s.mail.wait_for(key, rank_of(one.from));
        values = s.mail.take(key);
      }
      for (size_t i = 0; i < one.values.size(); ++i) inputs[one.values[i]] = values.at(i);
    }
    std::map<int, at::Tensor>& outputs = outputs_of[stage] = s.run_layers(stage, inputs, input);
    for (const StageEdge& one : s.cut.edges) {
      if (one.from != stage || rank_of(one.to) == s.group.rank()) continue;
      Tensors values;
      for (const int value : one.values) values.push_back(outputs.at(value));
      s.mail.send({PacketKey::kActivations, stage, one.to, index}, rank_of(one.to), std::move(values));
    }
    if (stage == s.cut.last_stage()) result = outputs.at(static_cast<int>(s.cut.stage_of.size()) - 1);
  }
  return result;
}

const StageCut& PipelineRunner::cut() const { return state_->cut; }
const std::vector<int>& PipelineRunner::own_stages() const { return state_->own_stages; }
bool PipelineRunner::has_first_stage() const { return state_->first; }
bool PipelineRunner::has_last_stage() const { return state_->last; }
bool PipelineRunner::runs(int stage, int micro_batch, int num_micro_batches) {
  return state_->schedule_of(num_micro_batches).rank_of[static_cast<size_t>(stage)][static_cast<size_t>(micro_batch)] ==
         state_->group.rank();
}
const Schedule& PipelineRunner::schedule(int num_micro_batches) { return state_->schedule_of(num_micro_batches).schedule; }
const PipelineStatistics& PipelineRunner::statistics() const { return state_->statistics; }
void PipelineRunner::record(std::vector<TimedAction>* actions) { state_->recorded = actions; }
void PipelineRunner::change_borrowed(BorrowedChange change) { state_->tied->change_borrowed(std::move(change)); }

}  // namespace cohort
