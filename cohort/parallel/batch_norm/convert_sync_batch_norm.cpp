// How a model's own batch norm layers are converted. C++ has no forward hooks, BatchNorm2dImpl::forward is not virtual, and users hold
// layers by typed pointers or inside lambdas, so a layer can be neither replaced nor subclassed afterwards. But all of them call the
// operator aten::batch_norm with the tensors of the layer. So:
//
//   1. the first conversion registers a kernel of our own for aten::batch_norm, which LibTorch defines as a composite of others: the
//      dispatcher prefers it on CPU and CUDA. A process that converts nothing never registers it and pays nothing;
//   2. conversion notes for each layer the tensor that it is recognised by: running_mean, else weight. A layer that has neither gets a
//      weight of ones that is not registered as a parameter: a name tag, never computed with;
//   3. the kernel looks the tensor up (a hash table under a shared lock: well below a microsecond). Found, and the layer trains:
//      sync_batch_norm(); else LibTorch's own definition.
//
// A table entry holds a weak reference to its tensor, which reserves the address (not the memory). Entries of destroyed layers are dropped
// at the next conversion.

#include "cohort/parallel/batch_norm/convert_sync_batch_norm.h"

#include <ATen/ops/batch_norm_native.h>
#include <ATen/ops/ones.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/library.h>
#include <torch/nn/modules/batchnorm.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/layers/ghost_batch_norm.h"
#include "cohort/parallel/batch_norm/sync_batch_norm.h"

namespace cohort {
namespace {

using torch::nn::BatchNorm1dImpl;
using torch::nn::BatchNorm2dImpl;
using torch::nn::BatchNorm3dImpl;

struct Entry {
  SyncBatchNormLayer layer;
  std::weak_ptr<torch::nn::Module> module;
  bool tagged = false;  ///< The weight only identifies the layer.
};

/// The converted layers of this process. Never destroyed: layers may run while the process ends.
class Layers {
 public:
  static Layers& instance() {
    static Layers* const layers = new Layers;
    return *layers;
  }

  std::shared_ptr<const Entry> find(const at::Tensor& key) const {
    if (!key.defined()) return nullptr;
    const std::shared_lock lock(mutex_);
    const auto found = entries_.find(key.unsafeGetTensorImpl());
    return found == entries_.end() ? nullptr : found->second.entry;
  }
  void set(const at::Tensor& key, Entry entry) {
    const std::unique_lock lock(mutex_);
    entries_.insert_or_assign(key.unsafeGetTensorImpl(),
                              Slot{std::make_shared<const Entry>(std::move(entry)), WeakTensor(key.getIntrusivePtr())});
  }
  void erase(const at::Tensor& key) {
    const std::unique_lock lock(mutex_);
    entries_.erase(key.unsafeGetTensorImpl());
  }
  void drop_ended() {
    const std::unique_lock lock(mutex_);
    std::erase_if(entries_, [](const auto& item) { return item.second.tensor.expired() || item.second.entry->module.expired(); });
  }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Slot {
    std::shared_ptr<const Entry> entry;
    WeakTensor tensor;
  };
  mutable std::shared_mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Slot> entries_;
};

at::Tensor or_undefined(const std::optional<at::Tensor>& tensor) { return tensor.value_or(at::Tensor()); }

/// aten::batch_norm of this process after the first conversion.
at::Tensor batch_norm_kernel(const at::Tensor& input, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
                             const std::optional<at::Tensor>& running_mean, const std::optional<at::Tensor>& running_var, bool training,
                             double momentum, double epsilon, bool cudnn_enabled) {
  const at::Tensor mean = or_undefined(running_mean);
  const std::shared_ptr<const Entry> entry = Layers::instance().find(mean.defined() ? mean : or_undefined(weight));
  if (!entry) return at::native::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, epsilon, cudnn_enabled);
  const std::optional<at::Tensor> real_weight = entry->tagged ? std::nullopt : weight;
  // A layer without running statistics passes training in eval mode too; ask the layer.
  const std::shared_ptr<torch::nn::Module> module = entry->module.lock();
  if (!training || !module || !module->is_training()) {
    return at::native::batch_norm(input, real_weight, bias, running_mean, running_var, training, momentum, epsilon, cudnn_enabled);
  }
  return sync_batch_norm(input,
                         {.weight = or_undefined(real_weight),
                          .bias = or_undefined(bias),
                          .running_mean = mean,
                          .running_var = or_undefined(running_var),
                          .momentum = momentum,
                          .epsilon = epsilon},
                         entry->layer);
}

/// The plain keys are for inference mode, which skips autograd's.
void register_kernel_once() {
  [[gnu::used]] static const auto* const libraries = [] {  // Used: so that leak checkers see the reference.
    auto* const made = new std::vector<torch::Library>;    // Never freed: LibTorch's dispatcher may end before our statics.
    for (const c10::DispatchKey key :
         {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA, c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) {
      made->emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__).impl("batch_norm", TORCH_FN(batch_norm_kernel));
    }
    return made;
  }();
}

template <typename Layer>
bool convert_as(const std::string& name, const std::shared_ptr<torch::nn::Module>& module, const Group& group, int64_t number) {
  auto* const layer = dynamic_cast<Layer*>(module.get());
  if (!layer) return false;
  bool tagged = false;
  if (!layer->running_mean.defined()) {
    const std::shared_ptr<const Entry> before = Layers::instance().find(layer->weight);
    tagged = !layer->weight.defined() || (before && before->tagged);
    if (!layer->weight.defined() && group.size() > 1) layer->weight = at::ones({layer->options.num_features()});
  }
  const at::Tensor& key = layer->running_mean.defined() ? layer->running_mean : layer->weight;
  if (group.size() > 1) {
    Layers::instance().set(key, {{group, name, number}, module, tagged});
  } else if (key.defined()) {
    Layers::instance().erase(key);
    if (tagged) layer->weight = at::Tensor();
  }
  return true;
}

using NamedModule = std::pair<std::string, std::shared_ptr<torch::nn::Module>>;

/// `module` (where a shared_ptr owns it) and all its submodules.
std::vector<NamedModule> modules_of(const torch::nn::Module& module) {
  std::vector<NamedModule> modules;
  const auto self = std::const_pointer_cast<torch::nn::Module>(module.weak_from_this().lock());
  if (self) modules.emplace_back(module.name(), self);
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false)) modules.emplace_back(item.key(), item.value());
  return modules;
}

bool is_batch_norm(const torch::nn::Module& module) {
  return dynamic_cast<const BatchNorm1dImpl*>(&module) || dynamic_cast<const BatchNorm2dImpl*>(&module) ||
         dynamic_cast<const BatchNorm3dImpl*>(&module);
}

}  // namespace

int convert_sync_batch_norm(torch::nn::Module& module, Group group) {
  if (is_batch_norm(module) && module.weak_from_this().expired()) {
    fail(ErrorCode::kBadInput, "sync batch norm: the layer ", module.name(),
         " is not owned by a shared_ptr; make it with torch::nn::BatchNorm2d(...)");
  }
  if (group.size() > 1) register_kernel_once();
  Layers::instance().drop_ended();
  int num_layers = 0;
  std::unordered_set<const torch::nn::Module*> seen;  // A layer used twice has two names.
  for (const auto& [name, child] : modules_of(module)) {
    if (!seen.insert(child.get()).second) continue;
    const bool converted = convert_as<BatchNorm1dImpl>(name, child, group, num_layers) ||
                           convert_as<BatchNorm2dImpl>(name, child, group, num_layers) ||
                           convert_as<BatchNorm3dImpl>(name, child, group, num_layers);
    if (converted) ++num_layers;
  }
  const auto make_divisible = [&](torch::nn::Module& any) {
    auto* const graph = dynamic_cast<LayerGraph*>(&any);
    if (graph && graph->sample_granularity() == LayerGraph::kWholeBatch) graph->set_sample_granularity(1);
  };
  if (num_layers > 0 && group.size() > 1) {
    make_divisible(module);
    for (const NamedModule& item : modules_of(module)) make_divisible(*item.second);
  }
  return num_layers;
}

std::string small_batch_warning(const torch::nn::Module& module, const StatisticSamples& statistic) {
  if (statistic.samples >= kFewSamples) return "";
  int num_layers = is_batch_norm(module) ? 1 : 0;
  bool ghost = dynamic_cast<const GhostBatchNorm2dImpl*>(&module) != nullptr;
  for (const NamedModule& item : modules_of(module)) {
    if (item.second.get() == &module) continue;
    num_layers += is_batch_norm(*item.second) ? 1 : 0;
    ghost = ghost || dynamic_cast<const GhostBatchNorm2dImpl*>(item.second.get()) != nullptr;
  }
  if (num_layers == 0 && !ghost) return "";
  const int64_t batch = statistic.global_batch, workers = statistic.num_workers, pieces = statistic.num_micro_batches;
  const auto plural = [](int64_t number, const std::string& what) { return concat(number, " ", what, number == 1 ? "" : "s"); };
  std::string text =
      concat(num_layers > 0 ? "batch norm" : "ghost batch norm", " takes its statistics from ", plural(statistic.samples, "sample"));
  if (batch > 0 && workers > 1) text += concat(" (a batch of ", batch, " over ", workers, " workers)");
  text += concat("; below ", kFewSamples,
                 " they are so noisy that accuracy suffers (ResNet-50 on ImageNet: error 23.7 % with 16, 27.3 % with 4, 34.7 % with 2). ");

  const int64_t enough = batch / (kFewSamples * pieces);  // Workers.
  if (batch > 0 && workers > 1 && enough >= 1) text += concat("At this batch ", plural(enough, "worker"), " would do. ");
  else if (batch > 0 && workers == 1 && pieces > 1 && batch >= kFewSamples)
    text += concat("At this batch ", batch / kFewSamples, batch / kFewSamples == 1 ? " micro-batch" : " micro-batches", " would do. ");
  std::vector<std::string> ways;
  if (num_layers > 0 && (workers > 1 || batch == 0))
    ways.push_back(name_settings("--sync-batch-norm") +
                   (statistic.exchange_seconds > 0
                        ? concat(" (", 2 * num_layers * pieces, " small exchanges a step, about ",
                                 human_seconds(2.0 * static_cast<double>(num_layers * pieces) * statistic.exchange_seconds), ")")
                        : std::string(" (two small exchanges a layer and micro-batch)")));
  ways.push_back(batch >= kFewSamples ? concat("norm=ghost,ghost=", kFewSamples, " (no exchange; at this batch samples for ",
                                               plural(std::max<int64_t>(1, batch / kFewSamples), "worker"), ")")
                                      : std::string("norm=ghost with a larger ghost=N"));
  ways.push_back("norm=group (no exchange, statistics of one sample)");
  if (batch > 0) {
    const int64_t wanted = kFewSamples * workers * pieces;
    if (wanted > batch)
      ways.push_back(concat(name_settings("--global-batch "), wanted, " (",
                            std::round(10.0 * static_cast<double>(wanted) / static_cast<double>(batch)) / 10,
                            " times the samples a step, and up to as many times its seconds)"));
  } else {
    ways.push_back(name_settings("a larger --global-batch or fewer workers"));
  }
  return text + "Or: " + join(ways, "; ");
}

}  // namespace cohort
