#include "cohort/plan/split/split_costs.h"

#include <algorithm>

#include "cohort/base/fail.h"

namespace cohort {

SplitCosts::SplitCosts(const Profile& profile, const SplitOptions& options)
    : num_stages_(options.num_stages),
      num_ranks_(options.num_ranks == 0 ? options.num_stages : options.num_ranks),
      latency_seconds_(profile.link_latency_seconds),
      rate_(profile.link_bytes_per_second),
      weight_factor_(2 + options.optimizer_bytes_factor) {
  check_profile(profile);
  const int num_layers = static_cast<int>(profile.layers.size());
  if (num_stages_ < 1 || num_stages_ > num_layers)
    fail(ErrorCode::kBadInput, "split: ", num_layers, " layers can not be cut into ", num_stages_, " stages; use at most ", num_layers);
  if (num_ranks_ < 1 || num_ranks_ > num_stages_)
    fail(ErrorCode::kBadInput, "split: ", num_stages_, " stages on ", num_ranks_, " ranks; use 1 to ", num_stages_, " ranks");
  if (options.num_micro_batches < 1) fail(ErrorCode::kBadInput, "split: ", options.num_micro_batches, " micro-batches");
  if (!(options.optimizer_bytes_factor >= 0) || options.memory_bytes < 0)
    fail(ErrorCode::kBadInput, "split: optimizer_bytes_factor ", options.optimizer_bytes_factor, ", memory_bytes ", options.memory_bytes,
         "; neither may be negative");
  if (!options.stash_micro_batches.empty() && static_cast<int>(options.stash_micro_batches.size()) != num_stages_)
    fail(ErrorCode::kBadInput, "split: ", options.stash_micro_batches.size(), " numbers of kept micro-batches for ", num_stages_,
         " stages");
  for (int stage = 0; stage < num_stages_; ++stage) {
    const int most = options.stash_micro_batches.empty() ? num_stages_ - stage : options.stash_micro_batches[stage];
    if (most < 0) fail(ErrorCode::kBadInput, "split: stage ", stage, " keeps ", most, " micro-batches");
    kept_.push_back(std::min(most, options.num_micro_batches));
  }

  seconds_before_.push_back(0), weights_before_.push_back(0), stash_before_.push_back(0);
  for (const LayerProfile& layer : profile.layers) {
    seconds_before_.push_back(seconds_before_.back() + layer.forward_seconds + layer.backward_input_seconds +
                              layer.backward_weight_seconds);
    weights_before_.push_back(weights_before_.back() + layer.weight_bytes);
    stash_before_.push_back(stash_before_.back() + layer.stash_bytes);
    output_bytes_.push_back(layer.output_bytes);
  }
  readers_.resize(num_layers);
  for (const auto& [from, to] : profile.edges)
    if (from >= 0) readers_[from].push_back(to);
  for (std::vector<int>& readers : readers_) {
    std::sort(readers.begin(), readers.end());
    readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
  }
}

int64_t SplitCosts::memory_bytes(int stage, int first, int end, int64_t received_bytes) const {
  const double weights = static_cast<double>(weights_before_[end] - weights_before_[first]);
  const double stash = static_cast<double>(stash_before_[end] - stash_before_[first] + received_bytes);
  const double bytes = weights * weight_factor_ + stash * kept_[stage];
  return static_cast<int64_t>(std::min(bytes, 9e18));  // Above any limit that one can have.
}

Split SplitCosts::account(std::vector<int> first_layer) const {
  std::vector<Traffic> moved(num_stages_);
  std::vector<int64_t> received_bytes(num_stages_);
  for (int stage = 0; stage < num_stages_; ++stage) {
    const int end = stage + 1 < num_stages_ ? first_layer[stage + 1] : num_layers();
    for (int layer = first_layer[stage]; layer < end; ++layer) {
      int reader_stage = stage;
      for (const int reader : readers_[layer]) {
        if (reader_stage + 1 >= num_stages_ || reader < first_layer[reader_stage + 1]) continue;  // In a stage that has it.
        while (reader_stage + 1 < num_stages_ && reader >= first_layer[reader_stage + 1]) ++reader_stage;
        if (rank_of(reader_stage) == rank_of(stage)) continue;
        moved[stage].add(value_of(layer));
        moved[reader_stage].add(value_of(layer));
        received_bytes[reader_stage] += output_bytes_[layer];
      }
    }
  }

  Split split{.first_layer = std::move(first_layer)};
  std::vector<double> rank_seconds(num_ranks_);
  for (int stage = 0; stage < num_stages_; ++stage) {
    const int first = split.first_layer[stage], end = stage + 1 < num_stages_ ? split.first_layer[stage + 1] : num_layers();
    const Split::Stage& added = split.stages.emplace_back(
        Split::Stage{compute_seconds(first, end), transfer_seconds(moved[stage]), memory_bytes(stage, first, end, received_bytes[stage])});
    rank_seconds[rank_of(stage)] += added.seconds + added.transfer_seconds;
  }
  split.bottleneck_seconds = *std::max_element(rank_seconds.begin(), rank_seconds.end());
  return split;
}

std::vector<int> SplitCosts::equal_seconds() const {
  std::vector<int> first_layer{0};
  for (int stage = 1; stage < num_stages_; ++stage) {
    const double share = seconds_before_.back() * stage / num_stages_;
    const auto nearest = std::lower_bound(seconds_before_.begin(), seconds_before_.end(), share);
    const int cut = static_cast<int>(nearest - seconds_before_.begin());
    first_layer.push_back(std::clamp(cut, first_layer.back() + 1, num_layers() - (num_stages_ - stage)));
  }
  return first_layer;
}

}  // namespace cohort
