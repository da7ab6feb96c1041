#include "cohort/compress/compression_checks.h"

#include <filesystem>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/text/strict_json.h"

namespace cohort {

void check_not_compressed(const TrainedFile& file) {
  if (file.compressed() && !file.compressed()->is_exact())
    fail(ErrorCode::kBadInput, file.given(), " is compressed already (", quote_text(file.compressed()->method),
         "); give the run that it was made from");
}

void check_is_another(const TrainedFile& file, const std::string& out) {
  std::error_code ignored;
  if (std::filesystem::equivalent(file.path(), out, ignored))
    fail(ErrorCode::kBadInput, "--out ", out, " is the file that is read, and would be lost; give another name");
}

void check_compressed_name(const std::string& out) {
  if (std::filesystem::path(out).extension() != ".safetensors")
    fail(ErrorCode::kBadInput, "--out ", out, ": safetensors is what is written; give a name that ends in .safetensors");
  check_writable_file(out);
  check_holds_kind(out, "{", 8, "a safetensors file");
}

}  // namespace cohort
