#include "cohort/job/job.h"

namespace cohort {

Situation Job::situation(std::optional<bool> is_text) const {
  return {.config = config, .layout = layout, .num_ranks = num_ranks(), .one_host = one_host, .is_text = is_text};
}

Job resolve(const Config& config, int workers, bool one_host) { return resolve(config, parse_layout(config.layout, workers), one_host); }

Job resolve(const Config& config, const Layout& layout, bool one_host) {
  Job job{.config = config,
          .layout = layout,
          .one_host = one_host,
          .precision = parse_precision(config.precision),
          .rule = update_rule(config),
          .learning_rate = learning_rate(config),
          .goal = {},
          .faults = parse_faults(config.inject),
          .shares = parse_shares(config.shares)};
  if (!config.goal.empty()) job.goal = parse_goal(config.goal);
  return job;
}

}  // namespace cohort
