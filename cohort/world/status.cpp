#include "cohort/world/status.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {

StatusPage StatusPage::create(int num_ranks) {
  const int fd = ::memfd_create("cohort-status", 0);
  const size_t bytes = sizeof(RankStatus) * static_cast<size_t>(num_ranks);
  // Allocate now, so that missing memory is an error here and not a SIGBUS later.
  if (const int reason = fd < 0 ? errno : ::posix_fallocate(fd, 0, static_cast<off_t>(bytes)); reason != 0)
    fail(ErrorCode::kEnvironment, "no memory for the status page of ", num_ranks, " ranks: ", std::strerror(reason),
         reason == EFBIG    ? " (ulimit -f)"
         : reason == EMFILE ? " (ulimit -n)"
                            : "");
  StatusPage page = open(fd, num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) new (&page[rank]) RankStatus;
  return page;
}

StatusPage StatusPage::open(int fd, int num_ranks) {
  const size_t bytes = sizeof(RankStatus) * static_cast<size_t>(num_ranks);
  void* map = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) fail(ErrorCode::kEnvironment, "cannot map the status page (descriptor ", fd, "): ", std::strerror(errno));
  StatusPage page;
  page.ranks_ = {static_cast<RankStatus*>(map), [fd, bytes](RankStatus* ranks) {
                   ::munmap(ranks, bytes);
                   ::close(fd);
                 }};
  page.fd_ = fd;
  page.num_ranks_ = num_ranks;
  return page;
}

namespace {

std::mutex own_mutex;
int own_fd = -1, own_rank = 0, own_num_ranks = 1;
StatusPage own_page;

}  // namespace

void set_own_status(int fd, int rank, int num_ranks) {
  const std::lock_guard<std::mutex> lock(own_mutex);
  if (fd != own_fd) own_page = StatusPage();
  own_fd = fd, own_rank = rank, own_num_ranks = num_ranks;
}

void report_saving(int64_t progress) {
  const std::lock_guard<std::mutex> lock(own_mutex);
  if (own_fd < 0) return;
  if (!own_page) own_page = StatusPage::open(::dup(own_fd), own_num_ranks);
  own_page[own_rank].saving = progress;
}

void count_steps(RankStatus& status) {
  int64_t none = RankStatus::kCountsNone;
  status.last_step.compare_exchange_strong(none, -1);
}

void report_failure(RankStatus& status, int error_code, const std::string& message, bool secondary) {
  constexpr size_t kRoom = sizeof status.message - 1, kDots = 3;
  const bool fits = message.size() <= kRoom;
  const size_t length = fits ? message.size() : length_of_whole_words(message, kRoom - kDots);
  std::memcpy(status.message, message.data(), length);
  std::memcpy(status.message + length, "...", fits ? 0 : kDots);
  status.message[length + (fits ? 0 : kDots)] = 0;
  status.secondary = secondary;
  status.error_code.store(error_code, std::memory_order_release);
}

bool report_to_launcher(int fd, int rank, int num_ranks, int error_code, const std::string& message) noexcept try {
  if (fd < 0) return false;
  const StatusPage page = StatusPage::open(::dup(fd), num_ranks);
  // Children of a rank (`cohort launch -n 2 sh -c ...`) inherit the descriptor, but the launcher does not see their end.
  const bool is_rank = page[rank].pid == ::getpid();
  report_failure(page[rank], error_code, is_rank ? message : "", error_code == static_cast<int>(ErrorCode::kEnvironment));
  return is_rank;
} catch (const std::exception&) {
  return false;  // The descriptor was closed by a parent.
}

}  // namespace cohort
