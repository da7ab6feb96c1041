#pragma once
// A thread that runs tasks in the order in which they were given: what exchanges gradients while backward goes on.

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include "cohort/comm/group.h"

namespace cohort {

/// Given tasks by one thread. The destructor runs what is left (tasks end or throw within the group's time-out).
class OrderedWorker {
 public:
  OrderedWorker();
  ~OrderedWorker();
  OrderedWorker(const OrderedWorker&) = delete;

  /// wait() of the result ends when the task has, and throws what it threw.
  std::unique_ptr<Pending> run(std::function<void()> task);

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> tasks_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace cohort
