#include "cohort/checkpoint/tools.h"

#include <cstddef>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/checkpoint/model_file.h"
#include "cohort/checkpoint/retention.h"
#include "cohort/data/source/description_json.h"

namespace cohort {
namespace {

constexpr const char* kModelPrefix = "model/";

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

int64_t total_bytes(const Checkpoint& checkpoint) {
  int64_t bytes = 0;
  for (const ShardInfo& shard : checkpoint.shards()) bytes += shard.bytes;
  return bytes;
}

/// Abbreviates long strings, long arrays and deep values.
Json summary(const Json& value, int depth = 0) {
  constexpr size_t kMaxItems = 16, kMaxText = 200;
  constexpr int kMaxDepth = 6;
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    return text.size() > kMaxText ? Json(concat("... ", text.size(), " characters")) : value;
  }
  if (!value.is_structured()) return value;
  if (depth >= kMaxDepth || (value.is_array() && value.size() > kMaxItems)) return concat("... ", value.size(), " items");
  Json out = value.is_array() ? Json::array() : Json::object();
  if (value.is_array()) {
    for (const Json& item : value) out.push_back(summary(item, depth + 1));
  } else {
    for (const auto& [key, item] : value.items()) out[key] = summary(item, depth + 1);
  }
  return out;
}

void describe(const Checkpoint& checkpoint, Json& out) {
  out["step"] = checkpoint.step();
  out["bytes"] = total_bytes(checkpoint);
  out["state"] = summary(checkpoint.state());
  std::map<std::string, int64_t> pieces;
  out["files"] = Json::array();
  for (const ShardInfo& shard : checkpoint.shards()) {
    out["files"].push_back({{"name", shard.file}, {"bytes", shard.bytes}, {"entries", shard.pieces.size()}});
    for (const ShardInfo::Piece& piece : shard.pieces) ++pieces[piece.tensor];
  }
  out["tensors"] = Json::array();
  for (const std::string& name : checkpoint.tensor_names()) {
    const DType dtype = checkpoint.dtype(name);
    const std::vector<int64_t>& shape = checkpoint.shape(name);
    out["tensors"].push_back({{"name", name},
                              {"dtype", dtype_name(dtype)},
                              {"shape", shape},
                              {"bytes", checked_num_elements(shape) * dtype_bytes(dtype)},
                              {"pieces", pieces[name]}});
  }
}

/// {"path", "step", ..., "ok"}; `checkpoint` receives the opened one.
Json inspect(const std::string& path, bool verify_data, std::optional<Checkpoint>* checkpoint) {
  Json line = {{"path", path}};
  try {
    *checkpoint = Checkpoint::open(path, verify_data);
    line["step"] = (*checkpoint)->step();
    line["bytes"] = total_bytes(**checkpoint);
    line["tensors"] = (*checkpoint)->tensor_names().size();
    line["files"] = (*checkpoint)->shards().size();
    line["ok"] = true;
  } catch (const std::exception& error) {
    line["ok"] = false;
    line["error"] = error.what();
  }
  return line;
}

/// Calls inspect() on each checkpoint, newest first, until `look` returns true. A running training removes old ones: removed ones are
/// skipped, and if all are gone the list is read again.
void inspect_each(const std::string& path, bool verify_data,
                  const std::function<bool(const Json& line, std::optional<Checkpoint>&)>& look) {
  constexpr int kMostLists = 100;
  for (int lists = 0; lists < kMostLists; ++lists) {
    bool is_any_there = false;
    for (const std::string& folder : find_checkpoints(path)) {
      std::optional<Checkpoint> checkpoint;
      const Json line = inspect(folder, verify_data, &checkpoint);
      if (!checkpoint && !exists(folder)) continue;
      is_any_there = true;
      if (look(line, checkpoint)) return;
    }
    if (is_any_there) return;
  }
  fail(ErrorCode::kBadInput, "the checkpoints of ", path, " were removed faster than they could be read; read one when the run has ended");
}

Checkpoint open_newest(const std::string& path) {
  std::string reasons;
  std::optional<Checkpoint> newest;
  inspect_each(path, /*verify_data=*/true, [&](const Json& line, std::optional<Checkpoint>& checkpoint) {
    if (!checkpoint) reasons += (reasons.empty() ? "" : "; ") + line["error"].get<std::string>();
    newest = std::move(checkpoint);
    return newest.has_value();
  });
  if (!newest) fail(ErrorCode::kBadInput, "no valid checkpoint in ", path, ": ", reasons);
  return std::move(*newest);
}

/// Names in state.aliases may have the prefix "model/" or not.
std::string without_prefix(const std::string& name) {
  return name.rfind(kModelPrefix, 0) == 0 ? name.substr(std::char_traits<char>::length(kModelPrefix)) : name;
}

/// The model's tensors by name. Those of several pieces are copied to `buffers`, others point into the mapped files.
std::vector<TensorView> model_tensors(const Checkpoint& checkpoint, std::vector<std::vector<std::byte>>& buffers) {
  std::vector<TensorView> views;
  for (const std::string& name : checkpoint.tensor_names()) {
    if (name.rfind(kModelPrefix, 0) != 0) continue;
    TensorView view{without_prefix(name), checkpoint.dtype(name), checkpoint.shape(name), checkpoint.contiguous_data(name)};
    if (view.data == nullptr) {
      buffers.emplace_back(static_cast<size_t>(view.num_bytes()));
      checkpoint.read_whole(name, buffers.back().data());
      view.data = buffers.back().data();
    }
    views.push_back(std::move(view));
  }
  if (views.empty()) fail(ErrorCode::kBadInput, checkpoint.path(), ": holds no tensor of a model (\"", kModelPrefix, "...\")");
  return views;
}

void add_aliases(const Checkpoint& checkpoint, std::vector<TensorView>& views) {
  if (!checkpoint.state().is_object() || !checkpoint.state().contains("aliases")) return;
  const Json& aliases = checkpoint.state()["aliases"];
  if (!aliases.is_object()) fail(ErrorCode::kBadInput, checkpoint.path(), ": \"aliases\" in its state is not an object");
  std::map<std::string, TensorView> stored;
  for (const TensorView& view : views) stored[view.name] = view;
  for (const auto& [alias, target] : aliases.items()) {
    const auto found = target.is_string() ? stored.find(without_prefix(target.get<std::string>())) : stored.end();
    if (found == stored.end())
      fail(ErrorCode::kBadInput, checkpoint.path(), ": alias ", quote_text(alias), " stands for a tensor that is not stored");
    views.push_back(found->second);
    views.back().name = without_prefix(alias);
  }
}

}  // namespace

Json checkpoint_info(const std::string& path) {
  Json out = {{"path", path}}, lines = Json::array();
  std::string reasons;
  bool described = false;
  inspect_each(path, /*verify_data=*/false, [&](const Json& line, std::optional<Checkpoint>& checkpoint) {
    lines.push_back(line);
    if (!checkpoint) reasons += (reasons.empty() ? "" : "; ") + line["error"].get<std::string>();
    if (!checkpoint || described) return false;
    out["path"] = checkpoint->path();
    describe(*checkpoint, out);
    described = true;
    return false;
  });
  if (!described) fail(ErrorCode::kBadInput, "no valid checkpoint in ", path, ": ", reasons);
  out["checkpoints"] = std::move(lines);
  return out;
}

Json checkpoint_verify(const std::string& path) {
  Json lines = Json::array();
  bool ok = true;
  inspect_each(path, /*verify_data=*/true, [&](const Json& line, std::optional<Checkpoint>& checkpoint) {
    lines.push_back(line);
    ok = ok && checkpoint.has_value();
    return false;
  });
  Json out = {{"path", path}, {"ok", ok}, {"checkpoints", std::move(lines)}};
  const std::filesystem::path first = std::filesystem::absolute(out["checkpoints"].front()["path"].get<std::string>());
  const std::string data = (first.parent_path().parent_path() / kDataFile).string();
  if (!exists(data)) return out;
  out["data"] = {{"path", data}, {"ok", true}};
  try {
    read_description(data);
  } catch (const Error& error) {
    out["ok"] = out["data"]["ok"] = false;
    out["data"]["error"] = error.what();
  }
  return out;
}

void check_export_name(const std::string& out_file) {
  const std::string ending = std::filesystem::path(out_file).extension().string();
  if (ending == ".safetensors") return;
  const std::map<std::string, std::string> others = {{".onnx", "an ONNX model, a graph of operators"},
                                                     {".pt", "a pickle of PyTorch's"},
                                                     {".pth", "a pickle of PyTorch's"},
                                                     {".bin", "a pickle of PyTorch's"},
                                                     {".h5", "HDF5"},
                                                     {".gguf", "GGUF"},
                                                     {".npz", "NumPy's archive"}};
  const auto other = others.find(ending);
  const std::string promise = ending.empty()          ? "has no ending"
                              : other == others.end() ? concat("ends in ", ending)
                                                      : concat("promises ", other->second);
  fail(
      ErrorCode::kBadInput, "checkpoint export: --out ", out_file, " ", promise,
      ", and safetensors is what is written; give a name that ends in .safetensors, which load_file of Python's package safetensors reads");
}

ExportResult checkpoint_export(const std::string& path, const std::string& out_file, const ExportOptions& options) {
  return checkpoint_export(open_newest(path), out_file, options);
}

ExportResult checkpoint_export(const Checkpoint& checkpoint, const std::string& out_file, const ExportOptions& options) {
  std::vector<std::vector<std::byte>> buffers;
  std::vector<TensorView> views = model_tensors(checkpoint, buffers);
  if (options.with_aliases) add_aliases(checkpoint, views);

  std::map<std::string, std::string> metadata = options.metadata;
  metadata["format"] = "pt";
  metadata["step"] = std::to_string(checkpoint.step());
  const int64_t bytes = write_model_file(out_file, views, metadata);
  return {checkpoint.step(), static_cast<int64_t>(views.size()), bytes};
}

}  // namespace cohort
