#include "cohort/checkpoint/model_file.h"

#include <unistd.h>

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/process_identity.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/value_hash.h"
#include "cohort/checkpoint/io.h"

namespace cohort {
namespace {

/// In the order of names, independent of the order in the file.
std::string checksum_of(const std::vector<TensorView>& tensors) {
  std::vector<const TensorView*> by_name;
  for (const TensorView& tensor : tensors) by_name.push_back(&tensor);
  std::sort(by_name.begin(), by_name.end(), [](const TensorView* a, const TensorView* b) { return a->name < b->name; });
  ValueHash hash;
  for (const TensorView* tensor : by_name) {
    hash.add(tensor->name);
    hash.add(std::string(dtype_name(tensor->dtype)));
    hash.add(tensor->shape);
    hash.add(tensor->data, static_cast<size_t>(tensor->num_bytes()));
  }
  return hash.text();
}

std::string checksum_of(const std::map<std::string, std::string>& metadata) {
  ValueHash hash;
  for (const auto& [name, text] : metadata)
    if (name != kTensorsChecksum && name != kTextChecksum) hash.add(name), hash.add(text);
  return hash.text();
}

void check_promise(const SafetensorsFile& file, const std::string& path, const char* key, const std::string& found, const char* what) {
  const std::string& promised = file.metadata().at(key);
  if (found != promised)
    fail(ErrorCode::kBadInput, path, ": ", what, " the checksum ", found, ", its header says ", quote_text(promised),
         ": the file is damaged, copy or write it again (or another program changed it: then it has to leave \"", key,
         "\" out of the header)");
}

}  // namespace

std::map<std::string, std::string> with_checksums(const std::vector<TensorView>& tensors, std::map<std::string, std::string> metadata) {
  metadata[kTensorsChecksum] = checksum_of(tensors);
  metadata[kTextChecksum] = checksum_of(metadata);
  return metadata;
}

int64_t write_model_file(const std::string& out, const std::vector<TensorView>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  const std::map<std::string, std::string> all = with_checksums(tensors, metadata);
  CheckpointIo& io = posix_io();
  const std::string temporary = temporary_name(out);
  remove_leftover_files(parent_folder(out), out.substr(out.rfind('/') + 1));  // Of killed writers.
  WrittenFile written;
  try {
    checked::write_file(io, temporary, [&](const ByteSink& sink) { written = write_safetensors(sink, out, tensors, all); });
    checked::rename(io, temporary, out);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  checked::sync_folder(io, parent_folder(out));
  return written.bytes;
}

void check_tensors(const SafetensorsFile& file, const std::string& path) {
  if (file.metadata().contains(kTextChecksum))
    check_promise(file, path, kTextChecksum, checksum_of(file.metadata()), "the text of its header has");
  if (file.metadata().contains(kTensorsChecksum))
    check_promise(file, path, kTensorsChecksum, checksum_of(file.tensors()), "its tensors have");
}

}  // namespace cohort
