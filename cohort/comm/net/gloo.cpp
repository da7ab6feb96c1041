#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO 1
#endif
#include "cohort/comm/net/gloo.h"

#include <ATen/ops/full.h>
#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <torch/version.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

const char* line_to_print = nullptr;

void print_and_exit(int) {
  // Only async-signal-safe calls.
  const char* const parts[] = {"cohort: error: ", line_to_print, "\n"};
  for (const char* part : parts)
    if (::write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  ::_exit(4);
}

}  // namespace

CrashGuard::CrashGuard(const char* line) {
  line_to_print = line;
  struct sigaction action{};
  action.sa_handler = print_and_exit;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < before_.size(); ++i) ::sigaction(kSignals[i], &action, &before_[i]);
}

CrashGuard::~CrashGuard() {
  for (size_t i = 0; i < before_.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
}

namespace {

c10::intrusive_ptr<c10d::ProcessGroupGloo> connect(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const std::string& address,
                                                   double timeout_seconds) {
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1e3)));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  options->threads = 1;
  return c10::make_intrusive<c10d::ProcessGroupGloo>(std::move(store), rank, size, std::move(options));
}

std::string mismatch_with(const std::string& workaround) {
  return concat("the Gloo inside LibTorch " TORCH_VERSION
                " does not fit the declarations that Cohort was built with (package libgloo-dev): rebuild Cohort against this LibTorch, or "
                "report the two versions; until then ",
                workaround);
}

/// Runs each collective that Cohort uses in a world of one rank, which crosses every virtual table and structure that the declarations
/// describe.
void self_test() {
  const std::string line = mismatch_with(name_settings("train with --workers 1"));
  const CrashGuard guard(line.c_str());
  auto group = connect(c10::make_intrusive<c10d::HashStore>(), 0, 1, "127.0.0.1", 10);
  std::vector<at::Tensor> tensors{at::full({8}, 3.0f, at::kFloat)};
  group->allreduce(tensors)->wait();
  group->broadcast(tensors)->wait();
  group->barrier()->wait();
  if (group->getRank() != 0 || group->getSize() != 1 || tensors[0].sum().item<float>() != 24.0f) fail(ErrorCode::kEnvironment, line);
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const std::string& address,
                                            double timeout_seconds) {
  static std::once_flag tested;
  std::call_once(tested, self_test);
  return connect(std::move(store), rank, size, address, timeout_seconds);
}

std::string without_advice(std::string_view what) {
  std::string text = first_line(what);
  for (const char* advice : {". This may indicate", ". This is typically caused"}) text = text.substr(0, text.find(advice));
  return text;
}

namespace {

using Buffer = gloo::transport::UnboundBuffer;

// A slot: 8 bits of kind, 20 of tag, 36 of size. Gloo's own operations use the kinds 0 to 16.
constexpr uint64_t kCollectiveKind = 0xc0, kUserKind = 0xc1, kWatchKind = 0xc2;
constexpr int kTagBits = 20, kSizeBits = 36;
constexpr std::chrono::milliseconds kNoLimit = std::chrono::hours(24 * 365);

/// Access to a protected member of c10d.
struct Connections : c10d::ProcessGroupGloo {
  static gloo::Context& of(c10d::ProcessGroupGloo& group) { return *(group.*(&Connections::contexts_)).front(); }
};

/// Gloo's text without source file and guesses: "[.../pair.cc:537] Connection closed. This is typically caused by ...".
std::string brief(std::string_view what) {
  const std::string text = without_advice(what);
  const size_t place = text[0] == '[' ? text.find("] ") : std::string::npos;
  return place == std::string::npos ? text : text.substr(place + 2);
}

/// Reports whether the connection to a peer has failed. Gloo loses a message if the connection fails while it writes the first bytes: the
/// wait for it would last until the time-out. A receive posted before, which nothing answers, always gets the failure.
class ConnectionWatch {
 public:
  /// One small message to `peer`; `nothing` stays valid.
  ConnectionWatch(gloo::Context& context, int peer, std::byte& nothing) : buffer_(context.createUnboundBuffer(&nothing, 1)) {
    try {
      buffer_->recv(peer, kWatchKind << (kTagBits + kSizeBits), 0, 1);
    } catch (const std::exception& error) {
      failure_ = brief(error.what());  // The peer has left already: only exchanges with it fail.
    }
  }
  /// Gloo's text, "" while the connection is open. Called by one thread at a time.
  const std::string& failure() {
    if (!failure_.empty()) return failure_;
    try {
      buffer_->abortWaitRecv();
      buffer_->waitRecv(nullptr, kNoLimit);
    } catch (const std::exception& error) {
      failure_ = brief(error.what());
    }
    return failure_;
  }

 private:
  std::unique_ptr<Buffer> buffer_;
  std::string failure_;
};

/// Aborts waits after the time-out, and those for a peer whose connection has failed (ConnectionWatch). Gloo's own time-out counts time in
/// which this process did not run, and then closes all connections.
class WaitLimit {
 public:
  WaitLimit(double seconds, std::map<int, ConnectionWatch> watches)
      : seconds_(seconds), watches_(std::move(watches)), thread_([this] { run(); }) {}
  ~WaitLimit() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      closing_ = true;
    }
    wakes_.notify_one();
    thread_.join();
  }
  WaitLimit(const WaitLimit&) = delete;
  double seconds() const { return seconds_; }

  /// Registers a buffer as waited for.
  class Wait {
   public:
    /// `peer` is -1 for any.
    Wait(WaitLimit& limit, Buffer& buffer, int peer) : limit_(limit), buffer_(buffer), peer_(peer) {
      const std::lock_guard<std::mutex> lock(limit_.mutex_);
      limit_.waits_.push_back(this);
    }
    ~Wait() {
      const std::lock_guard<std::mutex> lock(limit_.mutex_);
      std::erase(limit_.waits_, this);
    }
    Wait(const Wait&) = delete;
    bool is_over() const {
      const std::lock_guard<std::mutex> lock(limit_.mutex_);
      return end_ == End::kTimeOut;
    }
    /// Gloo's text where the wait was ended because the connection had failed, else "".
    std::string failure() const {
      const std::lock_guard<std::mutex> lock(limit_.mutex_);
      return end_ == End::kFailure ? limit_.watches_.at(peer_).failure() : "";
    }

   private:
    friend class WaitLimit;
    enum class End { kNone, kTimeOut, kFailure };
    WaitLimit& limit_;
    Buffer& buffer_;
    const int peer_;
    AwakeTimer timer_;
    std::optional<AwakeTimer> since_failure_;
    End end_ = End::kNone;
  };

 private:
  void run() {
    const std::chrono::duration<double> look(std::min(0.1, seconds_ / 4));
    std::unique_lock<std::mutex> lock(mutex_);
    while (!wakes_.wait_for(lock, look, [this] { return closing_; }))
      for (Wait* const wait : waits_) {
        if (wait->end_ != Wait::End::kNone) continue;
        wait->end_ = wait->timer_.seconds() > seconds_ ? Wait::End::kTimeOut : has_failed(*wait) ? Wait::End::kFailure : Wait::End::kNone;
        if (wait->end_ == Wait::End::kNone) continue;
        wait->buffer_.abortWaitSend();
        wait->buffer_.abortWaitRecv();
      }
  }
  /// After a delay in which Gloo reports it itself, and in which what had arrived is delivered.
  bool has_failed(Wait& wait) {
    if (wait.peer_ < 0 || watches_.at(wait.peer_).failure().empty()) return false;
    if (!wait.since_failure_) wait.since_failure_.emplace();
    return wait.since_failure_->seconds() > kPatienceSeconds;
  }

  static constexpr double kPatienceSeconds = 2;
  const double seconds_;
  std::mutex mutex_;
  std::condition_variable wakes_;
  std::map<int, ConnectionWatch> watches_;  // By peer.
  std::vector<Wait*> waits_;
  bool closing_ = false;
  std::thread thread_;  // Last: uses the others.
};

class GlooTransport;

class GlooMessage : public Message {
 public:
  enum class Kind { kSend, kReceive };
  GlooMessage(const GlooTransport& transport, std::unique_ptr<Buffer> buffer, Kind kind, int peer, int tag)
      : transport_(transport), buffer_(std::move(buffer)), kind_(kind), peer_(peer), tag_(tag) {}

  ~GlooMessage() override {
    if (!polled_.valid()) return;
    buffer_->abortWaitSend();
    buffer_->abortWaitRecv();
  }
  void wait() override {
    if (ended_) return;
    if (polled_.valid()) {
      polled_.get();
    } else {
      wait_for_gloo();
    }
    ended_ = true;
  }
  /// Gloo can wait for a message but not poll it; so a thread waits.
  bool done() override {
    if (ended_) return true;
    if (!polled_.valid()) polled_ = std::async(std::launch::async, [this] { wait_for_gloo(); });
    if (polled_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
    wait();
    return true;
  }
  int source() override { return peer_; }

 private:
  void wait_for_gloo();

  const GlooTransport& transport_;
  std::unique_ptr<Buffer> buffer_;
  Kind kind_;
  int peer_, tag_;
  bool ended_ = false;
  std::future<void> polled_;  // Last: ends before what it uses.
};

class GlooTransport final : public NetworkTransport {
 public:
  GlooTransport(c10::intrusive_ptr<c10d::Backend> backend, int rank, int size, double timeout_seconds, const std::string& group)
      : NetworkTransport(rank, size, group),
        backend_(std::move(backend)),
        context_(Connections::of(static_cast<c10d::ProcessGroupGloo&>(*backend_))),
        limit_(timeout_seconds, watches()) {
    for (int peer = 0; peer < size; ++peer)
      if (peer != rank) others_.push_back(peer);
  }

  const char* name() const override { return "gloo"; }
  /// LibTorch hides the type information of its copy of Gloo, so that vptr checks fail here.
  [[gnu::no_sanitize("vptr")]] void close_connections() override { context_.closeConnections(); }
  WaitLimit& limit() const { return limit_; }

 protected:
  std::shared_ptr<Message> post_send(const void* data, size_t bytes, int peer, int tag, Lane lane) override {
    auto buffer = make_buffer(const_cast<void*>(data), bytes);
    named(peer, [&] { buffer->send(peer, slot(bytes, tag, lane), 0, bytes); });
    return std::make_shared<GlooMessage>(*this, std::move(buffer), GlooMessage::Kind::kSend, peer, tag);
  }
  std::shared_ptr<Message> post_receive(void* data, size_t bytes, int peer, int tag, Lane lane) override {
    auto buffer = make_buffer(data, bytes);
    named(peer, [&] {
      if (peer == -1) {
        buffer->recv(others_, slot(bytes, tag, lane), 0, bytes);
      } else {
        buffer->recv(peer, slot(bytes, tag, lane), 0, bytes);
      }
    });
    return std::make_shared<GlooMessage>(*this, std::move(buffer), GlooMessage::Kind::kReceive, peer, tag);
  }
  int max_tag() const override { return (1 << kTagBits) - 1; }

 private:
  std::unique_ptr<Buffer> make_buffer(void* data, size_t bytes) {
    if (bytes >= size_t{1} << (kSizeBits - 1))
      fail(ErrorCode::kBadInput, "a message of ", bytes, " bytes is too long for gloo; send it in parts");
    return context_.createUnboundBuffer(bytes ? data : &nothing_, bytes);
  }
  static uint64_t slot(size_t bytes, int tag, Lane lane) {
    if (lane == Lane::kCollective) return kCollectiveKind << (kTagBits + kSizeBits);
    return kUserKind << (kTagBits + kSizeBits) | static_cast<uint64_t>(tag) << kSizeBits | bytes;
  }
  std::map<int, ConnectionWatch> watches() {
    std::map<int, ConnectionWatch> watches;
    for (int peer = 0; peer < size(); ++peer)
      if (peer != rank()) watches.try_emplace(peer, context_, peer, nothing_);
    return watches;
  }
  template <typename Start>
  void named(int peer, Start start) const {
    try {
      start();
    } catch (const std::exception& error) {
      throw std::runtime_error(
          concat("the connection to ", peer < 0 ? "a rank" : peer_name(peer), " is closed [", brief(error.what()), "]"));
    }
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  gloo::Context& context_;
  std::vector<int> others_;
  std::byte nothing_{};
  mutable WaitLimit limit_;
};

void GlooMessage::wait_for_gloo() {
  WaitLimit::Wait wait(transport_.limit(), *buffer_, peer_);
  std::string text = "the wait was ended";
  try {
    int source = peer_;
    const bool arrived = kind_ == Kind::kSend ? buffer_->waitSend(kNoLimit) : buffer_->waitRecv(&source, kNoLimit);
    peer_ = source;
    if (arrived) return;
  } catch (const std::exception& error) {
    text = brief(error.what());
  }
  if (const std::string failure = wait.failure(); !failure.empty()) text = failure;
  const std::string peer = peer_ < 0 ? "any rank" : transport_.peer_name(peer_);
  if (!wait.is_over()) throw std::runtime_error(concat(peer, " closed its connection [", text, "]"));
  throw std::runtime_error(concat(kind_ == Kind::kSend ? "no receive for" : "no message of", " ", buffer_->size, " bytes with tag ", tag_,
                                  kind_ == Kind::kSend ? " by " : " from ", peer, " within ", transport_.limit().seconds(), " s"));
}

/// Two ranks of this process exchange a message in all the ways that Cohort uses.
void self_test_of_messages() {
  const std::string line = mismatch_with(name_settings("train on one host with --backend shm"));
  make_gloo(c10::make_intrusive<c10d::HashStore>(), 0, 1, "127.0.0.1", 20);  // Its own test must come first: guards do not nest.
  const CrashGuard guard(line.c_str());
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto swap = [&](int rank) {
    GlooTransport transport(make_gloo(store, rank, 2, "127.0.0.1", 20), rank, 2, 20, "the self-test");
    int mine = 41 + rank, other = 0;
    const auto received = transport.receive(&other, sizeof other, rank == 0 ? -1 : 0, 7);
    transport.send(&mine, sizeof mine, 1 - rank, 7)->wait();
    received->wait();
    return other == 42 - rank && received->source() == 1 - rank;
  };
  auto rank_1 = std::async(std::launch::async, swap, 1);
  const bool right = swap(0);
  if (!rank_1.get() || !right) fail(ErrorCode::kEnvironment, line);
}

}  // namespace

std::unique_ptr<NetworkTransport> make_gloo_transport(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const std::string& address,
                                                      double timeout_seconds, const std::string& group) {
  static std::once_flag tested;
  std::call_once(tested, self_test_of_messages);
  return std::make_unique<GlooTransport>(make_gloo(std::move(store), rank, size, address, timeout_seconds), rank, size, timeout_seconds,
                                         group);
}

}  // namespace cohort
