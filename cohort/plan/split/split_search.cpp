// The best cut of a graph of layers into K stages, by dynamic programming from the last layer to the first.
//
// best(a, k) is the best cut of layers a, a+1, ... into k stages; its first stage is [a, b), the rest best(b, k-1). What [a, b) costs
// depends on a and b alone, but for values that several later stages read: each of these stages is sent a copy. So a state holds, for every
// value made before b that two or more layers from b on read, by how many stages it is read; a cell keeps one label for each such vector
// that no other label beats in cost and in every count. A chain has one label a cell, a residual network a few.
//
// Cost: K L R steps, R the layers that fit into a stage before it is slower than the limit (about L / K in the end, since callers pass the
// bottleneck of a cut at hand); L K labels. Cells keep at most kMostLabels, and after kMostSteps labels kFewLabels: where that drops one,
// the result is the best found but not proved.
//
// Source: the recurrence is the classic partition of a chain (Bokhari 1988, "Partitioning problems in parallel, pipelined and distributed
// computing", section 3; PipeDream, Narayanan et al. 2019, section 3.1, uses it for pipelines). Those know chains only; skips and memory
// are ours.

#include "cohort/plan/split/split_search.h"

#include <algorithm>
#include <cstdint>

namespace cohort {
namespace {

constexpr size_t kMostLabels = 64, kFewLabels = 2;
constexpr int64_t kMostSteps = 3'000'000;  // Labels made with the former number of them: some tenths of a second.

/// The best cuts of a suffix that read the open values by the same numbers of stages.
struct Label {
  double cost = 0;
  int end = 0;                               // Of the first stage,
  int next_label = 0;                        // and the label of what follows.
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
    std::vector<std::vector<int>> made_for(num_layers_);  // Which values a layer reads.
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

  /// By how many stages from `first` on the values open at `first` are read.
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
  std::vector<int> next_reader_;           // Of each value: the first layer from `first` on that reads it.
  std::vector<Traffic> sent_;              // [end]: values of layers from `first` to end that are read behind, each once.
  std::vector<Traffic> received_;
};

}  // namespace

std::optional<FoundSplit> search_split(const SplitCosts& costs, SplitGoal goal, const SplitLimits& limits) {
  return Search(costs, goal, limits).run();
}

}  // namespace cohort
