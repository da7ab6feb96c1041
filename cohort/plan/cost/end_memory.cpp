// A forward without a backward keeps an output until the last layer that reads it has run:
//
//   forward      at layer i: outputs that i or a layer behind it still reads, its own output, and as much again to work with (its scratch
//                is not profiled apart from backward's; a softmax or a sum makes one more of that size)
//   evaluation   the scores, which ranks of a tensor axis gather, and their log-softmax beside them
//
// Cost: O(layers + edges). Source: models/graph/layer_graph.cpp frees outputs so, train/model/evaluate.cpp makes the loss. Held against
// trainings with and without a text sample (docs/guide/planning.md).

#include "cohort/plan/cost/end_memory.h"

#include <algorithm>

namespace cohort {

int64_t evaluation_samples(int64_t global_batch, int64_t accumulate, int64_t micro_batch, bool has_limit) {
  constexpr int64_t kLeast = 8, kMost = 250;
  const int64_t usual = std::clamp<int64_t>(global_batch / std::max<int64_t>(1, accumulate), kLeast, kMost);
  return has_limit ? std::clamp<int64_t>(micro_batch, 1, usual) : usual;
}

int64_t forward_only_bytes(const Profile& profile, const std::vector<int>& layers) {
  std::vector<int> last_reader(profile.layers.size(), -1);
  for (const auto& [from, to] : profile.edges)
    if (from >= 0) last_reader[static_cast<size_t>(from)] = std::max(last_reader[static_cast<size_t>(from)], to);
  int64_t most = 0, alive = 0;
  std::vector<std::pair<int, int64_t>> held;  // (last reader, bytes)
  for (const int layer : layers) {
    const int64_t output = profile.layers[static_cast<size_t>(layer)].output_bytes;
    most = std::max(most, alive + 2 * output);
    held.emplace_back(last_reader[static_cast<size_t>(layer)], output);
    alive += output;
    std::erase_if(held, [&](const auto& one) {
      if (one.first > layer || one.first < 0) return false;  // One that no layer reads is the answer.
      alive -= one.second;
      return true;
    });
  }
  return most;
}

int64_t evaluation_bytes(const Profile& profile, const std::vector<int>& layers, int tp) {
  int64_t loss = 0;
  if (!layers.empty() && layers.back() + 1 == static_cast<int>(profile.layers.size()))
    loss = (tp > 1 ? 3 : 2) * profile.layers.back().output_bytes * (tp > 1 ? tp : 1);
  return std::max(forward_only_bytes(profile, layers), loss);
}

}  // namespace cohort
