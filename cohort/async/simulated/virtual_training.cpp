// Runs the driver until all work items are finished. A step is over when as many samples have been applied as the sampler's steps up to it
// have (docs/algorithms/asynchronous.md); then its metrics are written, and evaluations and checkpoints that are due are made, between two
// events. A checkpoint holds, beside the state of async_training.h, the clock, the workers, and the tensors of outstanding work.
#include "cohort/async/simulated/virtual_training.h"

#include "cohort/async/async_training.h"
#include "cohort/async/simulated/virtual_driver.h"
#include "cohort/async/work_item_runner.h"
#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/statistics.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/train/loop.h"

namespace cohort {
namespace {

class SimulatedTraining : public VirtualTraining {
 public:
  explicit SimulatedTraining(RunSetup& run)
      : run_(run),
        spec_(*run.job.clock),
        async_(run, *run.model, spec_.workers, name_settings("--virtual workers=")),
        work_item_runner_(run.job, *run.data.train, *run.model, run.teacher.get()),
        clock_(spec_, run.config.seed) {
    run.parallel.strategy->hold_gradients();
    if (spec_.compute_seconds == 0) {
      run.config.virtual_time = with_compute_seconds(run.config.virtual_time, measured_compute_seconds());
      spec_ = parse_virtual(run.config.virtual_time);
    }
    if (async_.local) driver_ = make_local_rounds(driver_context(), *async_.local, async_.sync.number);
    else if (async_.sync.kind == SyncKind::kStep) driver_ = make_step_rounds(driver_context());
    else if (async_.local_server)
      driver_ = make_async_driver(driver_context(), QuorumPolicy{*run.model, run.job.rule, *async_.local_server,
                                                                 QuorumGate(async_.sync.quorum, async_.sync.grace_seconds)});
    else driver_ = make_async_driver(driver_context());
    install_state_callbacks(run, {[this] { return saved_pieces(); }, [this] { return loaded_pieces(); }, [this] { after_loading(); }});
  }

  TrainResult train(RunSaver& saver, RunReporter& reporter) override {
    reporter.set_clock([this] { return clock_.now(); });
    reporter.start();
    log_beginning();
    AfterStep after(run_, saver, reporter);
    if (async_.loaded_state().is_null()) driver_->begin();
    begin_window();
    for (int64_t from = saver.first_step(); !after.ends() && from < run_.total_steps;) {
      const std::optional<AppliedPush> push = driver_->run_next();
      if (!push) continue;
      async_.window.add(*push);
      const int64_t to = async_.queue.steps_done();
      if (to <= from) continue;
      const StepResult step = step_result(from, to);
      async_.model->copy_to_module();
      after.finish(from, step);
      begin_window();
      from = to;
    }
    async_.model->copy_to_module();
    after.evaluate_at_end();
    log_summary(after.result().steps, reporter);
    reporter.end(after.result());
    return after.result();
  }

 private:
  VirtualContext driver_context() {
    const auto full_item = static_cast<double>(async_.queue.steps_of(0, 0).front().num_samples());
    return {
        .spec = spec_,
        .clock = clock_,
        .queue = async_.queue,
        .mode = async_.mode,
        .statistics = async_.statistics,
        .compute = [this](const WorkItem& item, double rate) { return work_item_runner_.compute(item, rate); },
        .numbers = [this] { return async_.numbers(); },
        .learning_rate_at = [this](int64_t step) { return run_.job.learning_rate.at(step, run_.total_steps); },
        .item_seconds =
            [this, full_item](const WorkItem& item) { return spec_.compute_seconds * static_cast<double>(item.num_samples()) / full_item; },
        .staleness_bound = async_.staleness_bound()};
  }

  /// Wall-clock seconds of forward and backward of the first work item: the median of a few.
  double measured_compute_seconds() {
    std::vector<double> seconds;
    for (int i = 0; i < 7; ++i) {
      const double began = steady_seconds();
      work_item_runner_.compute(async_.queue.steps_of(0, 0).front(), run_.config.lr);
      if (i > 1) seconds.push_back(steady_seconds() - began);
    }
    return median(seconds);
  }

  StepResult step_result(int64_t from, int64_t step) const {
    StepResult out = async_.window.result(run_, from, step, driver_->compute_seconds() - compute_seconds_before_,
                                          driver_->push_seconds() - push_seconds_before_);
    out.num_steps = steps_between_exchanges(async_.sync);
    out.metrics.virtual_seconds = clock_.now();
    return out;
  }

  void begin_window() {
    async_.window.begin();
    compute_seconds_before_ = driver_->compute_seconds();
    push_seconds_before_ = driver_->push_seconds();
  }

  void log_beginning() const {
    log_info(concat("virtual clock: ", spec_.workers, spec_.workers == 1 ? " worker" : " workers", ", sync=", to_text(async_.sync), ", ",
                    human_seconds(spec_.compute_seconds), " a work item of ", async_.queue.steps_of(0, 0).front().num_samples(),
                    " samples at speed 1, ", human_bytes(async_.model->bytes_in_flight()), " for the outstanding work of each"));
  }

  void log_summary(int64_t steps, RunReporter& reporter) const {
    AsyncRecord record = async_.record(steps);
    record.clock = run_.config.virtual_time;
    record.virtual_seconds = clock_.now();
    if (clock_.now() > 0) record.samples_per_virtual_second = static_cast<double>(record.samples) / clock_.now();
    for (AsyncRecord::Worker& worker : record.workers) {
      worker.speed = clock_.speed(static_cast<int>(worker.worker));
      worker.waiting_seconds += driver_->waiting_seconds(static_cast<int>(worker.worker));
    }
    reporter.event(record);
    log_info(concat("virtual clock: ", human_seconds(clock_.now()), ", ", static_cast<int64_t>(record.samples_per_virtual_second),
                    " samples a second, ", async_summary(record),
                    async_.local && record.lost > 0 ? concat("; ", with_commas(record.samples), " of ",
                                                             with_commas(async_.queue.samples_done()), " samples were trained on")
                                                    : ""));
  }

  std::string key() const { return async_.key_prefix() + run_.config.virtual_time; }

  std::vector<FlatPiece> saved_pieces() {
    Json state = async_.state(key());
    state["clock"] = clock_.state();
    state["workers"] = driver_->state();
    std::vector<FlatPiece> pieces = async_.model->saved_pieces();
    pieces.push_back(async_state_piece(state));
    return joined(std::move(pieces), driver_->saved_pieces());
  }

  std::vector<FlatPiece> loaded_pieces() {
    std::vector<FlatPiece> pieces = async_.load(key());
    const Json& state = async_.loaded_state();
    if (state.is_null()) return pieces;
    clock_.load(state.value("clock", Json()), async_.loaded_from());
    return joined(std::move(pieces), driver_->loaded_pieces(state.value("workers", Json()), async_.loaded_from()));
  }

  void after_loading() {
    async_.loaded();
    const Json& state = async_.loaded_state();
    if (state.is_null()) return;
    driver_->loaded();
    if (state.value("total_steps", Json()) != run_.total_steps) driver_->wake();  // With more steps, idle workers may find work now.
  }

  RunSetup& run_;
  VirtualSpec spec_;
  AsyncTraining async_;
  WorkItemRunner work_item_runner_;
  VirtualClock clock_;
  std::unique_ptr<VirtualDriver> driver_;
  double compute_seconds_before_ = 0, push_seconds_before_ = 0;  // Wall-clock seconds when the step began.
};

}  // namespace

std::unique_ptr<VirtualTraining> make_virtual_training(RunSetup& run) { return std::make_unique<SimulatedTraining>(run); }

}  // namespace cohort
