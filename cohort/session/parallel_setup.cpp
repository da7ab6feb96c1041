// Which engine does the work:
//   dp, the program's own optimizer     DataParallel (mean over ranks) in front of it: weights and state whole on every rank
//   dp, the optimizer given here        one copy of the weights a host where ranks share memory, else replicated
//   zero=1..3                           ZeroDataParallel
//   pp, tp, recompute                   one of the last two, over the ranks that have the same part of the model (split_model.h)
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/job/layout.h"
#include "cohort/job/option_rules.h"
#include "cohort/job/refusals.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/batch_norm/convert_sync_batch_norm.h"
#include "cohort/parallel/make_strategy.h"
#include "cohort/parallel/watch/backward_watch.h"
#include "cohort/session/optimizer_pieces.h"
#include "cohort/session/parallel_state.h"

namespace cohort {
namespace {

Layout layout_of(const ParallelOptions& options, const Session& session) {
  const std::string& text = options.layout.empty() ? session.layout() : options.layout;
  Layout layout;
  if (text.empty() || text == "dp") {
    layout.dp = session.size();
  } else {
    layout = parse_layout(text, session.size());
  }
  if (options.optimizer.index() == 0 && (layout.zero > 0 || layout.is_model_parallel() || layout.recompute != "none"))
    fail(ErrorCode::kBadInput, "layout ", text,
         layout.zero > 0 ? " divides the optimizer's state" : " leaves each rank a part of the model",
         ", which LibTorch's optimizers cannot follow: give Parallel its options, "
         "{.optimizer = torch::optim::AdamWOptions(1e-3)} (or SGDOptions, AdamOptions), and call step() without an optimizer; all others "
         "(RMSprop, Adagrad, and LBFGS, whose closure computes the loss several times a step) go with layout dp: step(optimizer), "
         "step(optimizer, closure)");
  if (options.compress != "none") layout.compress = options.compress;
  if (layout.accumulate > 0 || !layout.precision.empty() || !layout.shares.empty())
    fail(ErrorCode::kBadInput, "layout ", text, ": accumulate, precision and shares are for `cohort train`; here the loop says how often ",
         "backward() runs, in which precision and on which samples, so leave them out");
  if (!is_step(layout.sync))
    fail(ErrorCode::kBadInput, "layout ", text, ": sync=", layout.sync,
         " is for `cohort train`, whose loop knows when workers exchange; here use sync=step");
  if (const auto refused = refusal_of(layout)) throw Error(ErrorCode::kBadInput, *refused);
  if (layout.is_model_parallel() && options.sync_batch_norm)
    fail(ErrorCode::kBadInput, "layout ", to_text(layout), ": sync_batch_norm goes with dp and zero; use a norm over groups or layers");
  const Config defaults;
  check_options({.config = defaults, .layout = layout, .num_ranks = session.size()});
  return layout;
}

/// A second Parallel would find gradients hooked, and under zero=3 weights that are not there.
torch::nn::Module& of_no_other(torch::nn::Module& module) {
  for (const NamedTensor& parameter : distinct_parameters(module))
    if (parameter.tensor.requires_grad()) check_no_gradient_hook(parameter);
  return module;
}

}  // namespace

Parallel::State::State(torch::nn::Module& module_, const Session& session_, ParallelOptions options_)
    : module(of_no_other(module_)),
      session(session_),
      options(std::move(options_)),
      layout(layout_of(options, session)),
      changed_weights(session.size() > 1 ? ChangedWeights(module) : ChangedWeights()) {
  const std::vector<at::Tensor> weights = module.parameters();
  if (options.optimizer.index() != 0 && std::none_of(weights.begin(), weights.end(), [](const auto& one) { return one.requires_grad(); }))
    fail(ErrorCode::kBadInput, "Parallel: ", module.name(), " has no parameter that requires a gradient, so there is nothing to train");
  if (options.sync_batch_norm) share_batch_norm();
  if (options.optimizer.index() == 0) {
    data_parallel = std::make_unique<DataParallel>(
        module, session.group(),
        DataParallelOptions{.buffers = options.buffers, .name = options.name, .compress = layout.compress, .seed = session.seed()});
  } else {
    make_strategy();
  }
  session.divide_by(split ? split->share_index() : session.rank(), num_replicas(), split ? split->place().random_stream() : session.rank());
  module_watch.emplace(trained());
  session.add_parameters(module);
  changed_weights.look_again();
  hook_parameters();
  if (session.size() > 1 || layout.zero > 1) gradients = HiddenGradients(distinct_parameters(trained()));
  hide_gradients();
}

void Parallel::State::share_batch_norm() {
  Group group = session.group();
  if (group.size() > 1) {
    std::vector<int> all(session.size());
    std::iota(all.begin(), all.end(), 0);
    group = group.split(all, "batch norm");  // Beside the gradients' own order.
  }
  if (convert_sync_batch_norm(module, group) == 0)
    fail(ErrorCode::kBadInput, "Parallel with sync_batch_norm: ", module.name(),
         " has no torch::nn::BatchNorm1d, 2d or 3d, and of a norm of the program's own Cohort knows nothing; leave the option out");
}

void Parallel::State::make_strategy() {
  if (options.buffers != BufferPolicy::kAverage)
    fail(ErrorCode::kBadInput, "Parallel: buffers = ", name_of(options.buffers),
         " goes with an optimizer of the program's own under layout dp");
  const UpdateRule rule = update_rule_of(options.optimizer, &learning_rate);
  if (layout.is_model_parallel() || layout.recompute != "none")
    split = std::make_unique<SplitModel>(module, session.group(), layout, rule, options.example);
  strategy = cohort::make_strategy(trained(), split ? split->data() : session.group(),
                                   {.zero = layout.zero, .rule = rule, .compress = layout.compress, .seed = session.seed()});
  if (has_parts()) strategy->set_counted_elsewhere(split->place().counted_elsewhere(split->part()));
  if (is_pipeline()) strategy->hold_gradients();
  strategy->set_gradient_factor(1.0 / num_replicas());
  strategy->set_control(kRateSlot, static_cast<float>(learning_rate));
  announced_rate = learning_rate;
}

}  // namespace cohort
