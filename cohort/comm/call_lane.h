#pragma once
// Runs the calls of one rank of one group in the order in which any of its threads made them.
//
// A transport is used by one thread at a time: the one that drives it starts added calls, finishes the oldest, posts and polls messages.
// Every waiting thread drives. The lane's own thread does so too: from the first call on where the transport wants that (networks), else
// once a future is requested (over shared memory a second thread would only take turns with the first).
//
// Cost of a blocking call beyond the transport's: an atomic exchange, a store and the recorder; no lock, no allocation.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cohort/base/system/machine.h"
#include "cohort/comm/transport/recorder.h"
#include "cohort/comm/transport/transport.h"

namespace cohort {

/// A call or message under way. Its owner keeps it alive until it has ended.
class Task {
 public:
  Task() = default;
  virtual ~Task() = default;
  Task(const Task&) = delete;

  bool has_ended() const { return ended_.load(std::memory_order_acquire); }
  /// Null, or why it failed; valid after it has ended.
  const std::exception_ptr& error() const { return error_; }

 protected:
  /// Called once, in the thread that ran the task; the lane does not touch the task afterwards.
  virtual void end() noexcept { ended_.store(true, std::memory_order_release); }

  Call call_;
  std::exception_ptr error_;
  std::atomic<bool> ended_{false};

  /// Makes the task a message: in call_, `root` is then the peer, `count` the bytes, `handle` the tag and `output` the memory.
  void make_message(CallRecord::Kind kind, void* data, size_t bytes, int peer, int tag);
  CallRecord::Kind kind_ = CallRecord::Kind::kCollective;
  int source_ = -1;  ///< Rank that sent a received message.

 private:
  friend class CallLane;
  /// Set for a message, not for a collective call.
  std::optional<CallRecord> message_record() const;
  std::shared_ptr<Message> message_;
  Task* next_ = nullptr;
  uint64_t record_id_ = 0;
  bool started_ = false;
  std::chrono::steady_clock::time_point posted_;
};

class CallLane : public std::enable_shared_from_this<CallLane> {
 public:
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;
  /// Turns `error`, thrown by the transport in `call`, into the error that callers see. `message`: null for a collective call.
  using Explain = std::function<std::exception_ptr(const Recorder&, const std::string& call, const CallRecord* message,
                                                   const std::exception_ptr& error)>;
  struct Options {
    Explain explain;
    /// Whether `peer` (-1: any other rank) is known to have ended; polled while messages are under way. May be empty.
    std::function<bool(int peer)> has_ended;
    double timeout_seconds = 60;  ///< For messages; the transport has one of its own for calls.
  };

  CallLane(std::unique_ptr<Transport> transport, Options options);
  ~CallLane();
  CallLane(const CallLane&) = delete;

  /// Runs a call to its end in this thread; throws why it failed. After a failure every later call fails at once.
  void run(Call& call);
  /// Runs `exchange`, which moves data without the transport, as a call: numbered, recorded and explained like one.
  void run_by_hand(Call& call, const std::function<void()>& exchange);
  /// Adds and starts a task (another thread that drives starts it). Does not finish it even where it could: finishing a large call waits
  /// for peers that may be computing or waiting in another group.
  void add(Task& task);
  /// Waits for the end of the task; Error(kEnvironment) when the deadline passes first, the task then stays under way. Does not throw the
  /// task's own error.
  void wait(Task& task, Deadline deadline = std::nullopt);
  /// Makes progress without waiting. Whether the task has ended.
  bool poll(Task& task);
  /// From now on added tasks end although nobody waits for them.
  void want_thread();
  /// Runs `use` while no other thread uses the transport.
  void exclusively(const std::function<void(Transport&)>& use);
  /// Fails what is under way and every later call, and joins the thread (at most for the transport's time-out).
  void close();
  /// Call before a task's memory is freed: waits for the task, or closes the lane where an exception is in flight or the task fails, since
  /// its peers may then never come.
  void end_with_memory(Task& task);

  const Transport& transport() const { return *transport_; }
  const Recorder& recorder() const { return recorder_; }
  uint64_t num_calls() const { return sequence_.load(std::memory_order_relaxed); }

 private:
  /// An intrusive list.
  struct Queue {
    Task* first = nullptr;
    Task* last = nullptr;
    void push(Task* task);
    Task* pop();
  };

  bool try_drive() { return !driving_.load(std::memory_order_relaxed) && !driving_.exchange(true, std::memory_order_acquire); }
  void stop_driving();
  // Called by the driving thread:
  void accept(Task* task, Queue* ended);
  void start(Task* task, Queue* ended);
  void start_all(Queue* ended);
  void poll_messages(Queue* ended);
  void advance(bool block, Queue* ended);
  void finish_front(Queue* ended);
  void retire(Task* task, const std::exception_ptr& error, Queue* ended);
  void expire_messages(Queue* ended);
  void fail_group(const std::string& call, const std::exception_ptr& error, Task* culprit, Queue* ended);
  bool retire_all(const Task* culprit, const std::exception_ptr& explained, Queue* ended);
  void number(Call& call);
  std::string describe_task(const Task& task) const;
  [[noreturn]] void fail_driven(const Call& call, uint64_t record_id, const std::exception_ptr& error);
  // Called without driving:
  void end_all(Queue ended);
  void wake();
  void thread_loop();
  void wait_for_driver(const std::function<bool()>& enough, Deadline deadline);
  void sleep_until(const std::function<bool()>& awake, Deadline deadline);
  bool drive_for(Task& task, bool has_deadline, bool look, bool late);
  void give_up(const Task& task, bool look, bool late, Queue* ended);
  void start_thread();
  void run_queued(Call& call);
  std::exception_ptr refusal(const Call& call) const;
  void check_process(const Call& call) const;

  const std::unique_ptr<Transport> transport_;
  const Options options_;
  const bool own_thread_;
  const int process_ = fork_count();
  Recorder recorder_;

  alignas(64) std::atomic<bool> driving_{false};
  std::atomic<int> num_waiting_{0};  // Threads asleep on awake_.
  std::atomic<int> num_unfinished_{0};
  std::atomic<uint64_t> sequence_{0};
  std::atomic<bool> broken_{false}, closed_{false};
  // Used by the driving thread only:
  Queue calls_;
  Task* unstarted_ = nullptr;  // First call not started.
  std::vector<Task*> messages_;
  std::string failure_;

  std::mutex mutex_;
  std::condition_variable awake_;
  Queue added_;  // Under mutex_: not yet accepted.
  std::atomic<int> num_added_{0};
  std::thread thread_;
  bool thread_wanted_ = false;
};

}  // namespace cohort
