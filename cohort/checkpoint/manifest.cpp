// Writes and reads manifest.json, in three stages:
//   1. The last 29 bytes are ,"xxh64":"<16 hex digits>"} and a line feed. The digits are the XXH64 (seed 0) of all bytes before them, so a
//      damaged manifest is refused before it is parsed.
//   2. The text is one JSON object, parsed with bounded depth and without duplicate keys; every member's type and range is checked.
//   3. index_tensors: the pieces of each tensor agree and hold every element exactly once.
// Tensors and files are arrays, not objects keyed by name, because look-up in Json is linear.

#include "cohort/checkpoint/manifest.h"

#include <charconv>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/text/json_fields.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/checkpoint/names.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace cohort {
namespace {

constexpr const char* kFormat = "cohort-checkpoint";
constexpr int64_t kVersion = 1;
constexpr std::string_view kTrailerStart = ",\"xxh64\":\"";
constexpr std::string_view kTrailerEnd = "\"}\n";
constexpr size_t kTrailerBytes = kTrailerStart.size() + 16 + kTrailerEnd.size();

std::string trailer(std::string_view body) {
  return std::string(kTrailerStart) + checksum_text(XXH64(body.data(), body.size(), 0)) + std::string(kTrailerEnd);
}

DType dtype_of(const JsonFields& fields) {
  try {
    return dtype_from_name(fields.text("dtype"));
  } catch (const Error& error) {
    fields.refuse(error.what());
  }
}

std::string entry_of(const JsonFields& fields, const std::string& tensor) { return fields.has("entry") ? fields.text("entry") : tensor; }

Json tensor_json(const std::string& name, const TensorRecord& record, const std::vector<ShardInfo>& shards) {
  Json pieces = Json::array();
  for (size_t i = 0; i < record.boxes.size(); ++i) {
    const ShardInfo& shard = shards[record.places[i].shard];
    const std::string& entry = shard.pieces[record.places[i].piece].entry;
    Json piece = {{"file", shard.file}, {"begin", record.boxes[i].begin}, {"shape", record.boxes[i].shape}};
    if (entry != name) piece["entry"] = entry;
    pieces.push_back(std::move(piece));
  }
  return {{"name", name}, {"dtype", dtype_name(record.dtype)}, {"shape", record.shape}, {"pieces", std::move(pieces)}};
}

std::vector<ShardInfo> parse_files(const JsonFields& fields, const std::string& path, std::map<std::string, size_t>* positions) {
  std::vector<ShardInfo> shards;
  for (const Json& item : fields.array("files", kMaxFiles)) {
    const std::string where = concat(path, ": item ", shards.size(), " of \"files\"");
    const JsonFields file(item, where);
    ShardInfo shard;
    shard.file = file.text("name");
    shard.bytes = file.natural("bytes");
    shard.checksum = checksum_from_text(file.text("xxh64"), where);
    (*positions)[shard.file] = shards.size();  // index_tensors() refuses duplicate names.
    shards.push_back(std::move(shard));
  }
  return shards;
}

void parse_tensor(const Json& item, const std::string& path, const std::map<std::string, size_t>& positions,
                  std::vector<ShardInfo>& shards) {
  const std::string where_item = path + ": an item of \"tensors\"";
  const std::string& name = JsonFields(item, where_item).text("name");
  const std::string where = path + ": tensor " + quote_text(name);
  const JsonFields fields(item, where);
  const DType dtype = dtype_of(fields);
  const std::vector<int64_t> shape = fields.naturals("shape", kMaxDimensions);
  for (const Json& piece_item : fields.array("pieces", kMaxPieces)) {
    const JsonFields piece(piece_item, where);
    const auto position = positions.find(piece.text("file"));
    if (position == positions.end()) fields.refuse("file ", quote_text(piece.text("file")), " is not listed in \"files\"");
    shards[position->second].pieces.push_back(
        {name, dtype, shape, piece.naturals("begin", kMaxDimensions), piece.naturals("shape", kMaxDimensions), entry_of(piece, name)});
  }
}

}  // namespace

std::string checksum_text(uint64_t checksum) { return hexadecimal_digits(checksum); }

uint64_t checksum_from_text(const std::string& text, const std::string& where) {
  uint64_t checksum = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), checksum, 16);
  if (error != std::errc() || end != text.data() + text.size() || checksum_text(checksum) != text) {
    fail(ErrorCode::kBadInput, where, ": expected 16 hexadecimal digits in \"xxh64\", found ", quote_text(text));
  }
  return checksum;
}

Json to_json(const ShardInfo& shard) {
  Json pieces = Json::array();
  for (const ShardInfo::Piece& piece : shard.pieces) {
    Json item = {{"tensor", piece.tensor},
                 {"dtype", dtype_name(piece.dtype)},
                 {"whole_shape", piece.whole_shape},
                 {"begin", piece.begin},
                 {"shape", piece.shape}};
    if (piece.entry != piece.tensor) item["entry"] = piece.entry;
    pieces.push_back(std::move(item));
  }
  return {{"file", shard.file}, {"bytes", shard.bytes}, {"xxh64", checksum_text(shard.checksum)}, {"pieces", std::move(pieces)}};
}

ShardInfo shard_from_json(const Json& json) {
  const std::string where = "shard description";
  const JsonFields fields(json, where);
  ShardInfo shard;
  shard.file = fields.text("file");
  if (!valid_shard_name(shard.file)) fields.refuse("file name ", quote_text(shard.file), " is not one of a shard");
  shard.bytes = fields.natural("bytes");
  shard.checksum = checksum_from_text(fields.text("xxh64"), where);
  for (const Json& item : fields.array("pieces", kMaxPieces)) {
    const JsonFields member(item, where);
    ShardInfo::Piece piece{member.text("tensor"),
                           dtype_of(member),
                           member.naturals("whole_shape", kMaxDimensions),
                           member.naturals("begin", kMaxDimensions),
                           member.naturals("shape", kMaxDimensions),
                           entry_of(member, member.text("tensor"))};
    if (const std::string error = box_error({piece.begin, piece.shape}, piece.whole_shape); !error.empty()) {
      fields.refuse("tensor ", quote_text(piece.tensor), ": ", error);
    }
    shard.pieces.push_back(std::move(piece));
  }
  return shard;
}

TensorIndex index_tensors(const std::vector<ShardInfo>& shards, const std::string& where) {
  TensorIndex index;
  std::set<std::string> files;
  for (size_t s = 0; s < shards.size(); ++s) {
    if (!valid_shard_name(shards[s].file))
      fail(ErrorCode::kBadInput, where, ": file name ", quote_text(shards[s].file), " is not one of a shard");
    if (!files.insert(shards[s].file).second) fail(ErrorCode::kBadInput, where, ": file ", quote_text(shards[s].file), " comes twice");
    for (size_t p = 0; p < shards[s].pieces.size(); ++p) {
      const ShardInfo::Piece& piece = shards[s].pieces[p];
      const auto refuse = [&](const auto&... parts) {
        fail(ErrorCode::kBadInput, where, ": tensor ", quote_text(piece.tensor), ": ", parts...);
      };
      const auto [found, is_new] = index.try_emplace(piece.tensor);
      TensorRecord& record = found->second;
      if (is_new) {
        record.dtype = piece.dtype;
        record.shape = piece.whole_shape;
      }
      if (record.dtype != piece.dtype || record.shape != piece.whole_shape) {
        refuse(dtype_name(record.dtype), " ", shape_text(record.shape), " in one piece, ", dtype_name(piece.dtype), " ",
               shape_text(piece.whole_shape), " in ", shards[s].file);
      }
      Box box{piece.begin, piece.shape};
      if (const std::string error = box_error(box, record.shape); !error.empty()) refuse(error);
      const int64_t elements = checked_num_elements(record.shape);
      if (elements < 0 || elements > INT64_MAX / dtype_bytes(record.dtype))
        refuse("shape ", shape_text(record.shape), " has more than 2^63-1 bytes");
      record.boxes.push_back(std::move(box));
      record.places.push_back({s, p});
    }
  }
  for (const auto& [name, record] : index) {
    if (const std::string error = cover_error(record.boxes, record.shape); !error.empty())
      fail(ErrorCode::kBadInput, where, ": tensor ", quote_text(name), ": ", error);
  }
  return index;
}

std::string manifest_text(const Manifest& manifest, const TensorIndex& index) {
  Json tensors = Json::array(), files = Json::array();
  for (const auto& [name, record] : index) tensors.push_back(tensor_json(name, record, manifest.shards));
  for (const ShardInfo& shard : manifest.shards)
    files.push_back({{"name", shard.file}, {"bytes", shard.bytes}, {"xxh64", checksum_text(shard.checksum)}});
  const Json json = {{"format", kFormat},       {"version", kVersion},       {"step", manifest.step},
                     {"state", manifest.state}, {"files", std::move(files)}, {"tensors", std::move(tensors)}};
  std::string text;
  try {
    text = json.dump();
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::kBadInput, "the checkpoint's state or a tensor's name is not UTF-8: ", error.what());
  }
  text.pop_back();  // The closing brace, which the trailer adds.
  text += trailer(text);
  if (text.size() > kMaxManifestBytes)
    fail(ErrorCode::kBadInput, "the manifest would have ", text.size(), " bytes, at most ", kMaxManifestBytes, " can be read back");
  return text;
}

Manifest parse_manifest(std::string_view text, const std::string& path, TensorIndex* index) {
  if (text.size() < kTrailerBytes + 1) fail(ErrorCode::kBadInput, path, ": ", text.size(), " bytes, too few for a manifest");
  const std::string_view body = text.substr(0, text.size() - kTrailerBytes);
  if (text.substr(body.size()) != trailer(body)) fail(ErrorCode::kBadInput, path, ": the checksum at its end does not fit its content");

  const Json json = parse_strict_ordered_json(text, {.path = path, .max_depth = 64});
  const JsonFields fields(json, path);
  if (fields.text("format") != kFormat)
    fields.refuse("expected \"", kFormat, "\" in \"format\", found ", quote_text(fields.text("format")));
  if (fields.natural("version") != kVersion)
    fields.refuse("version ", fields.natural("version"), ", this program reads version ", kVersion);
  Manifest manifest;
  manifest.step = fields.natural("step");
  manifest.state = fields.member("state");
  std::map<std::string, size_t> positions;
  manifest.shards = parse_files(fields, path, &positions);
  for (const Json& item : fields.array("tensors", kMaxPieces)) parse_tensor(item, path, positions, manifest.shards);
  *index = index_tensors(manifest.shards, path);
  return manifest;
}

}  // namespace cohort
