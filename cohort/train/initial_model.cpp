#include "cohort/train/initial_model.h"

#include <ATen/ops/empty.h>
#include <fnmatch.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/safetensors.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/checkpoint/model_file.h"
#include "cohort/checkpoint/names.h"
#include "cohort/checkpoint/retention.h"
#include "cohort/data/source/description_json.h"
#include "cohort/models/loss/losses.h"
#include "cohort/models/registry.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/train/model/checkpoint_pieces.h"

namespace cohort {
namespace {

constexpr const char* kModelPrefix = "model/";
constexpr size_t kMostNames = 6;

/// True if the weights of a compressed file (docs/formats/compressed.md) are codes; a file with pruned channels has plain tensors.
bool has_codes(const std::string& compressed) {
  const Json form = Json::parse(compressed, nullptr, /*allow_exceptions=*/false);
  const auto is_empty = [&](const char* key) {
    return form.is_object() && form.contains(key) && form[key].is_array() && form[key].empty();
  };
  return !is_empty("layers") || !is_empty("tensors");
}

/// The tensors of a checkpoint or a safetensors file, by the model's names.
class Weights {
 public:
  explicit Weights(const std::string& given) {
    if (is_exported_file(given)) file_.emplace(given);
    else checkpoint_ = open_selected_checkpoint(given, "latest");
    where_ = file_ ? given : checkpoint_->path();
    if (file_ && file_->metadata().contains("compressed") && has_codes(file_->metadata().at("compressed")))
      fail(ErrorCode::kBadInput, name_settings("--init-from: "), given,
           " was written by `cohort compress`, and its weights are codes; give the run that it was made from");
    if (file_) check_tensors(*file_, given);
  }

  const std::string& where() const { return where_; }
  std::set<std::string> names() const {
    std::set<std::string> names;
    if (file_)
      for (const TensorView& tensor : file_->tensors()) names.insert(tensor.name);
    else
      for (const std::string& name : checkpoint_->tensor_names())
        if (name.starts_with(kModelPrefix)) names.insert(name.substr(std::strlen(kModelPrefix)));
    return names;
  }
  const std::vector<int64_t>& shape(const std::string& name) const {
    return file_ ? file_->find(name)->shape : checkpoint_->shape(kModelPrefix + name);
  }
  /// The names of its outputs; empty if unknown, as in other programs' files.
  std::vector<std::string> class_names() const try {
    if (file_) {
      const auto data = file_->metadata().find("data");
      return data == file_->metadata().end()
                 ? std::vector<std::string>()
                 : description_from_json(parse_strict_ordered_json(data->second, {.path = where_}), where_).class_names;
    }
    const std::filesystem::path path = std::filesystem::path(where_).parent_path().parent_path() / kDataFile;
    std::error_code ignored;
    return std::filesystem::exists(path, ignored) ? read_description(path.string()).class_names : std::vector<std::string>();
  } catch (const Error&) {
    return {};
  }
  /// In its stored type. Error(kBadInput) for a type that no model's tensor has.
  at::Tensor read(const std::string& name) const {
    const DType type = file_ ? file_->find(name)->dtype : checkpoint_->dtype(kModelPrefix + name);
    const std::optional<at::ScalarType> torch_type = torch_type_of(static_cast<int>(type));
    if (!torch_type)
      fail(ErrorCode::kBadInput, name_settings("--init-from: "), where_, ": tensor ", quote_text(name), " has the type ", dtype_name(type),
           ", which no model's tensor has");
    at::Tensor out = at::empty(shape(name), *torch_type);
    if (!file_) checkpoint_->read_whole(kModelPrefix + name, out.data_ptr());
    else if (out.nbytes() > 0) std::memcpy(out.data_ptr(), file_->find(name)->data, out.nbytes());
    return out;
  }

 private:
  std::optional<SafetensorsFile> file_;
  std::optional<Checkpoint> checkpoint_;
  std::string where_;
};

std::string listed(const std::vector<std::string>& names) {
  const std::vector<std::string> first(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMostNames)));
  return join(first, ", ") + (names.size() > kMostNames ? concat(" and ", names.size() - kMostNames, " more") : "");
}

/// True if the shapes differ only where this model has one row or column for each output.
bool is_of_head(const std::vector<int64_t>& mine, const std::vector<int64_t>& theirs, int64_t num_outputs) {
  if (mine.size() != theirs.size()) return false;
  for (size_t d = 0; d < mine.size(); ++d)
    if (mine[d] != theirs[d] && mine[d] != num_outputs) return false;
  return true;
}

/// The name itself, or an alias of it (tied weights); none if the file has neither.
std::optional<std::string> name_in(const std::set<std::string>& there, const std::string& name,
                                   const std::map<std::string, std::string>& aliases) {
  if (there.contains(name)) return name;
  for (const auto& [alias, first] : aliases)
    if (first == name && there.contains(alias)) return alias;
  return std::nullopt;
}

/// A note for a head that is kept although its outputs have other names.
std::string other_classes(const std::vector<std::string>& theirs, const std::vector<std::string>& mine) {
  if (theirs.size() != mine.size()) return "";
  for (size_t i = 0; i < mine.size(); ++i)
    if (theirs[i] != mine[i])
      return concat("; its output ", i, " was trained as ", quote_text(theirs[i]), " and is ", quote_text(mine[i]),
                    " here: what it knows of classes is taken by their place");
  return "";
}

std::string take_weights(LayerGraph& model, const Config& config, const DataShape& shape) {
  const at::NoGradGuard no_grad;
  const Weights weights(config.init_from);
  const std::set<std::string> there = weights.names();
  std::map<std::string, std::string> aliases;
  std::vector<NamedTensor> tensors = distinct_parameters(model, &aliases);
  for (NamedTensor& buffer : distinct_buffers(model, &aliases)) tensors.push_back(std::move(buffer));
  std::set<std::string> left = there;
  std::vector<std::string> made_new;
  int64_t num_taken = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::optional<std::string> found = name_in(there, name, aliases);
    if (!found && name.ends_with("num_batches_tracked")) continue;  // It is never read, and few programs write it.
    if (!found)
      fail(ErrorCode::kBadInput, name_settings("--init-from: "), weights.where(), " has no tensor ", name, ", which model ", config.model,
           " has; it holds ", listed({there.begin(), there.end()}), "; give the model that it was made from (", name_settings("--model"),
           ")");
    left.erase(*found);
    const std::vector<int64_t>& theirs = weights.shape(*found);
    if (theirs == tensor.sizes().vec()) {
      tensor.copy_(weights.read(*found));
      ++num_taken;
    } else if (is_of_head(tensor.sizes().vec(), theirs, shape.num_classes)) {
      made_new.push_back(concat(name, " ", shape_text(tensor.sizes().vec()), ", there ", shape_text(theirs)));
    } else {
      fail(ErrorCode::kBadInput, name_settings("--init-from: "), weights.where(), ": tensor ", name, " is ", shape_text(theirs),
           ", and that of model ", config.model, " on these data is ", shape_text(tensor.sizes().vec()), "; only layers that give the ",
           shape.num_classes, " outputs of the data may differ");
    }
  }
  for (const auto& [alias, name] : aliases) left.erase(alias);
  if (num_taken == 0)
    fail(ErrorCode::kBadInput, name_settings("--init-from: "), weights.where(), " has no tensor that fits model ", config.model,
         "; give the model that it was made from");
  std::string text = concat("began with ", num_taken, num_taken == 1 ? " tensor of " : " tensors of ", weights.where());
  if (!made_new.empty()) text += concat("; new for ", shape.num_classes, " outputs: ", listed(made_new));
  else text += other_classes(weights.class_names(), shape.class_names);
  if (!left.empty()) text += concat("; not in this model: ", listed({left.begin(), left.end()}));
  return text;
}

/// A pattern matches a tensor, or a layer with all of its tensors.
bool matches(const std::string& pattern, const std::string& name) {
  for (size_t end = name.find('.');; end = name.find('.', end + 1)) {
    if (::fnmatch(pattern.c_str(), name.substr(0, end).c_str(), 0) == 0) return true;
    if (end == std::string::npos) return false;
  }
}

std::string freeze(const LayerGraph& model, const Config& config) {
  const std::vector<NamedTensor> parameters = distinct_parameters(model);
  std::vector<std::string> names;
  names.reserve(parameters.size());
  for (const NamedTensor& parameter : parameters) names.push_back(parameter.name);
  int64_t num_frozen = 0, elements = 0, all_elements = 0;
  std::set<std::string> frozen;
  for (const std::string& pattern : split(config.freeze, ',')) {
    const auto named = [&](const std::string& name) { return matches(pattern, name); };
    if (std::none_of(names.begin(), names.end(), named))
      fail(ErrorCode::kBadInput, name_settings("--freeze: "), quote_text(pattern), " names no tensor of model ", config.model, "; it has ",
           listed(names), "; a name, a layer's name, or a pattern with * and ?");
    std::copy_if(names.begin(), names.end(), std::inserter(frozen, frozen.end()), named);
  }
  for (const auto& [name, tensor] : parameters) {
    all_elements += tensor.numel();
    if (!frozen.contains(name)) continue;
    tensor.requires_grad_(false);
    ++num_frozen;
    elements += tensor.numel();
  }
  if (frozen.size() == names.size())
    fail(ErrorCode::kBadInput, name_settings("--freeze "), config.freeze, ": nothing of model ", config.model, " is left to train");
  return concat("frozen: ", num_frozen, " of ", names.size(), " tensors, ", with_commas(elements), " of ", with_commas(all_elements),
                " parameters");
}

}  // namespace

InitialModel initial_model_without_weights(const Config& config, const DataShape& shape) {
  InitialModel out{.model = build_model(config.model, shape, config.seed), .taken = "", .frozen = ""};
  set_named_loss(*out.model, config.loss, shape);
  if (!config.freeze.empty()) out.frozen = freeze(*out.model, config);
  return out;
}

InitialModel initial_model(const Config& config, const DataShape& shape) {
  InitialModel out = initial_model_without_weights(config, shape);
  if (!config.resume && !config.init_from.empty()) out.taken = take_weights(*out.model, config, shape);
  return out;
}

}  // namespace cohort
