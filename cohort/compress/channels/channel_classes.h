#pragma once
// Which channels of a model's layers are one and the same: where a sum, a skip, a concatenation or a flatten ties them together, all of
// them stay or all of them go.

#include <cstdint>
#include <vector>

namespace cohort {

class LayerGraph;

/// The channels of a layer are dimension 1 of its output; features of a flattened picture are channels of their own, tied to those that
/// they come from. A value.
class ChannelClasses {
 public:
  /// `shapes`: of every layer's output, and of the model's input behind them. Error(kBadInput) naming a layer whose kind does something to
  /// channels that is not known here.
  ChannelClasses(const LayerGraph& model, const std::vector<std::vector<int64_t>>& shapes);

  int64_t num_channels(int layer) const;
  /// A number that is the same for channels that are one; `layer` may be LayerGraph::kInput.
  int64_t of(int layer, int64_t channel) const;

 private:
  size_t place(int layer, int64_t channel) const;
  void tie(int layer, int64_t channel, int other, int64_t other_channel);
  void tie_layer(const LayerGraph& model, int index);
  int64_t root(int64_t number) const;

  std::vector<int64_t> firsts_;   ///< One a layer and one for the input: the number of its first channel.
  std::vector<int64_t> counts_;   ///< Likewise: its channels.
  std::vector<int64_t> parents_;  ///< Union-find: a root is its own parent, and the smallest number of its class.
};

}  // namespace cohort
