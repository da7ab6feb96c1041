#pragma once
// A page that all ranks of one host and their launcher share: how far each rank has come and, when it fails, why. It outlives the rank, so
// the launcher can say "rank 1 was killed after step 41". Torch-free.

#include <atomic>
#include <cstdint>
#include <string>

namespace cohort {

/// One rank's record; written by that rank alone, read by anyone. Plain shared memory: no locks to be left held by a rank that dies.
struct RankStatus {
  static constexpr int64_t kCountsNone = -2;  ///< In `last_step`: no training of ours, or not yet; a program with a loop of its own.
  std::atomic<int32_t> pid{0};
  std::atomic<int32_t> error_code{0};           ///< ErrorCode of the failure in `message`, 0 for none.
  std::atomic<int64_t> last_step{kCountsNone};  ///< Last completed step of this run (counted from 1), -1 before training.
  std::atomic<int32_t> secondary{0};            ///< 1: this rank failed because another one did.
  std::atomic<int64_t> saving{0};               ///< While it writes a checkpoint: 1 and how many file calls of it have ended; else 0.
  char message[1996] = {};                      ///< Zero-terminated; complete once error_code is set.
};

/// The array of all ranks' records in an anonymous memory file. Movable owner of the mapping; the file has no name and vanishes with its
/// processes.
class StatusPage {
 public:
  StatusPage() = default;
  /// Makes a new one for `num_ranks`. Error(kEnvironment) when the system gives no memory.
  static StatusPage create(int num_ranks);
  /// Maps the one that was inherited as `fd`.
  static StatusPage open(int fd, int num_ranks);
  StatusPage(StatusPage&& other) noexcept;
  StatusPage& operator=(StatusPage&& other) noexcept;
  ~StatusPage();

  explicit operator bool() const { return ranks_ != nullptr; }
  RankStatus& operator[](int rank) const { return ranks_[rank]; }
  int fd() const { return fd_; }
  int num_ranks() const { return num_ranks_; }

 private:
  RankStatus* ranks_ = nullptr;
  int fd_ = -1;
  int num_ranks_ = 0;
};

/// From now on this rank says how far it has trained.
void count_steps(RankStatus& status);

/// A rank whose save does not get on for so long hangs: a disk, or its server, does not answer.
inline constexpr double kLongestFileCallSeconds = 600;
/// That this process writes a checkpoint: `progress` is another number after each step of that, from 1 on; 0: it is done. For the launcher,
/// where there is one of ours (`fd`, as world_from_environment() found it).
void note_saving(int64_t progress);
void set_own_status(int fd, int rank, int num_ranks);

/// Records a failure for the launcher to print; a message that is too long is cut behind a word and ends with "...".
void report_failure(RankStatus& status, int error_code, const std::string& message, bool secondary);

/// The same through descriptor `fd` (-1: none), by rank `rank` that ends with `error_code`; a lost peer (code 4) is the consequence of
/// another rank's end. False where the launcher will not print `message`: the caller does. Does not throw.
bool report_to_launcher(int fd, int rank, int num_ranks, int error_code, const std::string& message) noexcept;

}  // namespace cohort
