#include "cohort/train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "cohort/base/error.h"
#include "cohort/base/training_defaults.h"

namespace cohort {

UpdateRule update_rule(const Config& config) {
  static const std::map<std::string, UpdateRule::Kind> kinds = {{"sgd", UpdateRule::Kind::kSgd},
                                                                {"momentum", UpdateRule::Kind::kMomentum},
                                                                {"nesterov", UpdateRule::Kind::kNesterov},
                                                                {"adam", UpdateRule::Kind::kAdam},
                                                                {"adamw", UpdateRule::Kind::kAdamW}};
  const auto kind = kinds.find(config.optimizer);
  if (kind == kinds.end()) fail(ErrorCode::kBadInput, "no optimizer '", config.optimizer, "'");
  return {kind->second, config.momentum, config.beta1, config.beta2, config.eps, weight_decay_of(config)};
}

StrategyOptions strategy_options(const Config& config, const Layout& layout) {
  // Units of ZeRO and buckets are held whole several times over: small ones where memory is short.
  int64_t bucket_bytes = config.bucket_bytes;
  if (bucket_bytes == 0 && config.memory_limit > 0) bucket_bytes = std::clamp<int64_t>(config.memory_limit / 64, 64 << 10, 8 << 20);
  return {.zero = layout.zero,
          .rule = update_rule(config),
          .compress = layout.compress,
          .share_weights = config.weights != "private",
          .bucket_bytes = bucket_bytes,
          .seed = config.seed};
}

double learning_rate_at(const Config& config, int64_t step, int64_t total_steps) {
  const double rate = learning_rate_of(config);
  if (step < config.warmup_steps) return rate * static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps);
  if (config.schedule_lr == "constant") return rate;
  const int64_t decay_steps = config.decay_steps > 0 ? config.decay_steps : total_steps - config.warmup_steps;
  const double span = static_cast<double>(std::max<int64_t>(1, decay_steps));
  const double done = std::min(1.0, static_cast<double>(step - config.warmup_steps) / span);
  const double shape = config.schedule_lr == "linear" ? 1 - done : 0.5 * (1 + std::cos(std::numbers::pi * done));
  return rate * (config.lr_end_factor + (1 - config.lr_end_factor) * shape);
}

}  // namespace cohort
