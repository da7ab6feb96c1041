// Union-find over the channels of all layers (Tarjan 1975), one pass over the layers:
//
//   conv2d, linear                  channels of their own: what comes in goes into every one of them
//   relu, pooling, norms, dropout   channel c is channel c of what comes in
//   mean                            likewise
//   flatten                         features c h w ... of a picture are channel c
//   add                             channel c of both is one
//   concat                          channels of the branches, one after the other
//   shortcut                        channel c is channel c of what comes in; those behind it are zeros, and nobody's
//
// Cost: nearly linear in the number of channels.
#include "cohort/compress/channels/channel_classes.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/models/graph/layer_graph.h"

namespace cohort {
namespace {

const std::set<std::string> kHandsOn = {"relu", "maxpool2d", "avgpool2d", "batchnorm2d", "ghostbatchnorm2d", "dropout", "mean", "shortcut"};

}  // namespace

ChannelClasses::ChannelClasses(const LayerGraph& model, const std::vector<std::vector<int64_t>>& shapes) {
  int64_t next = 0;
  for (const std::vector<int64_t>& shape : shapes) {
    if (shape.size() < 2) fail(ErrorCode::kBadInput, model.title(), " has a layer whose output has no channels");
    firsts_.push_back(next);
    counts_.push_back(shape[1]);
    next += shape[1];
  }
  parents_.resize(static_cast<size_t>(next));
  std::iota(parents_.begin(), parents_.end(), 0);
  for (size_t i = 0; i < model.layers().size(); ++i) tie_layer(model, static_cast<int>(i));
}

size_t ChannelClasses::place(int layer, int64_t channel) const {
  const size_t index = layer == LayerGraph::kInput ? firsts_.size() - 1 : static_cast<size_t>(layer);
  return static_cast<size_t>(firsts_[index] + channel);
}

int64_t ChannelClasses::num_channels(int layer) const {
  return layer == LayerGraph::kInput ? counts_.back() : counts_[static_cast<size_t>(layer)];
}

int64_t ChannelClasses::of(int layer, int64_t channel) const { return root(static_cast<int64_t>(place(layer, channel))); }

int64_t ChannelClasses::root(int64_t number) const {
  while (parents_[static_cast<size_t>(number)] != number) number = parents_[static_cast<size_t>(number)];
  return number;
}

void ChannelClasses::tie(int layer, int64_t channel, int other, int64_t other_channel) {
  const int64_t a = of(layer, channel), b = of(other, other_channel);
  const int64_t first = std::min(a, b);
  parents_[static_cast<size_t>(a)] = parents_[static_cast<size_t>(b)] = first;
  parents_[place(layer, channel)] = parents_[place(other, other_channel)] = first;  // Shortens the way.
}

void ChannelClasses::tie_layer(const LayerGraph& model, int index) {
  const LayerGraph::Layer& layer = model.layers()[static_cast<size_t>(index)];
  const int64_t count = num_channels(index);
  const auto refuse = [&](const std::string& why) {
    fail(ErrorCode::kBadInput, model.title(), ": layer ", layer.name, " (", layer.kind, ") ", why);
  };
  if (layer.kind == "conv2d" || layer.kind == "linear") return;
  if (layer.kind == "flatten") {
    const int64_t channels = num_channels(layer.inputs[0]);
    if (channels == 0 || count % channels != 0) refuse("makes features that are not those of its input's channels");
    for (int64_t feature = 0; feature < count; ++feature) tie(index, feature, layer.inputs[0], feature / (count / channels));
  } else if (layer.kind == "concat") {
    int64_t next = 0;
    for (const int input : layer.inputs)
      for (int64_t channel = 0; channel < num_channels(input); ++channel) tie(index, next++, input, channel);
    if (next != count) refuse("does not put its inputs' channels one after the other");
  } else if (layer.kind == "add") {
    for (const int input : layer.inputs) {
      if (num_channels(input) != count) refuse("adds outputs of different sizes");
      for (int64_t channel = 0; channel < count; ++channel) tie(index, channel, input, channel);
    }
  } else if (kHandsOn.contains(layer.kind)) {
    const int64_t common = num_channels(layer.inputs[0]);
    if (common > count || (common < count && layer.kind != "shortcut")) refuse("has other channels than its input");
    for (int64_t channel = 0; channel < common; ++channel) tie(index, channel, layer.inputs[0], channel);
  } else {
    refuse("does something to channels that is not known");
  }
}

}  // namespace cohort
