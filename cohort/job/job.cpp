#include "cohort/job/job.h"

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/job/specs/small_specs.h"
#include "cohort/job/specs/sync_mode.h"

namespace cohort {
namespace {

/// Takes a setting that the layout holds as well; Error(kBadInput) where both were given and differ.
template <typename Value>
void take(Config& config, const char* name, Value Config::* member, const Value& value) {
  const Setting& setting = *find_setting(name);
  const bool differs = config.*member != value;
  if (differs && is_given(config, setting))
    fail(ErrorCode::kBadInput, name_settings(concat("--", name)), " ", setting.get(config), name_settings(" and --layout "), name, "=",
         value, " contradict each other; leave one of them out");
  config.*member = value;
}

}  // namespace

Situation Job::situation(std::optional<bool> is_text) const {
  return {.config = config, .layout = layout, .num_ranks = num_ranks(), .one_host = one_host, .is_text = is_text};
}

Job resolve(const Config& config, int workers, bool one_host) {
  const Layout layout = parse_layout(config.layout, workers);
  if (!is_layout_file(config.layout)) return resolve(config, layout, one_host);
  Config with_text = config;  // The file may have changed when the run is resumed.
  with_text.layout = to_text(layout);
  return resolve(with_text, layout, one_host);
}

Job resolve(const Config& given, const Layout& layout, bool one_host) {
  Config config = given;
  if (layout.accumulate > 0) take(config, "accumulate", &Config::accumulate, layout.accumulate);
  if (!layout.precision.empty()) take(config, "precision", &Config::precision, layout.precision);
  if (!layout.shares.empty()) take(config, "shares", &Config::shares, layout.shares);
  Job job{.config = config,
          .layout = layout,
          .one_host = one_host,
          .precision = parse_precision(config.precision),
          .rule = update_rule(config),
          .learning_rate = learning_rate(config),
          .goal = {},
          .faults = parse_faults(config.inject),
          .shares = parse_shares(config.shares),
          .devices = parse_devices(config.device),
          .clock = {},
          .batch_stages = parse_batch_schedule(config.batch_schedule),
          .pruning = parse_pruning(config.prune),
          .rounding = parse_quantise_aware(config.quantize_aware),
          .hints = parse_hints(config.hint),
          .rate_factor = parse_remedy(config.remedy)};
  if (!config.virtual_time.empty()) job.clock = parse_virtual(config.virtual_time);
  // A resumed run may have another number of workers; `devices` is checked against the current one.
  if (job.devices.all_cpu()) job.config.device = "cpu";
  if (!config.goal.empty()) job.goal = parse_goal(config.goal, config.metrics);
  return job;
}

}  // namespace cohort
