#pragma once
// A page shared by all ranks of one host and their launcher: each rank's progress and, if it fails, the reason. It outlives the rank, so
// the launcher can report "rank 1 was killed after step 41". Torch-free.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace cohort {

/// One rank's record, written only by that rank. No locks, which a dying rank could leave held.
struct RankStatus {
  static constexpr int64_t kCountsNone = -2;  ///< In `last_step`: no training yet, or a program with a loop of its own.
  std::atomic<int32_t> pid{0};
  std::atomic<int32_t> error_code{0};           ///< ErrorCode of the failure in `message`, 0 for none.
  std::atomic<int64_t> last_step{kCountsNone};  ///< Last completed step of this run (from 1), -1 before the first.
  std::atomic<int32_t> secondary{0};            ///< 1: this rank failed because another did.
  std::atomic<int64_t> saving{0};               ///< While it writes a checkpoint: 1 + completed file calls; else 0.
  char message[1996] = {};                      ///< Zero-terminated; complete once error_code is set.
};

/// Owns, with its copies, the mapping of all ranks' records in an anonymous memory file, which vanishes with its processes.
class StatusPage {
 public:
  StatusPage() = default;
  /// Error(kEnvironment) if there is not enough memory.
  static StatusPage create(int num_ranks);
  /// Maps the inherited descriptor `fd`, which it then owns.
  static StatusPage open(int fd, int num_ranks);

  explicit operator bool() const { return ranks_ != nullptr; }
  RankStatus& operator[](int rank) const { return ranks_.get()[rank]; }
  int fd() const { return fd_; }
  int num_ranks() const { return num_ranks_; }

 private:
  std::shared_ptr<RankStatus> ranks_;  // Unmaps the page and closes fd_.
  int fd_ = -1;
  int num_ranks_ = 0;
};

/// From now on this rank reports its steps.
void count_steps(RankStatus& status);

/// A save without progress for so long hangs: the disk or file server does not answer.
inline constexpr double kLongestFileCallSeconds = 600;
/// Reports to our launcher, if any, that this process is writing a checkpoint: `progress` changes after each file call, from 1; 0: done.
void report_saving(int64_t progress);
/// This process's record, of which `fd` is the page's descriptor (-1: none).
void set_own_status(int fd, int rank, int num_ranks);

/// Records a failure for the launcher to print; a message that is too long is truncated after a word and ends with "...".
void report_failure(RankStatus& status, int error_code, const std::string& message, bool secondary);

/// The same by rank `rank` through descriptor `fd` (-1: none); a lost peer (code 4) counts as a consequence of another rank's failure.
/// False if the launcher will not print `message`, so that the caller must. Does not throw.
bool report_to_launcher(int fd, int rank, int num_ranks, int error_code, const std::string& message) noexcept;

}  // namespace cohort
