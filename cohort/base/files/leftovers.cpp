#include "cohort/base/files/leftovers.h"

#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <exception>
#include <filesystem>
#include <system_error>

#include "cohort/base/files/process_identity.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNonceLetters = 16;

/// `take` gets the name and the state of each entry of `folder`; what fails is left.
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
