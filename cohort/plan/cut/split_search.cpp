// The best cut of a graph of layers into K stages, by dynamic programming from the last layer to the first.
//
// best(a, k) is the best cut of layers a, a+1, ... into k stages: a first stage [a, b), then best(b, k-1). The cost of [a, b) depends on a
// and b alone, except for values that several later stages read, because each gets a copy. So a state counts, for every value made before b
// that two or more layers from b on read, the stages that read it; a cell keeps the labels that no other label beats in cost and in every
// count. A chain has one label per cell, a residual network a few.
//
// Cost: K L R steps with R layers per stage within the limit (about L / K, since callers pass the bottleneck of a known cut), and L K
// labels. Cells keep at most kMostLabels, and kFewLabels after kMostSteps; where a label is dropped the result is not proved.
//
// Source: the partition of a chain (Bokhari 1988, "Partitioning problems in parallel, pipelined and distributed computing", section 3;
// PipeDream, Narayanan et al. 2019, section 3.1). Skips and memory are ours.
#include "cohort/plan/cut/split_search.h"

#include <algorithm>
#include <cstdint>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

constexpr size_t kMostLabels = 64, kFewLabels = 2;
constexpr int64_t kMostSteps = 3'000'000;  // Some tenths of a second.

/// The best cuts of a suffix that read the open values by the same numbers of stages.
struct Label {
  double cost = 0;
  int end = 0;                               // End of the first stage.
  int next_label = 0;                        // Label of the remaining stages.
  std::vector<uint16_t> num_stages_reading;  // One a value of open_[first layer].
};

bool beats(const Label& a, const Label& b) {
  if (a.cost > b.cost) return false;
  for (size_t i = 0; i < a.num_stages_reading.size(); ++i)
    if (a.num_stages_reading[i] > b.num_stages_reading[i]) return false;
  return true;
}

class Search {
 public:
  Search(const SplitCosts& costs, SplitGoal goal, const SplitLimits& limits)
      : costs_(costs),
        goal_(goal),
        limits_(limits),
        num_layers_(costs.num_layers()),
        num_stages_(costs.num_stages()),
        cells_(static_cast<size_t>(num_layers_ + 1) * (num_stages_ + 1)),
        open_(num_layers_ + 1),
        next_reader_(num_layers_, kNone),
        sent_(num_layers_ + 1),
        received_(num_layers_ + 1) {
    if (goal_ != SplitGoal::kMemory) find_open_values();
  }

  std::optional<FoundSplit> run() {
    cell(num_layers_, 0).push_back({});
    std::vector<std::vector<int>> made_for(num_layers_);  // The values that a layer reads.
    for (int layer = 0; layer < num_layers_; ++layer)
      for (const int reader : costs_.readers(layer)) made_for[reader].push_back(layer);
    for (int first = num_layers_ - 1; first >= 0; --first) {
      for (const int value : made_for[first]) next_reader_[value] = first;
      if (!costs_.readers(first).empty())
        for (int end = first + 1; end <= costs_.readers(first).back(); ++end) sent_[end].add(costs_.value_of(first));
      find_received(first);
      for (int stage = std::min(first, num_stages_ - 1); stage >= 0; --stage)
        if (stage > 0 || first == 0) fill(first, stage);
    }
    return result();
  }

 private:
  static constexpr int kNone = INT32_MAX;

  std::vector<Label>& cell(int first, int stages) { return cells_[static_cast<size_t>(first) * (num_stages_ + 1) + stages]; }

  /// Values made before a cut that two or more layers behind it read.
  void find_open_values() {
    for (int layer = 0; layer < num_layers_; ++layer) {
      const std::vector<int>& readers = costs_.readers(layer);
      if (readers.size() < 2) continue;
      for (int cut = layer + 1; cut <= readers[readers.size() - 2]; ++cut) open_[cut].push_back(layer);
    }
  }

  /// received_[end]: what a stage [first, end) gets from before.
  void find_received(int first) {
    std::fill(received_.begin() + first, received_.end(), Traffic{});
    for (int value = 0; value < first; ++value)
      if (next_reader_[value] != kNone) received_[next_reader_[value] + 1].add(costs_.value_of(value));
    for (int end = first + 1; end <= num_layers_; ++end) received_[end].add(received_[end - 1]);
  }

  /// All cuts whose stage `stage` begins with layer `first`.
  void fill(int first, int stage) {
    const int stages_behind = num_stages_ - stage - 1;
    const int last_end = num_layers_ - stages_behind;
    for (int end = stages_behind == 0 ? last_end : first + 1; end <= last_end; ++end) {
      const double seconds = costs_.compute_seconds(first, end);
      if (goal_ != SplitGoal::kMemory && seconds > limits_.seconds) break;  // Both only rise with `end`.
      if (costs_.memory_bytes(stage, first, end, 0) > limits_.memory_bytes) break;
      const int64_t memory_bytes = costs_.memory_bytes(stage, first, end, received_[end].bytes);
      if (memory_bytes > limits_.memory_bytes) continue;
      const std::vector<Label>& behind = cell(end, stages_behind);
      for (size_t i = 0; i < behind.size(); ++i) extend(first, stage, end, memory_bytes, behind[i], static_cast<int>(i));
    }
  }

  void extend(int first, int stage, int end, int64_t memory_bytes, const Label& behind, int label) {
    if (!open_[first].empty()) ++num_steps_;
    Label added{.end = end, .next_label = label};
    if (goal_ == SplitGoal::kMemory) {
      added.cost = std::max(static_cast<double>(memory_bytes), behind.cost);
    } else {
      Traffic traffic = received_[end];
      traffic.add(sent_[end]);
      const std::vector<int>& open = open_[end];
      for (size_t i = 0; i < open.size(); ++i)
        if (open[i] >= first) traffic.add(costs_.value_of(open[i]), behind.num_stages_reading[i] - 1);
      const double transfers = costs_.transfer_seconds(traffic), seconds = costs_.compute_seconds(first, end) + transfers;
      if (seconds > limits_.seconds) return;
      added.cost = goal_ == SplitGoal::kTransfers ? transfers + behind.cost : std::max(seconds, behind.cost);
      count_readers(first, end, behind, added.num_stages_reading);
    }
    insert(cell(first, num_stages_ - stage), std::move(added));
  }

  /// Counts the stages from `first` on that read each value open at `first`.
  void count_readers(int first, int end, const Label& behind, std::vector<uint16_t>& counts) {
    counts.reserve(open_[first].size());
    size_t i = 0;
    for (const int value : open_[first]) {
      int count = next_reader_[value] < end ? 1 : 0;
      while (i < open_[end].size() && open_[end][i] < value) ++i;
      if (i < open_[end].size() && open_[end][i] == value) count += behind.num_stages_reading[i];
      else if (costs_.readers(value).back() >= end) ++count;
      counts.push_back(static_cast<uint16_t>(count));
    }
  }

  void insert(std::vector<Label>& labels, Label added) {
    for (const Label& label : labels)
      if (beats(label, added)) return;
    std::erase_if(labels, [&](const Label& label) { return beats(added, label); });
    if (labels.size() >= (num_steps_ < kMostSteps ? kMostLabels : kFewLabels)) {
      exact_ = false;
      const auto worst = std::max_element(labels.begin(), labels.end(), [](const Label& a, const Label& b) { return a.cost < b.cost; });
      if (added.cost >= worst->cost) return;
      *worst = std::move(added);
    } else {
      labels.push_back(std::move(added));
    }
  }

  std::optional<FoundSplit> result() {
    if (cell(0, num_stages_).empty()) return std::nullopt;
    FoundSplit found{.exact = exact_};
    // Nothing is open before the first layer: one label.
    int first = 0, label = 0;
    for (int stages = num_stages_; stages > 0; --stages) {
      found.first_layer.push_back(first);
      const Label& at = cell(first, stages)[label];
      first = at.end, label = at.next_label;
    }
    return found;
  }

  const SplitCosts& costs_;
  const SplitGoal goal_;
  const SplitLimits limits_;
  const int num_layers_, num_stages_;
  bool exact_ = true;
  int64_t num_steps_ = 0;
  std::vector<std::vector<Label>> cells_;  // [first layer][stages from there on]
  std::vector<std::vector<int>> open_;     // At each cut, rising.
  std::vector<int> next_reader_;           // The first layer from `first` on that reads each value.
  std::vector<Traffic> sent_;              // [end]: values of layers from `first` to end that are read behind, each once.
  std::vector<Traffic> received_;
};

}  // namespace

std::optional<FoundSplit> search_split(const SplitCosts& costs, SplitGoal goal, const SplitLimits& limits) {
  return Search(costs, goal, limits).run();
}

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
  // Micro-batches whose stash a stage keeps under 1F1B.
  for (int stage = 0; stage < num_stages_; ++stage) kept_.push_back(std::min(num_stages_ - stage, options.num_micro_batches));

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
  for (std::vector<int>& readers : readers_) sort_unique(readers);
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
        if (reader_stage + 1 >= num_stages_ || reader < first_layer[reader_stage + 1]) continue;  // That stage has the value already.
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
