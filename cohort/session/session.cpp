#include "cohort/session/session.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string_view>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/world/launch.h"

namespace cohort {
namespace {

/// Removes `--name VALUE` and `--name=VALUE` from the arguments; the last one is used.
bool take_option(int& argc, char** argv, const std::string& name, std::string* value) {
  bool found = false;
  for (int i = 1; i < argc;) {
    const std::string argument = argv[i];
    int taken = 0;
    if (argument == "--") break;
    if (argument == name) {
      if (i + 1 >= argc || std::string_view(argv[i + 1]).starts_with("--")) fail(ErrorCode::kBadInput, name, " needs a value");
      *value = argv[i + 1];
      taken = 2;
    } else if (argument.starts_with(name + "=")) {
      *value = argument.substr(name.size() + 1);
      taken = 1;
    }
    if (taken == 0) {
      ++i;
      continue;
    }
    if (value->empty()) fail(ErrorCode::kBadInput, name, " needs a value");
    for (int j = i; j + taken <= argc; ++j) argv[j] = argv[j + taken];  // Including the null pointer at the end.
    argc -= taken;
    found = true;
  }
  return found;
}

/// True if the texts differ in at most two adjacent letters: missing, extra or swapped.
bool is_slip(std::string_view text, std::string_view name) {
  while (!text.empty() && !name.empty() && text.front() == name.front()) text.remove_prefix(1), name.remove_prefix(1);
  while (!text.empty() && !name.empty() && text.back() == name.back()) text.remove_suffix(1), name.remove_suffix(1);
  return text.size() <= 2 && name.size() <= 2;
}

/// Warns of probable typing errors; they may be options of the program.
void warn_of_slips(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i], given = argument.substr(0, argument.find('='));
    if (given == "--") break;
    for (const char* const name : {"--workers", "--layout", "--backend"})
      if (is_slip(given, name)) log_warning(concat("init() leaves ", given, " to the program (did you mean ", name, "?)"));
  }
}

int num_workers_of(const std::string& text) {
  char* end = nullptr;
  const long count = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != 0 || count < 1 || count > 1024)
    fail(ErrorCode::kBadInput, "--workers ", text, ": a number of processes from 1 to 1024 is wanted");
  return static_cast<int>(count);
}

}  // namespace

struct Session::State {
  SessionOptions options;
  World world;
  Group group;
  int share_index = 0, num_shares = 1, random_stream = 0;  // Set by Parallel; before it, one share a rank.
  bool is_divided = false;
  double weight = 1;                       // Weight of the last batch.
  double loss_weight = 1;                  // Weight for backward(): of the last batch that was not for an evaluation (NoGradGuard).
  int64_t num_rows = -1, other_rows = -1;  // Rows of the last batch since backward(), and of one with another weight.
  bool had_batch = false;                  // At least one batch was not for an evaluation.
  std::set<const void*> parameters;        // Parameters of all modules given to Parallel.
  int64_t first_sample = 0;
  bool loss_is_weighted = false;  // In backward().
  bool in_pipeline_loss = false;
  bool needs_samples = false;  // set_samples() must be called for the loader's batch.
};

Session::Session(const World& world, SessionOptions options) : state_(std::make_shared<State>()) {
  state_->options = std::move(options);
  state_->world = world;
  warm_up_vector_functions();
  if (!std::getenv("OMP_NUM_THREADS")) at::set_num_threads(cores_of_rank(world));
  state_->group = Group::create(world, {.backend = state_->options.backend, .timeout_seconds = state_->options.timeout_seconds});
  state_->share_index = state_->random_stream = rank();
  state_->num_shares = size();
  seed_all();
}

void Session::divide_by(int index, int count, int stream) {
  State& s = *state_;
  if (s.is_divided && (s.share_index != index || s.num_shares != count || s.random_stream != stream))
    fail(ErrorCode::kBadInput, "the models of a session divide each batch alike: one has ", s.num_shares, " shares, this one ", count,
         ", or their ranks stand in another order; give them layouts with the same dp, pp and tp");
  s.is_divided = true;
  s.share_index = index, s.num_shares = count, s.random_stream = stream;
}

int Session::rank() const { return state_->group.rank(); }
int Session::size() const { return state_->group.size(); }
Group& Session::group() { return state_->group; }
const World& Session::world() const { return state_->world; }
uint64_t Session::seed() const { return state_->options.seed; }
const std::string& Session::layout() const { return state_->options.layout; }
Share Session::share(int64_t num_samples) const { return share_of_rank(num_samples, state_->share_index, state_->num_shares); }
int Session::num_shares() const { return state_->num_shares; }
int64_t Session::first_sample() const { return state_->first_sample; }
double Session::weight() const { return state_->weight; }
double Session::loss_weight() const { return state_->loss_weight; }
bool Session::loss_is_weighted() const { return state_->loss_is_weighted; }

void Session::backward(const at::Tensor& loss) {
  struct Weighted {
    bool& is;
    explicit Weighted(bool& is) : is(is) { is = true; }
    ~Weighted() { is = false; }
  };
  const at::Tensor weighted = loss_weight() == 1 ? loss : loss.mul(loss_weight());
  const Weighted while_it_runs(state_->loss_is_weighted);
  weighted.backward();
}

void Session::set_samples(int64_t num_samples) {
  const double mine = static_cast<double>(num_samples), all = sum(num_samples < 0 ? std::nan("") : mine);
  if (std::isnan(all)) fail(ErrorCode::kBadInput, "set_samples(): a rank has 0 samples or more; this one has ", num_samples);
  if (all == 0) fail(ErrorCode::kBadInput, "set_samples(): no rank has any samples");
  state_->weight = state_->loss_weight = mine * size() / all;
  state_->had_batch = true;
  forget_batches();
  state_->needs_samples = false;
}

Share Session::take_share(int64_t num_samples) {
  if (num_samples < 1) fail(ErrorCode::kBadInput, "a batch of ", num_samples, " samples has no mean");
  const Share mine = share(num_samples);
  state_->weight = static_cast<double>(mine.size()) * state_->num_shares / static_cast<double>(num_samples);
  if (at::GradMode::is_enabled()) {
    if (state_->num_rows >= 0 && state_->loss_weight != state_->weight) state_->other_rows = state_->num_rows;
    state_->num_rows = num_samples;
  }
  if (at::GradMode::is_enabled() || !state_->had_batch) state_->loss_weight = state_->weight;
  state_->had_batch |= at::GradMode::is_enabled();
  state_->first_sample = mine.begin;
  state_->needs_samples = false;
  return mine;
}

/// An even batch needs no set_samples(), unless another loader's batch has left a weight.
void Session::batch_was_taken(bool is_even) { state_->needs_samples = size() > 1 && !(is_even && weight() == 1); }

void Session::check_samples_told(const char* call) const {
  if (state_->needs_samples)
    fail(ErrorCode::kBadInput, call,
         ": LoaderSampler's batches do not divide evenly by the ranks; call session.set_samples(batch.data.size(0)) after each batch that "
         "you take from the loader, and evaluate within a NoGradGuard");
}

void Session::check_one_batch(const char* call) const {
  if (state_->other_rows >= 0)
    fail(ErrorCode::kBadInput, call, ": since the last one batches of ", state_->other_rows, " and of ", state_->num_rows,
         " rows were divided, of which this rank's parts count differently; say which this loss is of: call session.set_samples(n) with "
         "this "
         "rank's number of rows before backward(), and divide batches of an evaluation within a NoGradGuard");
}

void Session::forget_batches() { state_->num_rows = state_->other_rows = -1; }

void Session::add_parameters(const torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters()) state_->parameters.insert(parameter.unsafeGetTensorImpl());
}

bool Session::has_parameter(const at::Tensor& tensor) const { return state_->parameters.contains(tensor.unsafeGetTensorImpl()); }

at::Tensor Session::local(const at::Tensor& batch, int64_t dim) {
  if (batch.dim() == 0) fail(ErrorCode::kBadInput, "local(): a batch has rows, and this tensor is one number");
  const Share mine = take_share(batch.size(dim));
  return batch.narrow(dim, mine.begin, mine.size());
}

at::Tensor Session::sum(const at::Tensor& value) {
  at::NoGradGuard no_grad;
  if (size() == 1) return value.detach().clone();
  if (state_->in_pipeline_loss)
    fail(ErrorCode::kBadInput,
         "mean(), sum() and any() inside the loss of a pipeline: the ranks of its last stage alone compute the loss, and the others would "
         "not "
         "answer; exchange before forward_backward(), from the targets, and give the loss the result");
  const at::Tensor flat = group().exchangeable(value.detach().clone(at::MemoryFormat::Contiguous).view({-1}));
  group().all_reduce_sum(flat, "a sum of the program's own");
  return flat.view(value.sizes()).to(value.device());
}

double Session::sum(double value) { return sum(at::full({1}, value, at::kDouble)).item<double>(); }

at::Tensor Session::mean(const at::Tensor& value) {
  at::NoGradGuard no_grad;
  if (size() == 1) return value.detach().clone();
  check_samples_told("mean()");
  const at::Tensor part = weight() == 0 ? at::zeros_like(value, at::kDouble) : value.detach().to(at::kDouble).mul(weight() / size());
  return sum(part).to(value.is_floating_point() ? value.scalar_type() : at::kDouble);
}

void Session::set_in_pipeline_loss(bool value) { state_->in_pipeline_loss = value; }

double Session::mean(double value) { return mean(at::full({1}, value, at::kDouble)).item<double>(); }
bool Session::any(bool value) { return sum(value ? 1.0 : 0.0) > 0; }
void Session::barrier() { group().barrier(); }

void Session::seed_all(uint64_t purpose) { at::manual_seed(random_bits(seed(), 0, purpose)); }
void Session::seed_rank(uint64_t purpose) { at::manual_seed(random_bits(seed(), state_->random_stream + 1, purpose)); }

Session init(int& argc, char** argv, SessionOptions options) {
  World world = world_from_environment();  // First, since it sets the handler of uncaught errors.
  std::string workers;
  take_option(argc, argv, "--layout", &options.layout);
  take_option(argc, argv, "--backend", &options.backend);
  const bool has_workers = take_option(argc, argv, "--workers", &workers);
  const int num_workers = has_workers ? num_workers_of(workers) : 1;
  if (world.rank == 0) warn_of_slips(argc, argv);
  if (world.launcher != "none") {
    if (has_workers && num_workers != world.size)
      fail(ErrorCode::kBadInput, "--workers ", workers, " under ", world.launcher, ", which started ", world.size,
           " ranks; leave --workers out");
  } else if (num_workers > 1) {
    world = become_ranks({.num_ranks = num_workers, .counts_steps = false});
  }
  // Otherwise lines of several ranks would be mixed in a pipe or a file.
  if (world.size > 1) std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return Session(world, std::move(options));
}

SessionSampler::SessionSampler(Session session, int64_t num_samples, int64_t global_batch, bool shuffle)
    : session_(std::move(session)), sampler_(num_samples, global_batch, session_.seed(), shuffle) {
  if (global_batch < session_.num_shares())
    fail(ErrorCode::kBadInput, "a global batch of ", global_batch, " is less than one sample for each of ", session_.num_shares(),
         " ranks");
}

int64_t SessionSampler::steps_per_epoch() const { return sampler_.steps_per_epoch(); }

std::vector<int64_t> SessionSampler::next(int64_t step) { return sampler_.samples(step, session_.take_share(sampler_.batch_at(step))); }

}  // namespace cohort
