#include "cohort/checkpoint/model_file.h"

#include <unistd.h>

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/value_hash.h"
#include "cohort/checkpoint/io.h"

namespace cohort {
namespace {

/// By name: another program that writes the same tensors in another order leaves it as it is.
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

}  // namespace

std::map<std::string, std::string> with_tensors_checksum(const std::vector<TensorView>& tensors,
                                                         std::map<std::string, std::string> metadata) {
  metadata[kTensorsChecksum] = checksum_of(tensors);
  return metadata;
}

int64_t write_model_file(const std::string& out, const std::vector<TensorView>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  const std::map<std::string, std::string> all = with_tensors_checksum(tensors, metadata);
  CheckpointIo& io = posix_io();
  const std::string temporary = temporary_name(out);
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
  const auto promised = file.metadata().find(kTensorsChecksum);
  if (promised == file.metadata().end()) return;
  if (const std::string found = checksum_of(file.tensors()); found != promised->second)
    fail(ErrorCode::kBadInput, path, ": its tensors have the checksum ", found, ", its header says ", quote_text(promised->second),
         ": the file is damaged, copy or write it again (or another program changed its numbers: then it has to leave \"", kTensorsChecksum,
         "\" out of the header)");
}

}  // namespace cohort
