#include "cohort/comm/net/mpi_transport.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <future>
#include <thread>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/comm/net/mpi_library.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr size_t kMaxPartBytes = size_t{1} << 30;

/// Pauses between polls: none while a message is likely on its way, then growing ones.
class PollBackoff {
 public:
  static constexpr auto kYielding = std::chrono::microseconds(100);
  static constexpr auto kShortSleep = std::chrono::microseconds(20), kLongestSleep = std::chrono::microseconds(500);

  void pause() {
    const auto waited = Clock::now() - begin_;
    if (waited < kYielding) return std::this_thread::yield();
    // A tenth of the time so far, which lengthens a wait by at most a tenth.
    const auto sleep = std::chrono::duration_cast<std::chrono::microseconds>(waited / 10);
    std::this_thread::sleep_for(std::clamp<std::chrono::microseconds>(sleep, kShortSleep, kLongestSleep));
  }
  bool exceeds(Seconds limit) { return awake_.seconds() > limit.count(); }

 private:
  Clock::time_point begin_ = Clock::now();
  AwakeTimer awake_{begin_};
};

/// The communicators of a group; messages keep them alive.
struct MpiGroup {
  MpiLibrary& library;
  MpiLibrary::Handle collective = 0, user = 0;
  Seconds timeout;

  ~MpiGroup() {
    // MPI_Comm_free and MPI_Finalize wait for all ranks: skip them after an error.
    if (failed || std::uncaught_exceptions() > 0) {
      library.leave_unfinalized();
    } else {
      library.free_group(collective);
      library.free_group(user);
    }
  }
  bool failed = false;
};

struct MessageSpec {
  const void* data;
  size_t bytes;
  int peer, tag;
  bool is_send;
};

class MpiMessage final : public Message {
 public:
  MpiMessage(std::shared_ptr<MpiGroup> group, MpiLibrary::Handle communicator, const MessageSpec& spec, std::string peer_name)
      : group_(std::move(group)), communicator_(communicator), spec_(spec), peer_name_(std::move(peer_name)) {
    post(spec_.peer < 0 ? 1 : num_parts());  // From any rank: later chunks come from the same one.
  }
  ~MpiMessage() override {
    // A send cannot be cancelled: its memory must stay valid (transport.h).
    if (spec_.is_send) return;
    for (Part& part : under_way_) {
      try {
        group_->library.cancel(part.request);
      } catch (const std::exception&) {
        group_->failed = true;
      }
    }
  }

  bool done() override {
    while (!under_way_.empty()) {
      Part& part = under_way_.front();
      const MpiLibrary::Outcome outcome = test(part);
      if (!outcome.done) return false;
      if (!spec_.is_send) check_arrived(outcome, part.bytes);
      under_way_.pop_front();
      if (num_posted_ < num_parts()) post(num_parts());
    }
    return true;
  }

  void wait() override {
    PollBackoff backoff;
    while (!done()) {
      if (backoff.exceeds(group_->timeout)) {
        group_->failed = true;
        throw std::runtime_error(concat(spec_.is_send ? "no receive for " : "no message of ", spec_.bytes, " bytes with tag ", spec_.tag,
                                        spec_.is_send ? " by " : " from ", peer_name_, " within ", group_->timeout.count(), " s"));
      }
      backoff.pause();
    }
  }

  int source() override { return spec_.peer; }

 private:
  struct Part {
    MpiLibrary::Handle request;
    size_t bytes;
  };

  size_t num_parts() const { return std::max<size_t>(1, (spec_.bytes + kMaxPartBytes - 1) / kMaxPartBytes); }

  void post(size_t until) {
    for (; num_posted_ < until; ++num_posted_) {
      const size_t begin = num_posted_ * kMaxPartBytes, bytes = std::min(kMaxPartBytes, spec_.bytes - begin);
      std::byte* data = static_cast<std::byte*>(const_cast<void*>(spec_.data)) + begin;
      under_way_.push_back({spec_.is_send ? group_->library.send(data, bytes, spec_.peer, spec_.tag, communicator_)
                                          : group_->library.receive(data, bytes, spec_.peer, spec_.tag, communicator_),
                            bytes});
    }
  }

  MpiLibrary::Outcome test(Part& part) {
    try {
      return group_->library.test(part.request);
    } catch (const std::exception& error) {
      group_->failed = true;
      under_way_.pop_front();
      throw std::runtime_error(concat("a message of ", spec_.bytes, " bytes with tag ", spec_.tag, spec_.is_send ? " to " : " from ",
                                      peer_name_, " failed [", error.what(), "]"));
    }
  }

  void check_arrived(const MpiLibrary::Outcome& outcome, size_t bytes) {
    if (spec_.peer < 0) peer_name_ = concat("rank ", outcome.source);
    spec_.peer = outcome.source;
    if (outcome.bytes == bytes) return;
    under_way_.pop_front();
    fail(ErrorCode::kFailed, "a message with tag ", spec_.tag, " from ", peer_name_, " has ", outcome.bytes, " bytes where ", bytes,
         " were expected");
  }

  std::shared_ptr<MpiGroup> group_;
  MpiLibrary::Handle communicator_;
  MessageSpec spec_;
  std::string peer_name_;
  std::deque<Part> under_way_;
  size_t num_posted_ = 0;
};

class MpiTransport final : public NetworkTransport {
 public:
  MpiTransport(std::shared_ptr<MpiGroup> mpi, int rank, int size, const std::string& group)
      : NetworkTransport(rank, size, group), mpi_(std::move(mpi)) {}
  const char* name() const override { return "mpi"; }

 protected:
  std::shared_ptr<Message> post_send(const void* data, size_t bytes, int peer, int tag, Lane lane) override {
    return post({data, bytes, peer, tag, true}, lane);
  }
  std::shared_ptr<Message> post_receive(void* data, size_t bytes, int peer, int tag, Lane lane) override {
    return post({data, bytes, peer, tag, false}, lane);
  }
  int max_tag() const override { return mpi_->library.max_tag(); }

 private:
  std::shared_ptr<Message> post(const MessageSpec& spec, Lane lane) {
    return std::make_shared<MpiMessage>(mpi_, lane == Lane::kCollective ? mpi_->collective : mpi_->user, spec,
                                        spec.peer < 0 ? "any rank" : peer_name(spec.peer));
  }

  std::shared_ptr<MpiGroup> mpi_;
};

/// MPI_Comm_create_group has no time-out, so it runs in a thread that is abandoned at ours.
void make_communicators(MpiGroup& group, const std::vector<int>& world_ranks, double timeout_seconds) {
  auto made = std::make_shared<std::promise<std::pair<MpiLibrary::Handle, MpiLibrary::Handle>>>();
  auto result = made->get_future();
  std::thread([made, world_ranks, &library = group.library] {
    try {
      const MpiLibrary::Handle collective = library.make_group(world_ranks, 0);
      made->set_value({collective, library.make_group(world_ranks, 1)});
    } catch (...) {
      made->set_exception(std::current_exception());
    }
  }).detach();
  group.failed = true;
  if (result.wait_for(Seconds(timeout_seconds)) != std::future_status::ready)
    fail(ErrorCode::kEnvironment, "not all of the ", world_ranks.size(), " ranks of a group came to MPI_Comm_create_group within ",
         timeout_seconds, " s; look for a rank that has ended or makes its groups in another order");
  std::tie(group.collective, group.user) = result.get();
  group.failed = false;
}

}  // namespace

std::unique_ptr<NetworkTransport> make_mpi_transport(const std::vector<int>& world_ranks, int rank, double timeout_seconds,
                                                     const std::string& group) {
  MpiLibrary& library = MpiLibrary::instance();
  const int expected = world_ranks.at(static_cast<size_t>(rank));
  if (library.rank() != expected || *std::max_element(world_ranks.begin(), world_ranks.end()) >= library.size())
    fail(ErrorCode::kEnvironment, "this process is rank ", library.rank(), " of ", library.size(), " to MPI, and rank ", expected,
         " to Cohort: start all ranks with one mpirun, whose MPI is the one that was loaded (", library.version(), ")");
  auto mpi = std::make_shared<MpiGroup>(library);
  mpi->timeout = Seconds(timeout_seconds);
  make_communicators(*mpi, world_ranks, timeout_seconds);
  return std::make_unique<MpiTransport>(std::move(mpi), rank, static_cast<int>(world_ranks.size()), group);
}

}  // namespace cohort
