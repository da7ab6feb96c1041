#include "cohort/infer/compressed/compressed_form.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/files/safetensors.h"
#include "cohort/base/text/json_fields.h"

namespace cohort {
namespace {

constexpr int64_t kVersionOfForm = 1;
constexpr size_t kMostLayers = 10'000, kMostDimensions = 64;

using Form = CompressedLayer::Form;
constexpr std::array<std::pair<Form, const char*>, 5> kFormNames = {{{Form::kStatic, "static"},
                                                                     {Form::kDynamic, "dynamic"},
                                                                     {Form::kSum, "sum"},
                                                                     {Form::kThrough, "through"},
                                                                     {Form::kAbsorbed, "absorbed"}}};

bool has_output_scale(const CompressedLayer& layer) { return (layer.form == Form::kStatic && !layer.floats) || layer.form == Form::kSum; }

bool flag(const JsonFields& fields, const char* key) { return fields.has(key) && fields.flag(key); }

CodeScale scale_of(const JsonFields& fields, const char* key) {
  const Json& pair = fields.array(key, 2);
  const bool is_pair = pair.size() == 2 && pair[0].is_number() && pair[1].is_number_integer();
  const double scale = is_pair ? pair[0].get<double>() : 0;
  const int64_t zero_point = is_pair ? pair[1].get<int64_t>() : 0;
  // LibTorch's kernels take the scale as a float.
  if (!is_pair || !(scale > 1e-30 && scale < 1e30) || zero_point < 0 || zero_point > 255)
    fields.refuse("expected [scale, zero point] in \"", key, "\": a number from 1e-30 to 1e30, and an integer from 0 to 255");
  return {scale, zero_point};
}

CompressedLayer layer_from_json(const Json& json, const std::string& where) {
  const JsonFields fields(json, where);
  CompressedLayer layer;
  layer.name = fields.text("layer");
  const std::string& name = fields.text("form");
  const auto known = std::find_if(kFormNames.begin(), kFormNames.end(), [&](const auto& row) { return row.second == name; });
  if (known == kFormNames.end()) fields.refuse("\"form\" is ", quote_text(name), ", which this version does not know");
  layer.form = known->first;
  layer.relu = flag(fields, "relu");
  layer.floats = flag(fields, "floats");
  if (layer.relu && layer.form != Form::kStatic && layer.form != Form::kSum) fields.refuse("a layer of form ", name, " has no \"relu\"");
  if (layer.floats && layer.form != Form::kStatic) fields.refuse("a layer of form ", name, " has no \"floats\"");
  if (layer.form == Form::kStatic) layer.input = scale_of(fields, "input");
  if (has_output_scale(layer)) layer.output = scale_of(fields, "output");
  return layer;
}

CodedTensor tensor_from_json(const Json& json, const std::string& where) {
  const JsonFields fields(json, where);
  CodedTensor tensor{.shape = fields.naturals("shape", kMostDimensions), .bits = 0, .group = 0};
  const int64_t bits = fields.natural("bits"), num_elements = checked_num_elements(tensor.shape);
  if (bits != 8 && bits != 4 && bits != 32) fields.refuse("\"bits\" is ", bits, "; 8, 4 and 32 are known");
  tensor.bits = static_cast<int>(bits);
  if (tensor.shape.size() < 2 || num_elements < 1)
    fields.refuse("\"shape\" is ", shape_text(tensor.shape), ", which is not a matrix or kernel");
  if (bits == 32) {
    tensor.kept = fields.natural("kept");
    if (tensor.kept > num_elements) fields.refuse("\"kept\" is ", tensor.kept, ", of ", num_elements, " numbers");
  }
  if (fields.has("group")) {
    if (bits == 32) fields.refuse("a tensor of 32 bits has no \"group\"");
    tensor.group = fields.natural("group");
    if (tensor.group < 1 || tensor.group > tensor.columns())
      fields.refuse("\"group\" is ", tensor.group, ", of rows with ", tensor.columns(), " numbers");
  }
  return tensor;
}

}  // namespace

int64_t CodedTensor::columns() const {
  const int64_t num_elements = checked_num_elements(shape);
  return shape.empty() || shape.front() == 0 ? 0 : num_elements / shape.front();
}

bool CompressedForm::is_exact() const {
  return layers.empty() && std::all_of(tensors.begin(), tensors.end(), [](const auto& tensor) { return tensor.second.bits == 32; });
}

const char* form_name(CompressedLayer::Form form) {
  for (const auto& [known, name] : kFormNames)
    if (known == form) return name;
  return "";
}

Json to_json(const CompressedForm& form) {
  Json layers = Json::array(), tensors = Json::array();
  for (const CompressedLayer& layer : form.layers) {
    Json line{{"layer", layer.name}, {"form", form_name(layer.form)}};
    if (layer.relu) line["relu"] = true;
    if (layer.floats) line["floats"] = true;
    if (layer.form == Form::kStatic) line["input"] = {layer.input.scale, layer.input.zero_point};
    if (has_output_scale(layer)) line["output"] = {layer.output.scale, layer.output.zero_point};
    layers.push_back(std::move(line));
  }
  for (const auto& [name, tensor] : form.tensors) {
    Json line{{"tensor", name}, {"shape", tensor.shape}, {"bits", tensor.bits}};
    if (tensor.group > 0) line["group"] = tensor.group;
    if (tensor.bits == 32) line["kept"] = tensor.kept;
    tensors.push_back(std::move(line));
  }
  return {{"version", kVersionOfForm}, {"method", form.method}, {"layers", std::move(layers)}, {"tensors", std::move(tensors)}};
}

CompressedForm compressed_form_from_json(const Json& json, const std::string& where) {
  const JsonFields fields(json, where);
  if (const int64_t version = fields.natural("version"); version != kVersionOfForm)
    fields.refuse("\"version\" is ", version, ", and this program reads ", kVersionOfForm,
                  "; use the version of cohort that wrote the file");
  CompressedForm form{.method = fields.text("method"), .layers = {}, .tensors = {}};
  std::set<std::string> names;
  size_t index = 0;
  for (const Json& line : fields.array("layers", kMostLayers)) {
    form.layers.push_back(layer_from_json(line, concat(where, ", layer ", index++)));
    if (!names.insert(form.layers.back().name).second) fields.refuse("layer ", quote_text(form.layers.back().name), " occurs twice");
  }
  index = 0;
  for (const Json& line : fields.array("tensors", 10 * kMostLayers)) {
    const std::string place = concat(where, ", tensor ", index++);
    const std::string name = JsonFields(line, place).text("tensor");
    if (!form.tensors.emplace(name, tensor_from_json(line, place)).second) fields.refuse("tensor ", quote_text(name), " occurs twice");
  }
  return form;
}

}  // namespace cohort
