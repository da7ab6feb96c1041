// Parallel over ranks that have parts of a model. The parts come from spread_model(), as in `cohort train`. In addition:
//
// - A Sequential is run by the program itself, so each child is replaced by a call of its layer of the graph: the divided one under tp, or
// an
//   error if another rank has it. Its parameters are then this rank's, under their old names.
// - The program's own loss needs all classes: if tp divides them over ranks, the last layer gathers them. Cost: an all-gather of the output
//   in forward, nothing in backward.
// - A pipeline's micro-batches are equal runs of this rank's rows, each weighted by its part of them.
// - Ranks that must be given the same rows compare hashes of up to 32 elements (16 bytes a check).
#include "cohort/session/split_model.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <bit>
#include <unordered_set>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/data/sampler.h"
#include "cohort/models/registry.h"
#include "cohort/session/explain.h"
#include "cohort/tensor/collective_ops.h"

namespace cohort {

using torch::autograd::Node;

LossGraph::LossGraph(const std::vector<NamedTensor>& weights) { add_weights(weights); }

void LossGraph::add_weights(const std::vector<NamedTensor>& weights) {
  for (const NamedTensor& weight : weights)
    weights_.try_emplace(
        weight.tensor.unsafeGetTensorImpl(),
        Weight{weight.name, c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(weight.tensor.getIntrusivePtr())});
}

void LossGraph::add_output(const at::Tensor& output) {
  std::erase_if(outputs_, [](const auto& one) { return one.expired(); });
  has_output_ = true;
  if (output.grad_fn()) outputs_.emplace_back(output.grad_fn());
}

std::string LossGraph::weight_beside_output(const torch::autograd::edge_list& roots) const {
  std::unordered_set<const Node*> seen;
  for (const auto& output : outputs_)
    if (const auto node = output.lock()) seen.insert(node.get());
  std::vector<Node*> left;
  const auto add = [&](const torch::autograd::edge_list& edges) {
    for (const torch::autograd::Edge& edge : edges)
      if (edge.function && seen.insert(edge.function.get()).second) left.push_back(edge.function.get());
  };
  add(roots);
  while (!left.empty()) {
    Node* const node = left.back();
    left.pop_back();
    if (const auto* const leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node))
      if (const auto weight = weights_.find(leaf->variable.unsafeGetTensorImpl()); weight != weights_.end()) return weight->second.name;
    add(node->next_edges());
  }
  return "";
}

std::string LossGraph::weight_beside_output(const at::Tensor& loss) const {
  return loss.requires_grad() ? weight_beside_output({torch::autograd::impl::gradient_edge(loss)}) : "";
}

namespace {

/// Replaces a child of a Sequential: a call of its layer of the graph, with its parameters and buffers.
struct LayerCall : torch::nn::Module {
  LayerCall(std::shared_ptr<LayerGraph> model, size_t index)
      : torch::nn::Module(model->layers()[index].kind), graph(std::move(model)), layer(index) {
    const std::shared_ptr<Module>& inner = graph->layers()[layer].module;
    if (!inner) return;
    for (const auto& item : inner->named_parameters(false)) register_parameter(item.key(), item.value(), item.value().requires_grad());
    for (const auto& item : inner->named_buffers(false)) register_buffer(item.key(), item.value());
    for (const auto& item : inner->named_children()) register_module(item.key(), item.value());
    is_training_ = inner->is_training();
    Module::train(is_training_);
  }
  at::Tensor forward(const at::Tensor& input) { return graph->run_layer(layer, {input}); }
  void train(bool on) override {
    Module::train(on);
    if (const auto& inner = graph->layers()[layer].module) inner->train(on);
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    if (graph->is_part()) return graph->save(archive);  // Throws.
    if (const auto& inner = graph->layers()[layer].module; inner && inner->is_serializable()) inner->save(archive);
  }
  void load(torch::serialize::InputArchive& archive) override {
    if (graph->is_part()) return graph->load(archive);
    if (const auto& inner = graph->layers()[layer].module; inner && inner->is_serializable()) inner->load(archive);
  }
  std::shared_ptr<Module> clone(const std::optional<c10::Device>&) const override {
    fail(
        ErrorCode::kBadInput,
        "clone(): the layers of this Sequential are Parallel's, which a copy cannot be; clone it before Parallel is made, or build another "
        "and load() into it");
  }
  std::shared_ptr<LayerGraph> graph;
  size_t layer;
  bool is_training_ = true;
};

/// A hash of a tensor's shape and up to 32 of its elements.
uint64_t hash_of(const at::Tensor& tensor) {
  const int64_t count = tensor.numel(), step = std::max<int64_t>(1, count / 32);
  uint64_t hash = random_bits(static_cast<uint64_t>(count), tensor.dim());
  for (const int64_t size : tensor.sizes()) hash = random_bits(hash, size);
  if (count == 0) return hash;
  const at::Tensor flat = tensor.detach().reshape({-1}).slice(0, 0, count, step).to(at::kDouble).contiguous();
  for (int64_t i = 0; i < flat.numel(); ++i) hash = random_bits(hash, std::bit_cast<uint64_t>(flat.const_data_ptr<double>()[i]));
  return hash;
}

/// True on all ranks if they have different numbers (52 bits are compared). Collective.
bool differs(Group group, uint64_t bits) {
  const auto number = static_cast<double>(bits % (uint64_t{1} << 52));
  const at::Tensor extremes = at::empty({2}, at::kDouble);
  double* const values = extremes.data_ptr<double>();
  values[0] = number, values[1] = -number;
  group.all_reduce(extremes, Reduction::kMax, "what ranks must agree on");
  return values[0] != -values[1];
}

StageRequest request_of(const Layout& layout, const UpdateRule& rule, const at::Tensor& example) {
  const auto sample = [example, count = int64_t{layout.microbatches}] {
    return StageSample{example.narrow(0, 0, std::max<int64_t>(1, example.size(0) / count)), {}};
  };
  return {.layout = layout, .rule = rule, .sample = sample, .sample_name = "ParallelOptions.example, on which the layers are measured"};
}

}  // namespace

std::shared_ptr<LayerGraph> layers_of(torch::nn::Module& module) {
  if (auto* const graph = dynamic_cast<LayerGraph*>(&module)) return {std::shared_ptr<void>(), graph};  // Not owned.
  auto* const sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module);
  if (!sequential) return nullptr;
  return BuiltModel(torch::nn::Sequential(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(sequential->shared_from_this()))).graph;
}

SplitModel::SplitModel(torch::nn::Module& module, const Group& group, const Layout& layout, const UpdateRule& rule,
                       const at::Tensor& example)
    : group_(group), layout_(layout), graph_(layers_of(module)) {
  check(module, example);
  check_same_model(group_, distinct_parameters(*graph_));
  broadcast_model(*graph_, group_);
  if (layout.is_model_parallel()) loss_graph_ = std::make_shared<LossGraph>(distinct_parameters(*graph_));  // The program may have handles.
  spread_ = spread_model(*graph_, request_of(layout, rule, example), group_, "this model");
  if (layout.tp > 1) description_ = cohort::describe(spread_.division, layout);
  if (layout.is_model_parallel()) {
    graph_->set_part();
    make_replica();
  }
  if (is_pipeline()) describe(spread_.plan.stages);
  describe_batch_norm();
  if (loss_graph_) loss_graph_->add_weights(distinct_parameters(*graph_));
  if (layout.tp > 1) watch_ends();
  show_parts(module);
}

void SplitModel::make_replica() {
  const Mesh& mesh = place().mesh();
  std::vector<int> ranks;
  for (int rank = 0; rank < group_.size(); ++rank)
    if (!mesh.is_uniform() || mesh.point(rank).data == place().here().data) ranks.push_back(rank);
  replica_ = group_.split(ranks, "one copy of the model");
  if (layout_.tp == 1 || layout_.zero == 3) return;
  std::vector<NamedTensor> whole = distinct_parameters(*graph_);
  std::erase_if(whole, [&](const NamedTensor& parameter) { return place().sharded().shards.contains(parameter.name); });
  Group tensor = place().tensor();
  whole_weights_ = std::make_unique<WeightCheck>(tensor, std::move(whole));
}

/// Makes the output whole. Without stages the program may call forward() and backward() itself, so ranks compare the inputs of both.
void SplitModel::watch_ends() {
  const auto& layers = graph_->layers();
  const Group tensor = place().tensor();
  const bool compares = !is_pipeline();
  const auto compare = [tensor](const at::Tensor& given, const char* what, const char* instead) {
    if (differs(tensor, hash_of(given)))
      fail(ErrorCode::kBadInput, "ranks that divide one copy of the model (tp=", tensor.size(), ") were given ", what, "; ", instead);
  };
  const auto reads_input = [](const LayerGraph::Layer& layer) {
    return std::find(layer.inputs.begin(), layer.inputs.end(), LayerGraph::kInput) != layer.inputs.end();
  };
  if (const auto first = std::find_if(layers.begin(), layers.end(), reads_input); compares && first != layers.end()) {
    const auto slot =
        static_cast<size_t>(std::find(first->inputs.begin(), first->inputs.end(), LayerGraph::kInput) - first->inputs.begin());
    graph_->replace_layer(static_cast<size_t>(first - layers.begin()), nullptr,
                          [function = first->function, slot, compare](const LayerGraph::Inputs& in) {
                            compare(in[slot], "different rows", "give all of them the same batch, and session.local() of it");
                            return function(in);
                          });
  }
  if (!place().makes_output()) return;
  const bool gathers = place().sharded().logits_divided;
  graph_->replace_layer(layers.size() - 1, nullptr,
                        [function = layers.back().function, tensor, gathers, compares, compare, loss_graph = loss_graph_](const auto& in) {
                          at::Tensor output = function(in);
                          if (gathers) output = gather_from_ranks(output, output.dim() - 1, tensor);
                          if (compares && output.requires_grad())
                            output.register_hook([compare](const at::Tensor& gradient) {
                              compare(gradient, "different targets, or other losses of one output", "all of them compute the same loss");
                            });
                          loss_graph->add_output(output);
                          return output;
                        });
}

/// A backward() without a forward of this Parallel has succeeded.
void SplitModel::check_loss_again() { refuse_weight_in_loss(std::exchange(too_early_, {})); }

void SplitModel::check_loss(const torch::autograd::edge_list& roots) {
  if (!loss_graph_) return;
  const std::string weight = loss_graph_->weight_beside_output(roots);
  // Without a forward yet the loss may be from before Parallel was made, for which LibTorch throws an error that is explained.
  if (loss_graph_->has_output()) refuse_weight_in_loss(weight);
  else too_early_ = weight;
}

void SplitModel::refuse_weight_in_loss(const std::string& weight) const {
  if (weight.empty()) return;
  fail(ErrorCode::kBadInput, "the loss uses parameter ", weight,
       " not through the model's output (a penalty on weights, or on the gradient of an input, or the output of a layer inside); under "
       "layout ",
       to_text(layout_),
       " a rank has a part of the weights, which alone would count: penalties on weights are the optimizer's weight_decay, the others go "
       "with "
       "dp or zero");
}

void SplitModel::check_rows(const at::Tensor& input, const at::Tensor& target) {
  if (differs(replica_, random_bits(hash_of(input), hash_of(target))))
    fail(ErrorCode::kBadInput, "forward_backward(): ranks that share one copy of the model (layout ", to_text(layout_),
         ") were given different rows; give all of them the same batch, and session.local() of it");
}

void SplitModel::check_whole_weights() {
  if (!whole_weights_ || !differs(place().tensor(), static_cast<uint64_t>(whole_weights_->next()))) return;
  fail(ErrorCode::kFailed, "ranks that divide tensors (layout ", to_text(layout_),
       ") have come apart: weights that each of them has whole differ; they were given different rows, or drew different random numbers "
       "(seed with session.seed_rank() or seed_all())");
}

void SplitModel::check(torch::nn::Module& module, const at::Tensor& example) const {
  const std::string layout = to_text(layout_);
  if (!graph_)
    fail(ErrorCode::kBadInput, "layout ", layout, ": ", module.name(),
         " is one module, whose layers only its forward() knows; make it a torch::nn::Sequential or a cohort::LayerGraph, or use dp "
         "or zero=1, 2, 3");
  for (const LayerGraph::Layer& layer : graph_->layers())
    if (std::dynamic_pointer_cast<LayerCall>(layer.module))
      fail(ErrorCode::kBadInput, "layout ", layout, ": layer '", layer.name,
           "' is what another Parallel has made of it; a model can be in one Parallel, whose layout it keeps: build it anew");
  for (const NamedTensor& parameter : distinct_parameters(*graph_))
    if (!parameter.tensor.is_cpu())
      fail(ErrorCode::kBadInput, "layout ", layout, ": parameter ", parameter.name, " lies on ", parameter.tensor.device().str(),
           "; stages and divided layers exchange through the host's memory: keep the model on the CPU, or use dp");
  if (layout_.pp > 1 && (!example.defined() || example.dim() == 0 || example.size(0) == 0))
    fail(ErrorCode::kBadInput, "layout ", layout,
         " measures the layers to cut the model between them: give Parallel an input of some samples, {.example = x}; their values do not "
         "matter");
}

/// Makes the Sequential's own forward() that of the graph, and its parameters those of this rank.
void SplitModel::show_parts(torch::nn::Module& module) {
  auto* const sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module);
  if (!sequential) return;
  const auto children = sequential->named_children();
  for (size_t i = 0; i < graph_->layers().size(); ++i) {
    const auto call = std::make_shared<LayerCall>(graph_, i);
    *(sequential->begin() + static_cast<int64_t>(i)) = torch::nn::AnyModule(call);
    sequential->replace_module(children[i].key(), call);
  }
}

void SplitModel::describe(const StageAssignment& stages) {
  std::vector<std::string> lines;
  const int num_stages = static_cast<int>(stages.worker_of_stage.size());
  for (int stage = 0; stage < num_stages; ++stage) {
    std::string line = concat("stage ", stage, " on worker ", stages.worker_of_stage[static_cast<size_t>(stage)], ":");
    for (size_t layer = 0; layer < stages.stage_of.size(); ++layer)
      if (stages.stage_of[layer] == stage) line += " " + graph_->layers()[layer].name;
    lines.push_back(std::move(line));
  }
  if (!description_.empty()) lines.insert(lines.begin(), description_);
  description_ = join(lines, "; ");
}

/// Notes that batch norm takes statistics over fewer samples than the batch, which is another training.
void SplitModel::describe_batch_norm() {
  if (num_shares() * layout_.microbatches == 1) return;
  std::vector<std::string> norms;
  for (const LayerGraph::Layer& layer : graph_->layers())
    if (layer.kind.starts_with("batchnorm")) norms.push_back(layer.name);
  if (norms.empty()) return;
  description_ += concat(description_.empty() ? "" : "; ", "batch norm takes its statistics from each ",
                         layout_.microbatches > 1 ? "micro-batch" : "rank's samples", " by itself: ", join(norms, " "));
}

double SplitModel::run_pipeline(const Pass& pass) {
  PipelineRunner& pipeline = *place().pipeline();
  const int64_t num_rows = pass.input.size(0);
  std::vector<Share> pieces;
  for (int k = 0; k < layout_.microbatches; ++k) {
    const Share piece = share_of_rank(num_rows, k, layout_.microbatches, graph_->sample_granularity());
    if (piece.size() > 0) pieces.push_back(piece);
  }
  double loss_sum = 0;
  own_share_ = 0;
  if (!pieces.empty()) {
    const auto rows = [&](const at::Tensor& tensor, int k) {
      const Share& piece = pieces[static_cast<size_t>(k)];
      return tensor.narrow(0, piece.begin, piece.size());
    };
    const int num_pieces = static_cast<int>(pieces.size());
    const auto part = [&](int k) { return static_cast<double>(pieces[static_cast<size_t>(k)].size()) / static_cast<double>(num_rows); };
    PipelineWork work;
    work.input = [&](int k) { return rows(pass.input, k); };
    work.loss = [&](int k, const at::Tensor& output) {
      loss_graph_->add_output(output);
      const at::Tensor weighted = checked_loss(pass.loss, output, rows(pass.target, k)) * (part(k) * pass.weight);
      refuse_weight_in_loss(loss_graph_->weight_beside_output(weighted));
      loss_sum += weighted.item<double>();
      return weighted;
    };
    work.around_forward = [&](int k, const std::function<void()>& forward) {
      StepContext context = pass.context;
      context.first_sample += pieces[static_cast<size_t>(k)].begin;
      const StepContextScope scope(context);
      forward();
    };
    pipeline.step(num_pieces, work);
    for (int k = 0; k < num_pieces; ++k)
      if (pipeline.runs(pipeline.own_stages().front(), k, num_pieces)) own_share_ += part(k);
  }
  const at::Tensor sum = at::empty({1}, at::kDouble);
  sum.data_ptr<double>()[0] = place().here().tensor == 0 && place().makes_output() ? loss_sum / num_shares() : 0;
  group_.all_reduce_sum(sum, "the loss");
  return sum.data_ptr<double>()[0];
}

at::Tensor SplitModel::forward(const at::Tensor& input) {
  if (!is_pipeline()) return graph_->forward(input);
  at::NoGradGuard no_grad;
  PipelineRunner& pipeline = *place().pipeline();
  pipeline.begin_evaluation();
  at::Tensor output = pipeline.evaluate(0, [&] { return input; });
  std::string form;
  if (output.defined()) form = Json{{"shape", output.sizes().vec()}, {"type", static_cast<int>(output.scalar_type())}}.dump();
  const std::vector<std::string> forms = replica_.all_gather_text(form, "who has the model's output");
  const auto maker = std::find_if(forms.begin(), forms.end(), [](const std::string& text) { return !text.empty(); });
  const Json known = Json::parse(*maker);
  if (output.defined()) output = output.contiguous();
  else output = at::empty(known.at("shape").get<std::vector<int64_t>>(), static_cast<at::ScalarType>(known.at("type").get<int>()));
  replica_.broadcast(output, static_cast<int>(maker - forms.begin()), "the model's output");
  return output;
}

}  // namespace cohort
