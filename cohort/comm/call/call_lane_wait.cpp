// The part of CallLane (call_lane.h) in which threads wait: for a task, for each other, for work.

#include <sched.h>

#include <algorithm>

#include "cohort/base/error.h"
#include "cohort/comm/call/call_lane.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;

/// Waits a little, longer each time: a few yields, then naps of 50 us.
class Backoff {
 public:
  void wait() {
    if (!naps()) ::sched_yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(50));
    ++count_;
  }
  bool naps() const { return count_ >= 500; }
  /// True once in some milliseconds.
  bool looks_around() const { return naps() && count_ % 64 == 0; }
  void reset() { count_ = 0; }

 private:
  unsigned count_ = 0;
};

}  // namespace

/// Sleeps until nobody drives, or `enough`.
void CallLane::wait_for_driver(const std::function<bool()>& enough, Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  num_waiting_.fetch_add(1, std::memory_order_seq_cst);
  const auto awake = [&] { return enough() || closed_ || !driving_.load(std::memory_order_seq_cst); };
  if (deadline) awake_.wait_until(lock, *deadline, awake);
  else awake_.wait(lock, awake);
  num_waiting_.fetch_sub(1, std::memory_order_seq_cst);
}

/// Throws where a message that is under way will not come any more. While driving.
void CallLane::give_up(const Task& task, bool look, bool late, Queue* ended) {
  const auto under_way = [&] { return std::find(messages_.begin(), messages_.end(), &task) != messages_.end(); };
  const int peer = task.call_.root;
  if (look && peer >= 0 && options_.has_ended && options_.has_ended(peer) && under_way()) {
    poll_messages(ended);  // It may have sent before it ended.
    if (under_way()) throw std::runtime_error(concat("rank ", peer, " has ended"));
  }
  if (!late || !under_way()) return;
  if (peer < 0) throw std::runtime_error(concat("no rank sent anything within ", options_.timeout_seconds, " s"));
  throw std::runtime_error(concat("rank ", peer, " did not come within ", options_.timeout_seconds, " s"));
}

/// One turn of a waiting thread that drives; whether anything ended. `look`: it is time to see who has ended; `late`: the task has had its
/// time.
bool CallLane::drive_for(Task& task, bool has_deadline, bool look, bool late) {
  Queue ended;
  const bool message = task.kind_ != CallRecord::Kind::kCollective;
  // A blocked thread moves no messages through memory, without which a peer might not come to the call: then calls are polled, until it
  // is better to let the transport say who is missing.
  const bool lost = late || (look && options_.has_ended && options_.has_ended(-1));
  advance(!has_deadline && !message && (own_thread_ || messages_.empty() || lost), &ended);
  if (message && !ended.first) {
    try {
      give_up(task, look, late, &ended);
    } catch (const std::runtime_error&) {
      break_off(describe_task(task), std::current_exception(), &task, &ended);
    }
  }
  stop_driving();
  const bool progress = ended.first != nullptr;
  end_all(ended);
  return progress;
}

/// Sleeps until the lane's own thread has ended the task.
void CallLane::wait_for_thread(const Task& task, Clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  num_waiting_.fetch_add(1, std::memory_order_seq_cst);
  awake_.wait_until(lock, deadline, [&] { return task.has_ended(); });
  num_waiting_.fetch_sub(1, std::memory_order_seq_cst);
}

void CallLane::wait(Task& task, Deadline deadline) {
  const bool thread_drives = own_thread_ && deadline && task.kind_ == CallRecord::Kind::kCollective;
  Backoff backoff;
  Clock::time_point limit{};
  while (!task.has_ended()) {
    if (deadline && Clock::now() > *deadline)
      fail(ErrorCode::kEnvironment, "the wait for the ", describe_task(task), " ended before it did");
    if (thread_drives) {
      wait_for_thread(task, *deadline);
      continue;
    }
    if (!try_drive()) {
      wait_for_driver([&] { return task.has_ended(); }, deadline);
      continue;
    }
    const bool look = backoff.looks_around();
    bool late = false;
    if (look) {
      if (limit == Clock::time_point{})
        limit = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.timeout_seconds));
      late = Clock::now() > limit;
    }
    if (drive_for(task, deadline.has_value(), look, late)) backoff.reset();
    else if (!task.has_ended()) backoff.wait();
  }
}

bool CallLane::poll(Task& task) {
  if (task.has_ended() || !try_drive()) return task.has_ended();
  Queue ended;
  advance(false, &ended);
  stop_driving();
  end_all(ended);
  return task.has_ended();
}

void CallLane::exclusively(const std::function<void(Transport&)>& use) {
  while (!try_drive()) {
    if (closed_) fail(ErrorCode::kEnvironment, "the group has been closed");
    wait_for_driver([] { return false; }, std::nullopt);
  }
  try {
    use(*transport_);
  } catch (...) {
    stop_driving();
    throw;
  }
  stop_driving();
}

/// With mutex_.
void CallLane::start_thread() {
  if (!thread_.joinable() && !closed_) thread_ = std::thread([lane = shared_from_this()] { lane->thread_loop(); });
  awake_.notify_all();
}

void CallLane::want_thread() {
  const std::lock_guard<std::mutex> lock(mutex_);
  thread_wanted_ = true;
  start_thread();
}

/// Messages that nobody waits for have their time-out from when they were posted.
void CallLane::expire_messages(Queue* ended) {
  for (Task* task : messages_) {
    if (Clock::now() - task->posted_ < std::chrono::duration<double>(options_.timeout_seconds)) continue;
    const auto error = std::make_exception_ptr(std::runtime_error(concat("no answer within ", options_.timeout_seconds, " s")));
    return break_off(describe_task(*task), error, task, ended);
  }
}

void CallLane::thread_loop() {
  Backoff backoff;
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (num_unfinished_ == 0) thread_wanted_ = false;
      awake_.wait(lock, [&] { return closed_ || ((own_thread_ || thread_wanted_) && num_unfinished_ > 0); });
      if (closed_) return;
    }
    if (!try_drive()) {
      wait_for_driver([] { return false; }, std::nullopt);
      continue;
    }
    Queue ended;
    if (backoff.naps()) expire_messages(&ended);
    advance(own_thread_ || messages_.empty(), &ended);
    stop_driving();
    const bool progress = ended.first != nullptr;
    end_all(ended);
    if (progress) backoff.reset();
    else backoff.wait();
  }
}

void CallLane::close() {
  if (fork_count() != process_) {  // The threads are the parent's.
    if (thread_.joinable()) thread_.detach();
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    awake_.notify_all();
  }
  if (thread_.joinable()) {
    // The last owner may go in a callback of a future, which runs in that very thread.
    if (thread_.get_id() == std::this_thread::get_id()) thread_.detach();
    else thread_.join();
  }
  while (!try_drive()) ::sched_yield();
  Queue ended;
  if (!broken_.exchange(true)) failure_ = "the group was closed";
  start_all(&ended);
  for (Task* task : std::exchange(messages_, {})) retire(task, refusal(task->call_), &ended);
  while (calls_.first) {
    Task* const task = calls_.pop();
    retire(task, refusal(task->call_), &ended);
  }
  unstarted_ = nullptr;
  stop_driving();
  end_all(ended);
}

}  // namespace cohort
