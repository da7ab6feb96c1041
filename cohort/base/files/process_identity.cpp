#include "cohort/base/files/process_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/json_fields.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/base/value_hash.h"

namespace cohort {

std::vector<std::string> process_stat(int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text, '\0');  // The name may hold line breaks.
  const size_t close = text.rfind(')');
  if (close == std::string::npos) return {};
  std::istringstream words(text.substr(close + 1));
  std::vector<std::string> fields;
  for (std::string field; words >> field;) fields.push_back(field);
  return fields.size() > stat_field::kVirtualBytes ? fields : std::vector<std::string>();
}

// A PID alone does not identify a process: it may be of another host or container, or reused. Boot id and PID namespace determine whether
// PIDs are comparable; the start time (clock ticks since boot, field 22 of /proc/PID/stat) distinguishes a process from a later one.

namespace {

constexpr size_t kMaxProcFileBytes = 1 << 16;

/// "boot id/pid namespace"; empty where /proc is unavailable.
std::string process_space() {
  char link[64];
  const ssize_t length = ::readlink("/proc/self/ns/pid", link, sizeof link);
  if (length <= 0) return {};
  try {
    std::string boot = read_small_file("/proc/sys/kernel/random/boot_id", kMaxProcFileBytes);
    while (!boot.empty() && boot.back() == '\n') boot.pop_back();
    return boot + "/" + std::string(link, static_cast<size_t>(length));
  } catch (const Error&) {
    return {};
  }
}

/// Clock ticks from boot to the start of a process; 0 where it does not exist or is a zombie (in a container it may stay one), -1 where
/// /proc is unavailable.
int64_t start_ticks(int64_t pid) {
  const std::string path = "/proc/" + std::to_string(pid);
  if (::access(path.c_str(), F_OK) < 0) return errno == ENOENT ? 0 : -1;
  const std::vector<std::string> fields = process_stat(pid);
  if (fields.empty()) return ::access(path.c_str(), F_OK) < 0 && errno == ENOENT ? 0 : -1;  // It may have ended in between.
  if (fields[stat_field::kState] == "Z" || fields[stat_field::kState] == "X") return 0;
  return parse_integer(fields[stat_field::kStartTicks]).value_or(-1);
}

constexpr int kSpaceBits = 16, kPidBits = 22, kStartBits = 14, kCountBits = 12;  // Linux has no larger PIDs.

uint64_t low_bits(uint64_t number, int bits) { return number & ((uint64_t{1} << bits) - 1); }

uint64_t hashed(const std::string& text, int bits) {
  ValueHash hash;
  hash.add(text);
  return low_bits(std::stoull(hash.text(), nullptr, 16), bits);
}

/// The nonce without its count.
uint64_t number_of(int64_t pid, int64_t ticks, const std::string& space) {
  return (hashed(space, kSpaceBits) << kPidBits | static_cast<uint64_t>(pid)) << kStartBits | hashed(std::to_string(ticks), kStartBits);
}

}  // namespace

std::string process_nonce(uint64_t count) {
  const int64_t pid = ::getpid(), ticks = start_ticks(pid);
  const std::string space = process_space();
  if (space.empty() || ticks <= 0 || pid >> kPidBits != 0) return random_name();
  return hexadecimal_digits(number_of(pid, ticks, space) << kCountBits | low_bits(count, kCountBits));
}

ProcessState state_of_nonce(const std::string& nonce) {
  const std::string space = process_space();
  if (space.empty() || nonce.size() != 16 || nonce.find_first_not_of("0123456789abcdef") != std::string::npos)
    return ProcessState::kUnknown;
  const uint64_t number = std::stoull(nonce, nullptr, 16) >> kCountBits;
  if (number >> (kPidBits + kStartBits) != hashed(space, kSpaceBits)) return ProcessState::kUnknown;
  const auto pid = static_cast<int64_t>(low_bits(number >> kStartBits, kPidBits));
  const int64_t ticks = start_ticks(pid);
  if (ticks < 0) return ProcessState::kUnknown;
  return ticks > 0 && number_of(pid, ticks, space) == number ? ProcessState::kAlive : ProcessState::kGone;
}

std::string describe_this_process() {
  const int64_t pid = ::getpid();
  return Json{{"space", process_space()}, {"pid", pid}, {"start_ticks", start_ticks(pid)}}.dump() + "\n";
}

ProcessState process_state(const std::string& description) {
  try {
    const std::string where = "writer";
    const Json json = parse_strict_ordered_json(description, {.path = where});
    const JsonFields fields(json, where);
    const std::string space = process_space();
    if (space.empty() || fields.text("space") != space) return ProcessState::kUnknown;
    const int64_t now = start_ticks(fields.natural("pid"));
    if (now < 0 || fields.natural("start_ticks") == 0) return ProcessState::kUnknown;
    return now == fields.natural("start_ticks") ? ProcessState::kAlive : ProcessState::kGone;
  } catch (const Error&) {
    return ProcessState::kUnknown;
  }
}

namespace {

namespace fs = std::filesystem;

constexpr size_t kNonceLetters = 16;

/// Calls `take` with the name and the status of each entry of `folder`; ignores failures.
template <typename Take>
void each_entry(const std::string& folder, const Take& take) noexcept {
  try {
    std::error_code ended;
    for (fs::directory_iterator entry(folder, ended), end; !ended && entry != end; entry.increment(ended)) {
      struct stat status{};
      if (::lstat(entry->path().c_str(), &status) == 0) take(entry->path().filename().string(), status);
    }
  } catch (const std::exception&) {  // Out of memory.
  }
}

}  // namespace

void remove_leftover_files(const std::string& folder, const std::string& name) noexcept {
  constexpr std::time_t kDay = 86'400;
  each_entry(folder, [&](const std::string& entry, const struct stat& status) {
    const size_t mark = entry.rfind(".tmp.");
    if (S_ISDIR(status.st_mode) || mark == std::string::npos || entry.size() != mark + 5 + kNonceLetters) return;
    if (!name.empty() && entry.substr(0, mark) != name) return;
    const ProcessState state = state_of_nonce(entry.substr(mark + 5));
    const bool is_old = state == ProcessState::kUnknown && status.st_mtim.tv_sec < std::time(nullptr) - kDay;
    if (state == ProcessState::kGone || is_old) ::unlink((folder + "/" + entry).c_str());
  });
}

void remove_leftover_folders(const std::string& place, const std::string& name) noexcept {
  each_entry(place, [&](const std::string& entry, const struct stat& status) {
    const std::string first = name + "-";
    if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || !entry.starts_with(first)) return;
    if (state_of_nonce(entry.substr(first.size(), entry.rfind('-') - first.size())) != ProcessState::kGone) return;
    std::error_code ignored;
    fs::remove_all(fs::path(place) / entry, ignored);
  });
}

}  // namespace cohort
