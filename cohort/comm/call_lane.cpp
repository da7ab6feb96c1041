#include "cohort/comm/call_lane.h"

#include <unistd.h>

#include <sched.h>
#include <algorithm>
#include <utility>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/comm/transport/calls.h"

namespace cohort {
namespace {

/// A call queued behind others while its caller waits.
class BorrowedCall : public Task {
 public:
  explicit BorrowedCall(const Call& call) { call_ = call; }
  const Call& call() const { return call_; }
};

using Clock = std::chrono::steady_clock;

/// A few yields, then naps of 50 us.
class Backoff {
 public:
  void wait() {
    if (!naps()) ::sched_yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(50));
    ++count_;
  }
  bool naps() const { return count_ >= 500; }
  /// True every few milliseconds.
  bool looks_around() const { return naps() && count_ % 64 == 0; }
  void reset() { count_ = 0; }

 private:
  unsigned count_ = 0;
};

}  // namespace

void CallLane::Queue::push(Task* task) {
  task->next_ = nullptr;
  (first ? last->next_ : first) = task;
  last = task;
}

Task* CallLane::Queue::pop() {
  Task* const task = first;
  first = task->next_;
  return task;
}

CallLane::CallLane(std::unique_ptr<Transport> transport, Options options)
    : transport_(std::move(transport)), options_(std::move(options)), own_thread_(transport_->wants_own_thread()) {}

CallLane::~CallLane() { close(); }

void CallLane::stop_driving() {
  // Sequentially consistent with a waiter's increment: either it sees that nobody drives, or it is seen here.
  driving_.store(false, std::memory_order_seq_cst);
  if (num_waiting_.load(std::memory_order_seq_cst) > 0) wake();
}

void CallLane::wake() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
  }
  awake_.notify_all();
}

/// A forked child that continues the parent's program would repeat the rank's calls.
void CallLane::check_process(const Call& call) const {
  if (fork_count() == process_) return;
  fail(ErrorCode::kBadInput, "'", call.name, "': process ", ::getpid(), " was forked from one that trains (", ::getppid(),
       "), and has no part in its group; call fork() before cohort::init(), or end the child with _exit() or exec()");
}

void CallLane::run(Call& call) {
  check_process(call);
  if (!try_drive()) return run_queued(call);
  if (num_unfinished_.load(std::memory_order_relaxed) > 0 || broken_.load(std::memory_order_relaxed)) {
    stop_driving();
    return run_queued(call);
  }
  number(call);
  const uint64_t record_id = recorder_.start(call);
  try {
    transport_->start(call);
    transport_->finish(call);
  } catch (...) {
    fail_driven(call, record_id, std::current_exception());
  }
  recorder_.end(record_id);
  stop_driving();
}

void CallLane::number(Call& call) {
  const uint64_t sequence = sequence_.load(std::memory_order_relaxed) + 1;
  std::atomic_ref(call.sequence).store(sequence, std::memory_order_relaxed);
  sequence_.store(sequence, std::memory_order_relaxed);
}

/// Ends the group because of a call that is in no queue, stops driving and throws.
void CallLane::fail_driven(const Call& call, uint64_t record_id, const std::exception_ptr& error) {
  recorder_.end(record_id, true);
  BorrowedCall failed(call);
  Queue ended;
  fail_group(describe(signature_of(call)), error, &failed, &ended);
  stop_driving();
  end_all(ended);
  std::rethrow_exception(failed.error());
}

void CallLane::run_by_hand(Call& call, const std::function<void()>& exchange) {
  check_process(call);
  uint64_t record_id = 0;
  const auto begin = [&](Transport&) {
    if (broken_.load(std::memory_order_relaxed)) std::rethrow_exception(refusal(call));
    number(call);
    record_id = recorder_.start(call);
  };
  exclusively(begin);
  try {
    exchange();
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    while (!try_drive()) wait_for_driver([] { return false; }, std::nullopt);
    fail_driven(call, record_id, error);
  }
  exclusively([&](Transport&) { recorder_.end(record_id); });
}

void CallLane::run_queued(Call& call) {
  BorrowedCall task(call);
  add(task);
  wait(task);
  call = task.call();
  if (task.error()) std::rethrow_exception(task.error());
}

void CallLane::add(Task& task) {
  check_process(task.call_);
  num_unfinished_.fetch_add(1, std::memory_order_relaxed);
  if (own_thread_ && task.kind_ == CallRecord::Kind::kCollective) {
    const std::lock_guard<std::mutex> lock(mutex_);
    added_.push(&task);
    num_added_.fetch_add(1, std::memory_order_relaxed);
    start_thread();
    return;
  }
  Queue ended;
  if (try_drive()) {
    start_all(&ended);  // Added earlier by other threads.
    accept(&task, &ended);
    start_all(&ended);
    if (!messages_.empty()) poll_messages(&ended);
    stop_driving();
    return end_all(ended);
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    added_.push(&task);
    num_added_.fetch_add(1, std::memory_order_relaxed);
  }
  // The driver may have stopped without seeing it.
  if (try_drive()) {
    start_all(&ended);
    stop_driving();
    end_all(ended);
  }
}

void CallLane::accept(Task* task, Queue* ended) {
  if (broken_) return retire(task, refusal(task->call_), ended);
  if (task->kind_ == CallRecord::Kind::kCollective) {
    calls_.push(task);
    if (!unstarted_) unstarted_ = task;
    return;
  }
  try {
    const Call& call = task->call_;
    task->record_id_ = recorder_.start_message(task->kind_, call.count, call.root, static_cast<int>(call.handle), call.name);
    task->posted_ = std::chrono::steady_clock::now();
    task->started_ = true;
    task->message_ = task->kind_ == CallRecord::Kind::kSend
                         ? transport_->send(call.output, call.count, call.root, static_cast<int>(call.handle))
                         : transport_->receive(call.output, call.count, call.root, static_cast<int>(call.handle));
    messages_.push_back(task);
  } catch (...) {
    fail_group(describe_task(*task), std::current_exception(), task, ended);
  }
}

/// Accepts what other threads have added and starts all calls that may start.
void CallLane::start_all(Queue* ended) {
  while (num_added_.load(std::memory_order_relaxed) > 0) {
    Task* task;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      task = added_.pop();
      num_added_.fetch_sub(1, std::memory_order_relaxed);
    }
    accept(task, ended);
  }
  while (unstarted_) {
    Task* const task = unstarted_;
    unstarted_ = task->next_;
    start(task, ended);
  }
}

void CallLane::start(Task* task, Queue* ended) {
  number(task->call_);
  task->record_id_ = recorder_.start(task->call_);
  task->started_ = true;
  try {
    transport_->start(task->call_);
  } catch (...) {
    fail_group(describe_task(*task), std::current_exception(), task, ended);
  }
}

void CallLane::advance(bool block, Queue* ended) {
  start_all(ended);
  if (!messages_.empty()) poll_messages(ended);
  if (!calls_.first) return;
  bool ready = block;
  try {
    ready = ready || transport_->ready(calls_.first->call_);
  } catch (...) {
    return fail_group(describe_task(*calls_.first), std::current_exception(), calls_.first, ended);
  }
  if (ready) finish_front(ended);
}

void CallLane::finish_front(Queue* ended) {
  Task* const task = calls_.first;
  try {
    transport_->finish(task->call_);
  } catch (...) {
    recorder_.end(task->record_id_, true);
    return fail_group(describe_task(*task), std::current_exception(), task, ended);
  }
  recorder_.end(task->record_id_);
  calls_.pop();
  retire(task, nullptr, ended);
}

void CallLane::poll_messages(Queue* ended) {
  for (size_t i = 0; i < messages_.size();) {
    Task* const task = messages_[i];
    try {
      if (!task->message_->done()) {
        ++i;
        continue;
      }
      task->message_->wait();  // For its error, such as a size that differs.
    } catch (...) {
      return fail_group(describe_task(*task), std::current_exception(), task, ended);
    }
    messages_.erase(messages_.begin() + static_cast<ptrdiff_t>(i));
    recorder_.end(task->record_id_);
    retire(task, nullptr, ended);
  }
}

void CallLane::retire(Task* task, const std::exception_ptr& error, Queue* ended) {
  task->error_ = error;
  if (task->message_ && !error) task->source_ = task->message_->source();
  task->message_.reset();  // The task's owner may outlive the transport.
  ended->push(task);
}

/// Fails the group: what is under way, and every later call.
void CallLane::fail_group(const std::string& call, const std::exception_ptr& error, Task* culprit, Queue* ended) {
  const std::optional<CallRecord> message = culprit->message_record();
  transport_->close_connections();
  const std::exception_ptr explained = options_.explain(recorder_, call, message ? &*message : nullptr, error);
  try {
    std::rethrow_exception(explained);
  } catch (const std::exception& exception) {
    failure_ = exception.what();
  }
  broken_ = true;
  culprit->error_ = explained;
  // A message that could not be posted is in no list yet.
  if (!retire_all(culprit, explained, ended) && culprit->kind_ != CallRecord::Kind::kCollective) retire(culprit, explained, ended);
}

/// Ends everything under way: the culprit with `explained`, all others with a refusal. Whether the culprit was under way.
bool CallLane::retire_all(const Task* culprit, const std::exception_ptr& explained, Queue* ended) {
  std::vector<Task*> tasks = std::exchange(messages_, {});
  while (calls_.first) tasks.push_back(calls_.pop());
  unstarted_ = nullptr;
  for (Task* const task : tasks) {
    if (task->started_) recorder_.end(task->record_id_, true);
    retire(task, task == culprit ? explained : refusal(task->call_), ended);
  }
  return std::find(tasks.begin(), tasks.end(), culprit) != tasks.end();
}

std::exception_ptr CallLane::refusal(const Call& call) const {
  Call unnumbered;
  unnumbered.op = call.op;
  const std::string name = call.name && call.name[0] ? concat(" of ", call.name) : "";
  return std::make_exception_ptr(
      Error(ErrorCode::kEnvironment,
            concat("the ", name_of(unnumbered.op), name, " was not run, because an exchange of this group failed before: ", failure_)));
}

void Task::make_message(CallRecord::Kind kind, void* data, size_t bytes, int peer, int tag) {
  kind_ = kind;
  call_.output = data;
  call_.root = peer;
  call_.count = bytes;
  call_.handle = static_cast<uint64_t>(tag);
}

std::optional<CallRecord> Task::message_record() const {
  if (kind_ == CallRecord::Kind::kCollective) return std::nullopt;
  CallRecord record;
  record.kind = kind_;
  record.signature.root = call_.root;
  record.signature.count = call_.count;
  record.tag = static_cast<int>(call_.handle);
  return record;
}

std::string CallLane::describe_task(const Task& task) const {
  if (task.kind_ == CallRecord::Kind::kCollective) return describe(signature_of(task.call_));
  const std::string name = task.call_.name[0] ? concat(" of ", task.call_.name) : "";
  const char* verb = task.kind_ == CallRecord::Kind::kSend ? "send" : "receive";
  const char* direction = task.kind_ == CallRecord::Kind::kSend ? " to " : " from ";
  return concat(verb, name, direction, task.call_.root < 0 ? "any rank" : concat("rank ", task.call_.root), " (", task.call_.count,
                " bytes)");
}

void CallLane::end_all(Queue ended) {
  if (!ended.first) return;
  while (ended.first) {
    Task* const task = ended.pop();
    num_unfinished_.fetch_sub(1);
    task->end();
  }
  if (num_waiting_.load(std::memory_order_seq_cst) > 0) wake();
}

/// Sleeps until `awake`.
void CallLane::sleep_until(const std::function<bool()>& awake, Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  num_waiting_.fetch_add(1, std::memory_order_seq_cst);
  if (deadline) awake_.wait_until(lock, *deadline, awake);
  else awake_.wait(lock, awake);
  num_waiting_.fetch_sub(1, std::memory_order_seq_cst);
}

/// Sleeps until nobody drives or `enough`.
void CallLane::wait_for_driver(const std::function<bool()>& enough, Deadline deadline) {
  sleep_until([&] { return enough() || closed_ || !driving_.load(std::memory_order_seq_cst); }, deadline);
}

/// Throws where the peer of a message has ended or is late. Called while driving.
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

/// One turn of a waiting thread that drives. `look`: time to check for ended peers; `late`: the time-out has passed. Whether anything
/// ended.
bool CallLane::drive_for(Task& task, bool has_deadline, bool look, bool late) {
  Queue ended;
  const bool message = task.kind_ != CallRecord::Kind::kCollective;
  // A blocked thread moves no messages through shared memory, without which a peer might not reach the call. So calls are polled while
  // messages are pending, until the transport should report who is missing.
  const bool lost = late || (look && options_.has_ended && options_.has_ended(-1));
  advance(!has_deadline && !message && (own_thread_ || messages_.empty() || lost), &ended);
  if (message && !ended.first) {
    try {
      give_up(task, look, late, &ended);
    } catch (const std::runtime_error&) {
      fail_group(describe_task(task), std::current_exception(), &task, &ended);
    }
  }
  stop_driving();
  const bool progress = ended.first != nullptr;
  end_all(ended);
  return progress;
}

void CallLane::wait(Task& task, Deadline deadline) {
  const bool thread_drives = own_thread_ && deadline && task.kind_ == CallRecord::Kind::kCollective;
  Backoff backoff;
  std::optional<AwakeTimer> waited;
  while (!task.has_ended()) {
    if (deadline && Clock::now() > *deadline)
      fail(ErrorCode::kEnvironment, "the wait for the ", describe_task(task), " ended before it did");
    if (thread_drives) {
      sleep_until([&] { return task.has_ended(); }, deadline);  // The lane's thread ends the task.
      continue;
    }
    if (!try_drive()) {
      wait_for_driver([&] { return task.has_ended(); }, deadline);
      continue;
    }
    const bool look = backoff.looks_around();
    bool late = false;
    if (look) {
      if (!waited) waited.emplace();
      late = waited->seconds() > options_.timeout_seconds;
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

/// Called with mutex_ held.
void CallLane::start_thread() {
  if (!thread_.joinable() && !closed_) thread_ = std::thread([lane = shared_from_this()] { lane->thread_loop(); });
  awake_.notify_all();
}

void CallLane::want_thread() {
  const std::lock_guard<std::mutex> lock(mutex_);
  thread_wanted_ = true;
  start_thread();
}

/// The time-out of messages that nobody waits for counts from when they were posted.
void CallLane::expire_messages(Queue* ended) {
  for (Task* task : messages_) {
    if (Clock::now() - task->posted_ < std::chrono::duration<double>(options_.timeout_seconds)) continue;
    const auto error = std::make_exception_ptr(std::runtime_error(concat("no answer within ", options_.timeout_seconds, " s")));
    return fail_group(describe_task(*task), error, task, ended);
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
  if (fork_count() != process_) {  // The thread is the parent's.
    if (thread_.joinable()) thread_.detach();
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    awake_.notify_all();
  }
  if (thread_.joinable()) {
    // The last owner may be released in a callback of a future, which runs in this thread.
    if (thread_.get_id() == std::this_thread::get_id()) thread_.detach();
    else thread_.join();
  }
  while (!try_drive()) ::sched_yield();
  Queue ended;
  if (!broken_.exchange(true)) failure_ = "the group was closed";
  start_all(&ended);
  retire_all(nullptr, nullptr, &ended);
  stop_driving();
  end_all(ended);
}

void CallLane::end_with_memory(Task& task) {
  if (task.has_ended()) return;
  if (std::uncaught_exceptions() == 0) {
    try {
      return wait(task);
    } catch (const std::exception&) {
    }
  }
  close();
}

}  // namespace cohort
