#include "tests/support/thread_transport.h"

#include <ATen/ops/from_blob.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "cohort/base/fail.h"
#include "tests/support/naive_reduction.h"

namespace cohort {

/// One mutex for all of it.
class ThreadHub {
 public:
  struct Meeting {  // One collective call.
    std::vector<Call> calls;
    std::vector<bool> arrived, done;
    std::vector<std::vector<std::byte>> results;
    int num_arrived = 0, num_computed = 0, num_done = 0;
    int gave_up = -1;  // A rank whose memory may be gone since.
  };
  struct Parcel {
    int from, to, tag;
    std::vector<std::byte> data;
  };

  ThreadHub(int size, double timeout_seconds) : size_(size), timeout_seconds_(timeout_seconds) {}

  const int size_;
  const double timeout_seconds_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Meeting> meetings_;
  std::deque<Parcel> parcels_;
};

namespace {

class ThreadMessage : public Message {
 public:
  ThreadMessage(std::shared_ptr<ThreadHub> hub, void* data, size_t bytes, int from, int to, int tag)
      : hub_(std::move(hub)), data_(data), bytes_(bytes), from_(from), to_(to), tag_(tag) {}

  bool done() override {
    const std::lock_guard<std::mutex> lock(hub_->mutex_);
    return take();
  }
  void wait() override {
    std::unique_lock<std::mutex> lock(hub_->mutex_);
    if (!hub_->changed_.wait_for(lock, std::chrono::duration<double>(hub_->timeout_seconds_), [&] { return take(); }))
      throw std::runtime_error(concat("rank ", from_, " sent nothing within ", hub_->timeout_seconds_, " s"));
  }
  int source() override { return source_; }

 private:
  bool take() {
    for (auto parcel = hub_->parcels_.begin(); source_ < 0 && parcel != hub_->parcels_.end(); ++parcel) {
      if (parcel->to != to_ || parcel->tag != tag_ || (from_ >= 0 && parcel->from != from_)) continue;
      if (parcel->data.size() != bytes_)
        throw std::runtime_error(concat("rank ", parcel->from, " sent ", parcel->data.size(), " bytes instead of ", bytes_));
      if (bytes_ > 0) std::memcpy(data_, parcel->data.data(), bytes_);
      source_ = parcel->from;
      hub_->parcels_.erase(parcel);
      return true;
    }
    return source_ >= 0;
  }

  std::shared_ptr<ThreadHub> hub_;
  void* data_;
  size_t bytes_;
  int from_, to_, tag_, source_ = -1;
};

class SentMessage : public Message {
 public:
  bool done() override { return true; }
  void wait() override {}
  int source() override { return -1; }
};

at::Tensor over(const void* data, size_t count, at::ScalarType type) {
  return at::from_blob(const_cast<void*>(data), {static_cast<int64_t>(count)}, at::TensorOptions(type));
}

class ThreadTransport : public Transport {
 public:
  ThreadTransport(std::shared_ptr<ThreadHub> hub, int rank, bool own_thread)
      : Transport(rank, hub->size_), hub_(std::move(hub)), own_thread_(own_thread) {}

  const char* name() const override { return "thread"; }
  bool wants_own_thread() const override { return own_thread_; }

  void start(Call& call) override {
    const Turn turn(busy_);
    const std::lock_guard<std::mutex> lock(hub_->mutex_);
    call.handle = ++num_started_;
    ThreadHub::Meeting& meeting = hub_->meetings_[call.handle];
    meeting.calls.resize(static_cast<size_t>(size()));
    meeting.results.resize(static_cast<size_t>(size()));
    meeting.arrived.resize(static_cast<size_t>(size()));
    meeting.calls[rank()] = call;
    meeting.arrived[rank()] = true;
    ++meeting.num_arrived;
    hub_->changed_.notify_all();
  }

  bool ready(const Call& call) override {
    const std::lock_guard<std::mutex> lock(hub_->mutex_);
    return !own_thread_ && hub_->meetings_[call.handle].num_arrived == size();
  }

  void finish(Call& call) override {
    const Turn turn(busy_);
    if (call.handle != ++num_finished_) throw std::logic_error("finish() is not in the order of start()");
    std::unique_lock<std::mutex> lock(hub_->mutex_);
    ThreadHub::Meeting& meeting = hub_->meetings_[call.handle];
    wait(lock, meeting, [&] { return meeting.num_arrived == size(); });
    std::vector<Signature> signatures;
    for (const Call& each : meeting.calls) signatures.push_back(signature_of(each));
    check_signatures(signatures.data(), size(), "of threads");
    check_counts(meeting);
    // Every result is kept apart until all have been computed, so that outputs may lie over inputs.
    meeting.results[rank()] = result(meeting);
    ++meeting.num_computed;
    hub_->changed_.notify_all();
    wait(lock, meeting, [&] { return meeting.num_computed == size(); });
    if (!meeting.results[rank()].empty()) std::memcpy(call.output, meeting.results[rank()].data(), meeting.results[rank()].size());
    if (++meeting.num_done == size()) hub_->meetings_.erase(call.handle);
  }

  std::shared_ptr<Message> send(const void* data, size_t bytes, int peer, int tag) override {
    const Turn turn(busy_);
    const std::lock_guard<std::mutex> lock(hub_->mutex_);
    const std::byte* from = static_cast<const std::byte*>(data);
    hub_->parcels_.push_back({rank(), peer, tag, std::vector<std::byte>(from, from + bytes)});
    hub_->changed_.notify_all();
    return std::make_shared<SentMessage>();
  }
  std::shared_ptr<Message> receive(void* data, size_t bytes, int peer, int tag) override {
    const Turn turn(busy_);
    return std::make_shared<ThreadMessage>(hub_, data, bytes, peer, rank(), tag);
  }

 private:
  template <typename Ready>
  void wait(std::unique_lock<std::mutex>& lock, ThreadHub::Meeting& meeting, Ready ready) {
    const bool in_time = hub_->changed_.wait_for(lock, std::chrono::duration<double>(hub_->timeout_seconds_),
                                                 [&] { return meeting.gave_up >= 0 || ready(); });
    if (meeting.gave_up >= 0) throw std::runtime_error(concat("rank ", meeting.gave_up, " has given up"));
    if (in_time) return;
    meeting.gave_up = rank();
    for (int peer = 0; peer < size(); ++peer)
      if (!meeting.arrived[peer]) throw std::runtime_error(concat("rank ", peer, " did not come within ", hub_->timeout_seconds_, " s"));
    throw std::runtime_error("a rank did not finish");
  }

  /// One thread at a time, says the contract.
  struct Turn {
    explicit Turn(std::atomic_flag& busy) : busy_(busy) {
      if (busy_.test_and_set()) throw std::logic_error("two threads in one transport");
    }
    ~Turn() { busy_.clear(); }
    std::atomic_flag& busy_;
  };

  void check_counts(const ThreadHub::Meeting& meeting) const {
    for (int from = 0; from < size(); ++from)
      for (int to = 0; to < size() && !meeting.calls[from].send_counts.empty(); ++to)
        if (meeting.calls[from].send_counts[to] != meeting.calls[to].receive_counts[from])
          fail(ErrorCode::kFailed, "rank ", from, " sends ", meeting.calls[from].send_counts[to], " elements to rank ", to,
               ", which expects ", meeting.calls[to].receive_counts[from]);
  }

  std::vector<std::byte> result(const ThreadHub::Meeting& meeting) const {
    const std::vector<Call>& calls = meeting.calls;
    const Call& mine = calls[rank()];
    std::vector<std::byte> out;
    const auto take = [&](int from, size_t begin, size_t count) {
      const size_t bytes = c10::elementSize(mine.type);
      const std::byte* data = static_cast<const std::byte*>(calls[from].input) + begin * bytes;
      out.insert(out.end(), data, data + count * bytes);
    };
    const auto reduce = [&](size_t begin) {
      at::Tensor sum =
          over(static_cast<const std::byte*>(calls[0].input) + begin * c10::elementSize(mine.type), mine.count, mine.type).clone();
      for (int peer = 1; peer < size(); ++peer)
        sum = combined(sum,
                       over(static_cast<const std::byte*>(calls[peer].input) + begin * c10::elementSize(mine.type), mine.count, mine.type),
                       mine.reduction);
      if (mine.reduction == Reduction::kAverage) sum.div_(size());
      const std::byte* data = static_cast<const std::byte*>(sum.data_ptr());
      out.assign(data, data + sum.nbytes());
    };
    switch (mine.op) {
      case Op::kBarrier:
        break;
      case Op::kAllReduce:
        reduce(0);
        break;
      case Op::kReduce:
        if (rank() == mine.root) reduce(0);
        break;
      case Op::kReduceScatter:
        reduce(mine.count * static_cast<size_t>(rank()));
        break;
      case Op::kBroadcast:
        take(mine.root, 0, mine.count);
        break;
      case Op::kScatter:
        take(mine.root, mine.count * static_cast<size_t>(rank()), mine.count);
        break;
      case Op::kGather:
      case Op::kAllGather:
        for (int peer = 0; peer < size() && (mine.op == Op::kAllGather || rank() == mine.root); ++peer) take(peer, 0, mine.count);
        break;
      case Op::kAllToAll:
        for (int peer = 0; peer < size(); ++peer) {
          if (mine.send_counts.empty()) {
            take(peer, mine.count * static_cast<size_t>(rank()), mine.count);
          } else {
            size_t begin = 0;
            for (int to = 0; to < rank(); ++to) begin += calls[peer].send_counts[to];
            take(peer, begin, calls[peer].send_counts[rank()]);
          }
        }
        break;
    }
    return out;
  }

  std::shared_ptr<ThreadHub> hub_;
  bool own_thread_;
  std::atomic_flag busy_;
  uint64_t num_started_ = 0, num_finished_ = 0;
};

}  // namespace

std::shared_ptr<ThreadHub> make_thread_hub(int size, double timeout_seconds) { return std::make_shared<ThreadHub>(size, timeout_seconds); }

std::unique_ptr<Transport> make_thread_transport(std::shared_ptr<ThreadHub> hub, int rank, bool own_thread) {
  return std::make_unique<ThreadTransport>(std::move(hub), rank, own_thread);
}

}  // namespace cohort
