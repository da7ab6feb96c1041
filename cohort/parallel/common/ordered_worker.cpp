#include "cohort/parallel/common/ordered_worker.h"

namespace cohort {
namespace {

class PendingTask : public Pending {
 public:
  explicit PendingTask(std::future<void> done) : done_(std::move(done)) {}
  void wait() override { done_.get(); }

 private:
  std::future<void> done_;
};

}  // namespace

OrderedWorker::OrderedWorker() : thread_([this] { loop(); }) {}

OrderedWorker::~OrderedWorker() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

std::unique_ptr<Pending> OrderedWorker::run(std::function<void()> task) {
  std::packaged_task<void()> packaged(std::move(task));
  auto pending = std::make_unique<PendingTask>(packaged.get_future());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(packaged));
  }
  changed_.notify_one();
  return pending;
}

void OrderedWorker::loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::packaged_task<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace cohort
