#include "cohort/train/distil/layer_taps.h"

#include <algorithm>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/models/graph/layer_graph.h"

namespace cohort {

LayerTaps::LayerTaps(LayerGraph& model, const std::vector<std::string>& layers, const std::string& option)
    : outputs_(std::make_shared<std::vector<at::Tensor>>(layers.size())) {
  std::vector<std::string> known;
  for (const LayerGraph::Layer& layer : model.layers()) known.push_back(layer.name);
  for (size_t place = 0; place < layers.size(); ++place) {
    const auto found = std::find(known.begin(), known.end(), layers[place]);
    if (found == known.end())
      fail(ErrorCode::kBadInput, option, ": ", model.title(), " has no layer ", quote_text(layers[place]),
           did_you_mean(layers[place], known), "; it has ", join(known, ", "));
    const auto index = static_cast<size_t>(found - known.begin());
    const LayerGraph::Layer& layer = model.layers()[index];
    model.replace_layer(index, layer.module, [exact = layer.function, outputs = outputs_, place](const LayerGraph::Inputs& inputs) {
      at::Tensor output = exact(inputs);
      (*outputs)[place] = output.clone();  // The next layer may work in place.
      return output;
    });
  }
}

std::vector<at::Tensor> LayerTaps::take() const { return std::exchange(*outputs_, std::vector<at::Tensor>(outputs_->size())); }

}  // namespace cohort
