// Decides whether a layout is the same training as one process. Steps:
//   1. The layout is trained twice; if the two runs differ in a bit, the verdict is different.
//   2. One process does the same arithmetic in the same order: the micro-batches of the ranks sequentially, tensor-parallel products in the
//      pieces of the ranks, gradients of values that cross stages (train/step/sequential_ranks.h, pieces.h). Equal bits are the same
//      training, in any precision. Batch norm over several replicas has no such process; its reference is one process that takes each
//      micro-step whole.
//   3. If bits differ, each tensor has a bound, relative to its update w - w0. The reference is trained again with initial weights nudged
//   by
//      one unit of its arithmetic, and a layout may differ by kLastBits roundings of its values, kSums of its update (sums in another
//      order) and kMargin times the further effect of the nudge. Beyond the bound the verdict is different. A bound above kCeiling of the
//      update could hide a learning rate that is 1 % off: not proven. Tensors that only rounding moves (a bias right before batch norm has
//      no gradient) are ignored.
//   4. A model may depend on how its batch is divided, in which case the ranks and the process of step 2 agree: the gradients of one batch,
//      divided and whole, are compared (batch_division.cpp).
//   5. The process of step 2 uses the training code of the ranks, so it is compared with one that takes each batch whole: they may differ
//   by
//      kWhole of the update, or by what rounding explains.
// Cost: two trainings by the layout, and one or two by one process for all layouts of the same arithmetic.
#include "cohort/verify/verify.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/checkpoint/compare.h"
#include "cohort/job/job.h"
#include "cohort/job/specs/sync_mode.h"
#include "cohort/train/check_run.h"
#include "cohort/verify/batch_division.h"
#include "cohort/verify/trainings.h"

namespace cohort {

namespace {

/// True if an exchange takes the workers' mean, without an outer optimizer.
bool averages(const SyncMode& sync, const Config& config) {
  return sync.kind == SyncKind::kLocal || (sync.kind == SyncKind::kDiloco && config.outer_lr == 1 && config.outer_momentum == 0);
}

/// Asynchronous modes equal sync=step for a single worker, and with plain SGD if all gradients of a version are applied one after the other
/// or all workers are averaged after every step.
void check_served(const SyncMode& sync, const Config& config, const Layout& layout) {
  if (layout.num_ranks() == 1 && (sync.quorum == 0 || averages(sync, config))) return;
  const bool waits_for_all = sync.quorum == layout.num_ranks() && sync.number == 1 && averages(sync, config);
  const bool is_step = waits_for_all || (sync.kind == SyncKind::kStale && sync.number == 0 && config.remedy.empty());
  if (!is_step)
    fail(ErrorCode::kBadInput, "verify: sync=", layout.sync, config.remedy.empty() ? "" : name_settings(" with --remedy " + config.remedy),
         " is another training by design, so there is nothing to compare; verify the layout with sync=step",
         sync.quorum > 0 ? name_settings(", or see the exchange itself with sync=local:1:quorum=N of N workers and --optimizer sgd")
                         : name_settings(", or see the server itself with sync=stale:0 and --optimizer sgd, or with one worker"));
  if (config.optimizer != "sgd" || config.clip_norm > 0)
    fail(ErrorCode::kBadInput, "verify: sync=", layout.sync,
         config.clip_norm > 0 ? concat(name_settings(" with --clip-norm "), config.clip_norm)
                              : name_settings(" with --optimizer " + config.optimizer),
         sync.quorum == 0       ? " moves the weights a worker's share at a time, which is another training by design; "
         : config.clip_norm > 0 ? " is another training by design: each worker clips its own gradient; "
                                : " keeps a state in each worker, which no single process has; ",
         name_settings("use --optimizer sgd without --clip-norm"), ", or sync=step");
}

/// Local steps equal sync=step for a single worker, and with plain SGD, which is linear, if workers are averaged after every step.
void check_sync(const Config& config, const Layout& layout) {
  const SyncMode& sync = layout.sync;
  if (sync.kind == SyncKind::kStep) return;
  if (!is_local(sync)) return check_served(sync, config, layout);
  const std::string outer = sync.kind == SyncKind::kDiloco ? concat(name_settings(" with --outer-lr "), config.outer_lr,
                                                                    name_settings(" and --outer-momentum "), config.outer_momentum)
                                                           : "";
  const bool is_alone = num_pipelines(layout) == 1;
  if (!averages(sync, config) || (sync.number > 1 && !is_alone))
    fail(ErrorCode::kBadInput, "verify: sync=", layout.sync, outer,
         " is another training by design, so there is nothing to compare; verify the layout with sync=step",
         name_settings(", or see the exchange itself with sync=local:1 (or diloco:1 --outer-lr 1 --outer-momentum 0) and --optimizer sgd"));
  if (!is_alone && config.optimizer != "sgd")
    fail(ErrorCode::kBadInput, "verify: sync=", layout.sync, name_settings(" with --optimizer "), config.optimizer,
         name_settings(" keeps a state in each worker, which no single process has; use --optimizer sgd, or sync=step"));
  if (!is_alone && config.clip_norm > 0)
    fail(ErrorCode::kBadInput, "verify: sync=", layout.sync, name_settings(" with --clip-norm "), config.clip_norm,
         name_settings(" is another training by design: each worker clips its own gradient; leave --clip-norm out, or use sync=step"));
}

/// Error(kBadInput) for a layout or an option that is another training by design, or that is invalid.
void check_verifiable(const Config& config, const Layout& layout, const DataSet& data) {
  check_sync(config, layout);
  if (layout.compress != "none")
    fail(ErrorCode::kBadInput,
         "verify: compressed gradients are another training by design, so there is nothing to compare; verify the layout with "
         "compress=none");
  if (config.shares == "auto")
    fail(ErrorCode::kBadInput,
         name_settings("verify: --shares auto follows the speed of the moment, so no two runs are alike; give numbers, as 3:1"));
  check_job(resolve(config, layout), data);
}

constexpr double kMargin = 8, kLastBits = 2, kSums = 32;
constexpr double kCeiling = 0.01, kWhole = 0.05;
constexpr double kEpsilon = std::numeric_limits<float>::epsilon();

std::string of_bias() {
  return name_settings(
      " (all of its update may be rounding: a bias right before batch norm has no gradient, and Adam makes a step of what rounding leaves; "
      "leave it out of the model, or verify with --optimizer momentum)");
}

void conclude(VerifyResult& result, Verdict verdict, const std::string& reason) {
  result.verdict = verdict;
  result.reason = reason;
}

/// The relative spacing of numbers in that precision.
double unit_of(const std::string& precision) { return precision == "bf16" ? 1.0 / 512 : precision == "fp16" ? 1.0 / 4096 : kEpsilon; }

/// The distance of all weights, relative to their update.
double distance(const std::vector<TensorDifference>& tensors) {
  double difference = 0, update = 0;
  for (const TensorDifference& tensor : tensors) {
    if (tensor.kind != TensorDifference::Kind::kCompared) return std::numeric_limits<double>::infinity();
    if (!tensor.name.starts_with("model/")) continue;
    difference += tensor.squared_difference;
    update += tensor.squared_update;
  }
  if (difference == 0) return 0;
  return update > 0 ? std::sqrt(difference / update) : std::numeric_limits<double>::infinity();
}

bool all_equal(const std::vector<TensorDifference>& tensors) {
  return !tensors.empty() && std::all_of(tensors.begin(), tensors.end(), [](const TensorDifference& tensor) { return tensor.is_equal(); });
}

/// The effect of rounding a tensor's values.
double last_bits(const TensorDifference& tensor) { return kLastBits * kEpsilon * std::max(tensor.max_reference, tensor.max_update); }

/// The stages that the checkpoint of a training describes.
StagesOfRun stages_of(const Checkpoint& run, const Layout& layout) {
  StagesOfRun result;
  std::map<std::string, LayerStage> by_name;
  for (const Json& layer : run.state().value("extra", Json::object()).value("stages", Json::array())) {
    result.layers.push_back({layer.at("layer").get<std::string>(), layer.at("stage").get<int>(), layer.at("worker").get<int>()});
    by_name[result.layers.back().layer] = result.layers.back();
  }
  const auto place = [&](const std::string& parameter) { return by_name[parameter.substr(0, parameter.find('.'))]; };
  const Json aliases = run.state().value("aliases", Json::object());
  for (const auto& [alias, name] : aliases.items()) {
    const LayerStage owner = place(name.get<std::string>()), user = place(alias);
    const bool of_same_worker = user.worker == owner.worker;
    // Within a stage autograd adds. Replicas that take turns at several stages add in an order that is not modelled.
    if (of_same_worker && (user.stage == owner.stage || !layout.is_even())) continue;
    result.tied.push_back({alias, owner.stage, user.stage, of_same_worker});
  }
  return result;
}

/// The layout with the cut that a training found, since split=auto and branches measure and may find another one next time; the order of
/// gradient sums depends on the cut.
Layout with_cut(const std::vector<LayerStage>& layers, Layout layout) {
  if (layout.pp == 1 || !layout.stages.empty() || layers.empty()) return layout;
  if (layout.split == "auto") {
    std::vector<std::string> cuts;
    for (size_t number = 1; number < layers.size(); ++number)
      if (layers[number].stage != layers[number - 1].stage) cuts.push_back(std::to_string(number));
    layout.split = join(cuts, "/");
  } else if (layout.split == "branches") {
    layout.split = Layout().split;
    for (const LayerStage& layer : layers) {
      if (static_cast<size_t>(layer.stage) >= layout.stages.size())
        layout.stages.resize(static_cast<size_t>(layer.stage) + 1, LayoutStage{{}, 0, layout.dp});
      layout.stages[static_cast<size_t>(layer.stage)].layers.push_back(layer.layer);
      layout.stages[static_cast<size_t>(layer.stage)].worker = layer.worker;
    }
  }
  return layout;
}

/// A key of how a layout divides a batch.
std::string division_key(const Layout& layout) {
  std::string key = concat(num_pipelines(layout), " x ", layout.microbatches);
  if (layout.is_even()) return key;
  for (const LayoutStage& stage : layout.stages) key += concat(", ", join(stage.layers, " "), " x ", stage.dp);
  return key;
}

/// True if the model has tensors without optimizer state, which are buffers as far as a checkpoint shows.
bool has_buffers(const Checkpoint& run) {
  const std::vector<std::string> names = run.tensor_names();
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    const std::string state = "optimizer/" + name.substr(std::min(name.size(), size_t{6}));
    return name.starts_with("model/") &&
           std::none_of(names.begin(), names.end(), [&](const std::string& other) { return other.starts_with(state + "/"); });
  });
}

/// True if training has moved a weight, and if there is optimizer state also some of it.
bool has_trained(const std::vector<TensorDifference>& tensors) {
  const auto moved = [&](const std::string& prefix) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const auto& tensor) { return tensor.name.starts_with(prefix) && tensor.max_update > 0; });
  };
  const bool has_state =
      std::any_of(tensors.begin(), tensors.end(), [](const auto& tensor) { return tensor.name.starts_with("optimizer/"); });
  return moved("model/") && (!has_state || moved("optimizer/"));
}

Json loss_scaler_of(const Checkpoint& run) { return run.state().value("extra", Json::object()).value("loss_scaler", Json()); }

double ratio(const TensorVerdict& tensor) {
  if (tensor.difference == 0) return 0;
  if (std::isinf(tensor.bound)) return 1;
  return tensor.bound > 0 ? tensor.difference / tensor.bound : std::numeric_limits<double>::infinity();
}

/// Tensors without a gradient (in fp32): rounding explains their whole update, and all others, which are most, have small bounds.
std::vector<std::string> moved_by_rounding_alone(const std::vector<TensorVerdict>& tensors) {
  std::vector<std::string> names;
  size_t num_sharp = 0;
  for (const TensorVerdict& tensor : tensors) {
    if (tensor.bound > 1) names.push_back(tensor.name);
    else if (tensor.bound <= kCeiling) ++num_sharp;
  }
  const bool is_clear = names.size() + num_sharp == tensors.size() && num_sharp > names.size();
  return is_clear ? names : std::vector<std::string>();
}

void sort_by_ratio(std::vector<TensorVerdict>& tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorVerdict& a, const TensorVerdict& b) { return ratio(a) > ratio(b); });
}

class Verifier {
 public:
  Verifier(const Config& config, const DataSet& data) : config_(config), data_(data), trainings_(config, data) {}

  VerifyResult verify(const Layout& layout, const std::vector<Fault>& faults) {
    const Checkpoint run = trainings_.ranks(layout);
    stages_ = stages_of(run, layout);
    layout_ = with_cut(stages_.layers, layout);
    // Statistics over the samples of several replicas cannot be computed share by share. Replicas of stages that take turns keep
    // statistics, and lend weights, in an order that is not modelled.
    const bool alone = layout.is_even() && num_pipelines(layout) == 1;
    has_strict_ = alone || (!config_.sync_batch_norm && (layout.is_even() || (stages_.tied.empty() && !has_buffers(run))));
    VerifyResult result;
    result.layout = layout;
    result.steps = run.step();
    result.repeats = all_equal(compare_checkpoints(run, trainings_.ranks(layout_)));
    const std::vector<TensorDifference> differences = compare_checkpoints(reference(), run, &trainings_.initial());
    const bool bits = has_strict_ && all_equal(differences);
    if (has_strict_) result.strict = bits || differences.empty() ? 0 : differences.front().difference_of_update();
    result.to_one_process = distance(compare_checkpoints(trainings_.one_process(), run, &trainings_.initial()));
    result.tensors = judged(differences, bits);
    decide(bits, result);
    if (!has_trained(differences) && result.verdict == Verdict::kSame) {
      conclude(result, Verdict::kNotProven,
               concat("nothing was trained, so nothing was compared: no weight moved in ", result.steps,
                      result.steps == 1 ? " step" : " steps", name_settings("; take a larger --lr, or with fp16 a smaller --loss-scale")));
    }
    if (result.ok() && config_.sync_batch_norm && layout.microbatches > 1)
      result.reason += concat(
          name_settings("; --sync-batch-norm takes the statistics of a micro-batch over all replicas, so this is what one process trains "
                        "with --accumulate "),
          config_.accumulate * layout.microbatches, ", not with the whole batch at once");
    if (!result.ok() && has_trained(differences)) result.suspects = find_suspects(layout, differences);
    for (const Fault fault : faults) result.faults.push_back(try_fault(fault, run, bits));
    return result;
  }

 private:
  const Checkpoint& reference(double nudge = 0) {
    return has_strict_ ? trainings_.sequential(layout_, stages_, nudge) : trainings_.one_process(layout_.microbatches, nudge);
  }
  /// The difference of a tensor that rounding explains.
  double explained(const TensorDifference& tensor) {
    const double unit = unit_of(config_.precision);
    const Checkpoint &as_it_is = reference(), &nudged = reference(unit);
    const double moved = compare_updates(as_it_is, trainings_.initial(), nudged, trainings_.nudged_initial(unit), tensor.name);
    return last_bits(tensor) + kSums * kEpsilon * tensor.max_update + kMargin * std::max(0.0, moved - last_bits(tensor));
  }

  /// Relative to the update; infinite for a tensor that did not move in the reference and here by no more than rounding.
  double bound_of(const TensorDifference& tensor) {
    const double most = explained(tensor);
    if (tensor.max_update > 0) return most / tensor.max_update;
    return tensor.max_difference <= most ? std::numeric_limits<double>::infinity() : 0;
  }

  /// Each tensor with its bound, which is 0 if equal bits are expected.
  std::vector<TensorVerdict> judged(const std::vector<TensorDifference>& differences, bool bits) {
    std::vector<TensorVerdict> tensors;
    for (const TensorDifference& tensor : differences) {
      // Integers have no rounding.
      const bool rounds = !bits && !tensor.is_equal() && std::isfinite(tensor.relative_difference);
      tensors.push_back({tensor.name, tensor.difference_of_update(), rounds ? bound_of(tensor) : 0});
    }
    sort_by_ratio(tensors);
    return tensors;
  }

  void decide(bool bits, VerifyResult& result) {
    if (!result.repeats) return conclude(result, Verdict::kDifferent, "two runs of this layout differ from each other");
    if (depends_on_division(result) || sequential_ranks_differ(result)) return;
    if (bits)
      return conclude(result, Verdict::kSame, "bit by bit what one process computes that does the same arithmetic in the same order");
    const TensorVerdict& worst = result.tensors.front();
    if (worst.difference == 0)
      return conclude(result, Verdict::kSame, "bit by bit what one process computes that takes each micro-step whole");
    if (!(worst.difference <= worst.bound))
      return conclude(result, Verdict::kDifferent,
                      concat(worst.name, " is ", worst.difference, " of its update away, and rounding explains ", worst.bound));
    const std::vector<std::string> idle =
        config_.precision == "fp32" ? moved_by_rounding_alone(result.tensors) : std::vector<std::string>();
    const auto is_idle = [&](const TensorVerdict& tensor) { return std::find(idle.begin(), idle.end(), tensor.name) != idle.end(); };
    const auto widest = std::max_element(result.tensors.begin(), result.tensors.end(), [&](const TensorVerdict& a, const TensorVerdict& b) {
      return (is_idle(a) ? 0 : a.bound) < (is_idle(b) ? 0 : b.bound);
    });
    if (widest->bound > kCeiling && !is_idle(*widest)) {
      conclude(
          result, Verdict::kNotProven,
          concat("rounding explains ", widest->bound, " of the update of ", widest->name, ", and more than ", kCeiling,
                 " would hide a real difference", widest->bound > 1 && config_.precision == "fp32" ? of_bias() : "", ": take ",
                 config_.precision != "fp32" ? name_settings("--precision fp32, ") : "",
                 name_settings("a larger --lr or more --steps where the update is small beside the values, a smaller --lr or fewer --steps "
                               "where the training multiplies rounding")));
      return;
    }
    const TensorVerdict& worst_trained = *std::find_if_not(result.tensors.begin(), result.tensors.end(), is_idle);
    conclude(result, Verdict::kSame,
             concat("no tensor is further away than rounding explains; the worst, ", worst_trained.name, ", ", worst_trained.difference,
                    " of its update where ", worst_trained.bound, " is explained"));
    if (!idle.empty())
      result.reason +=
          concat("; rounding alone moves ", join(idle, ", "), idle.size() == 1 ? ", which has no gradient" : ", which have no gradient",
                 ": a bias right before batch norm does nothing");
  }

  /// Step 4; true if it decides.
  bool depends_on_division(VerifyResult& result) {
    // --sync-batch-norm takes statistics over a micro-batch by definition.
    if (config_.sync_batch_norm) return false;
    const auto [known, is_new] = divisions_.try_emplace(division_key(layout_));
    if (is_new) known->second = does_division_matter(config_, data_, layout_, trainings_.folder() + "/division.json");
    const DivisionMatters& matters = known->second;
    if (matters.answer == DivisionMatters::Answer::kNo) return false;
    if (matters.answer == DivisionMatters::Answer::kNotRepeated) {
      conclude(result, Verdict::kDifferent,
               concat("the same batch twice in one process, from the same weights, gives another ", matters.tensor,
                      ": this model keeps state outside its parameters and buffers (a static variable?), or what it computes depends "
                      "on time or address; no layout and no resumed run can repeat that"));
    } else if (matters.answer == DivisionMatters::Answer::kYes) {
      conclude(result, Verdict::kDifferent,
               concat("this model depends on how its batch is divided: ", matters.tensor, " is ", matters.difference,
                      " away from that of the whole batch, where rounding explains ", matters.explained,
                      " (usual batch norm, a loss that is not a mean over its samples, randomness that is not cohort::Dropout, state "
                      "kept between calls)"));
    } else {
      conclude(result, Verdict::kNotProven,
               concat("whether this model depends on how its batch is divided cannot be seen: rounding alone moves ", matters.tensor,
                      " by ", matters.explained, " of itself, and it is ", matters.difference,
                      " away from that of the whole batch; take a smaller model of the same kind, or initial weights with which it "
                      "multiplies rounding less"));
    }
    return true;
  }

  /// Step 5; true if it decides.
  bool sequential_ranks_differ(VerifyResult& result) {
    if (!has_strict_ || config_.sync_batch_norm) return false;
    const Checkpoint& whole = trainings_.one_process();
    // The two may have skipped different steps for a too large loss scale, which is not a property of the model.
    if (loss_scaler_of(whole) != loss_scaler_of(reference())) return false;
    const double apart = distance(compare_checkpoints(whole, reference(), &trainings_.initial()));
    if (apart <= kWhole) return false;
    const double rounding =
        distance(compare_checkpoints(whole, trainings_.one_process(1, unit_of(config_.precision)), &trainings_.initial()));
    if (apart <= kMargin * rounding) return false;
    conclude(result, Verdict::kDifferent,
             concat("one process that takes the shares of the ranks in turn trains otherwise than one that takes each batch whole, by ",
                    apart, " of the update where rounding makes ", rounding,
                    ", though the first batch gives the same gradients: does the model keep state between calls?"));
    return true;
  }

  std::vector<Suspect> find_suspects(const Layout& layout, const std::vector<TensorDifference>& differences) {
    SuspectOptions options{.batch_is_divided = num_pipelines(layout) * layout.microbatches > 1, .sync_batch_norm = config_.sync_batch_norm};
    options.moved = [&](const std::string& buffer) {
      return std::any_of(differences.begin(), differences.end(),
                         [&](const TensorDifference& tensor) { return tensor.name == "model/" + buffer && tensor.max_update > 0; });
    };
    if (const auto known = divisions_.find(division_key(layout_)); known != divisions_.end()) options.draws = known->second.draws;
    return suspects_of(trainings_.modules(), options);
  }

  FaultResult try_fault(Fault fault, const Checkpoint& good, bool bits) {
    FaultResult result{fault, FaultResult::Outcome::kMissed, 0};
    std::optional<Checkpoint> run;
    try {
      run = trainings_.ranks(layout_, fault);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kFailed) throw;
      return {fault, FaultResult::Outcome::kFound, std::numeric_limits<double>::infinity()};
    }
    if (all_equal(compare_checkpoints(good, *run))) return {fault, FaultResult::Outcome::kDoesNothing, 0};
    const std::vector<TensorDifference> differences = compare_checkpoints(reference(), *run, &trainings_.initial());
    std::map<std::string, double> would_pass;  // If equal bits are expected: rounding of the last ones.
    for (const TensorDifference& tensor : differences)
      would_pass[tensor.name] = tensor.max_update > 0 ? last_bits(tensor) / tensor.max_update : 0;
    for (const TensorVerdict& tensor : judged(differences, bits)) {
      if (tensor.difference == 0) continue;
      const double passes = bits ? would_pass[tensor.name] : tensor.bound;
      if (tensor.difference > tensor.bound) result.outcome = FaultResult::Outcome::kFound;
      if (passes > 0) result.factor = std::max(result.factor, tensor.difference / passes);
    }
    return result;
  }

  const Config& config_;
  const DataSet& data_;
  Trainings trainings_;
  std::map<std::string, DivisionMatters> divisions_;  // By division_key().
  // State for the current layout.
  Layout layout_;
  StagesOfRun stages_;
  bool has_strict_ = false;
};

}  // namespace

const char* text_of(Verdict verdict) {
  return verdict == Verdict::kSame ? "same" : verdict == Verdict::kDifferent ? "different" : "not proven";
}

bool VerifyResult::all_faults_found() const {
  return std::none_of(faults.begin(), faults.end(),
                      [](const FaultResult& fault) { return fault.outcome == FaultResult::Outcome::kMissed; });
}

void verify(const Config& config, const DataSet& data, const std::vector<Layout>& layouts, const std::vector<Fault>& faults,
            const std::function<void(const VerifyResult&)>& done) {
  for (const Layout& layout : layouts) check_verifiable(config, layout, data);
  Verifier verifier(config, data);
  for (const Layout& layout : layouts) {
    const Config own = resolve(config, layout).config;  // One process also uses accumulate, precision and shares of the layout.
    done(to_toml(own) == to_toml(config) ? verifier.verify(layout, faults) : Verifier(own, data).verify(layout, faults));
  }
}

}  // namespace cohort
