#include "cohort/comm/together.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <system_error>
#include <vector>

#include "cohort/base/clock.h"
#include "cohort/base/text/log.h"
#include "cohort/comm/group_internals.h"
#include "cohort/comm/transport/calls.h"
#include "cohort/world/status.h"
#include "cohort/world/uncaught.h"

namespace cohort {
namespace {

constexpr double kMostOfRoundSeconds = 1, kBetweenLooks = 0.1;

/// Runs a function in a separate thread.
class AsyncTask {
 public:
  AsyncTask(const std::function<void()>& part, const std::function<int64_t()>& progress) : progress_(progress), last_(progress()) {
    try {
      work_ = std::async(std::launch::async, part);
    } catch (const std::system_error&) {  // No thread is available.
      work_ = std::async(std::launch::deferred, part);
      work_.wait();
    }
  }
  /// Waits at most `seconds` for its end. Whether it has ended. Without progress the process ends: nothing can end the thread.
  bool wait(double seconds, const std::string& what) {
    const std::chrono::duration<double> look(std::min(kBetweenLooks, seconds));
    for (AwakeTimer timer; timer.seconds() < seconds;) {
      if (work_.wait_for(look) == std::future_status::ready) return true;
      if (const int64_t now = progress_(); now != last_) last_ = now, since_progress_.restart();
      if (since_progress_.seconds() > kLongestFileCallSeconds)
        end_process(static_cast<int>(ErrorCode::kEnvironment),
                    concat(what, ": one call of the system took longer than ", kLongestFileCallSeconds,
                           " s; the disk, or its server, does not answer"));
    }
    return false;
  }
  void get() { work_.get(); }

 private:
  const std::function<int64_t()>& progress_;
  int64_t last_;
  AwakeTimer since_progress_;
  std::future<void> work_;
};

/// Ranks that are not done.
std::vector<int> unfinished_ranks(Group& group, bool done, const std::string& what) {
  at::Tensor mine = at::empty({1}, at::kLong), all = at::empty({group.size(), 1}, at::kLong);
  mine.data_ptr<int64_t>()[0] = done;
  group.all_gather(all, mine, what);
  std::vector<int> ranks;
  for (int rank = 0; rank < group.size(); ++rank)
    if (all.data_ptr<int64_t>()[rank] == 0) ranks.push_back(rank);
  return ranks;
}

}  // namespace

void together_patiently(Group& group, const std::string& what, const std::function<void()>& part,
                        const std::function<int64_t()>& progress) {
  const double timeout = GroupInternals::timeout_seconds(group);
  AsyncTask work(part, progress);
  AwakeTimer timer;
  double next_word = timeout;
  for (bool done = false;;) {
    done = done || work.wait(std::min(kMostOfRoundSeconds, timeout / 4), what);
    const std::vector<int> unfinished = unfinished_ranks(group, done, what);
    if (unfinished.empty()) break;
    if (timer.seconds() < next_word) continue;
    if (group.rank() == 0)
      log_warning(concat(describe_ranks(unfinished), unfinished.size() > 1 ? " have" : " has", " been writing for ",
                         static_cast<int64_t>(timer.seconds()), " s, and the others wait: a slow disk?"));
    next_word *= 2;
  }
  together(group, what, [&] { work.get(); });
}

}  // namespace cohort
