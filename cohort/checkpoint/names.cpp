#include "cohort/checkpoint/names.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <tuple>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/text.h"
#include "cohort/checkpoint/io.h"

namespace cohort {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kShardSuffix = ".safetensors";

bool is_plain(char character) {
  return (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') || (character >= '0' && character <= '9') ||
         character == '-' || character == '_';
}

}  // namespace

std::string checkpoint_folder_name(const CheckpointName& name) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%09lld", static_cast<long long>(name.step));
  std::string text = std::string(kPrefix) + digits;
  if (name.kind == CheckpointName::Kind::kTemporary) text += ".tmp." + name.nonce;
  if (name.kind == CheckpointName::Kind::kAside) text += ".old." + name.nonce;
  return text;
}

std::optional<CheckpointName> parse_checkpoint_folder_name(const std::string& text) {
  if (text.rfind(kPrefix, 0) != 0) return std::nullopt;
  CheckpointName name;
  const char* const begin = text.data() + kPrefix.size();
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), name.step);
  if (error != std::errc()) return std::nullopt;
  const std::string rest(end, text.data() + text.size());
  if (!rest.empty()) {
    const std::string mark = rest.substr(0, 5);
    if (mark != ".tmp." && mark != ".old.") return std::nullopt;
    name.kind = mark == ".tmp." ? CheckpointName::Kind::kTemporary : CheckpointName::Kind::kAside;
    name.nonce = rest.substr(5);
    if (!valid_nonce(name.nonce)) return std::nullopt;
  }
  // Names are canonical: no sign, no other number of zeros.
  if (name.step < 0 || checkpoint_folder_name(name) != text) return std::nullopt;
  return name;
}

bool valid_nonce(const std::string& nonce) {
  return !nonce.empty() && nonce.size() <= 64 && std::all_of(nonce.begin(), nonce.end(), is_plain);
}

bool valid_shard_name(const std::string& name) {
  return name.size() > kShardSuffix.size() && name.size() <= 200 && name[0] != '.' &&
         std::string_view(name).substr(name.size() - kShardSuffix.size()) == kShardSuffix &&
         std::all_of(name.begin(), name.end(), [](char character) { return is_plain(character) || character == '.'; });
}

std::string shard_name(int rank) {
  char text[48];
  std::snprintf(text, sizeof text, "rank-%05d.safetensors", rank);
  return text;
}

std::string read_pointer(const std::string& path) {
  std::error_code is_no_link;
  if (const std::filesystem::path target = std::filesystem::read_symlink(path, is_no_link); !is_no_link) return target.string();
  try {
    constexpr size_t kMaxPointerBytes = 256;
    const std::string name(trim(read_small_file(path, kMaxPointerBytes)));
    const auto parsed = parse_checkpoint_folder_name(name);
    return parsed && parsed->kind == CheckpointName::Kind::kFinal ? name : "";
  } catch (const Error&) {  // A folder, or missing.
    return "";
  }
}

bool is_exported_file(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  if (std::filesystem::is_symlink(path, ignored)) return true;
  const std::string name = std::filesystem::path(path).filename().string();
  const bool is_damaged = (name == kLatestName || name == kBestName) && !list_checkpoints(parent_folder(path)).empty();
  return read_pointer(path).empty() && !is_damaged;
}

bool holds_checkpoint(const std::string& folder) {
  std::vector<std::string> names;
  if (posix_io().list(folder, &names) < 0) {
    const int reason = errno;
    FileStatus is_there;
    if (reason == ENOENT && posix_io().status(folder, &is_there) < 0) return false;
    fail_errno(ErrorCode::kBadInput, "list folder", folder, reason);  // Also for a link to an unmounted disk.
  }
  return std::any_of(names.begin(), names.end(), [&](const std::string& text) {
    const auto name = parse_checkpoint_folder_name(text);
    if (name) return name->kind != CheckpointName::Kind::kTemporary;
    return ::access((folder + "/" + text + "/" + kManifestName).c_str(), F_OK) == 0;
  });
}

std::vector<std::string> list_checkpoints(const std::string& folder) {
  std::vector<std::string> names;
  if (posix_io().list(folder, &names) < 0) {
    if (errno == ENOENT) return {};
    fail_errno(ErrorCode::kBadInput, "list folder", folder, errno);
  }
  std::vector<CheckpointName> found;
  for (const std::string& text : names) {
    const auto name = parse_checkpoint_folder_name(text);
    if (name && name->kind != CheckpointName::Kind::kTemporary) found.push_back(*name);
  }
  std::sort(found.begin(), found.end(), [](const CheckpointName& a, const CheckpointName& b) {
    return std::tie(b.step, a.kind, a.nonce) < std::tie(a.step, b.kind, b.nonce);
  });
  std::vector<std::string> sorted;
  for (const CheckpointName& name : found) sorted.push_back(checkpoint_folder_name(name));
  return sorted;
}

}  // namespace cohort
