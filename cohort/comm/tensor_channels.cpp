#include "cohort/comm/tensor_channels.h"

#include <ATen/ops/empty.h>

#include <chrono>
#include <deque>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/comm/group_internals.h"
#include "cohort/comm/packet.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

struct TensorChannels::State {
  Group group;
  std::unique_ptr<PacketTransport> way;     // Null in a group of one rank.
  std::deque<std::vector<at::Tensor>> own;  // Sent by this rank to itself.
  int64_t sent_bytes = 0;
  double waited_seconds = 0;
  std::string failure;  // Not empty: every call fails.

  void check_peer(const char* operation, int peer, const std::string& what) const;
  [[noreturn]] void fail_group(const std::string& operation, ErrorCode code, const std::string& text);
  /// Runs use() and explains its errors like Group. `describe` returns the operation in words.
  template <typename Describe, typename Use>
  auto guarded(Describe describe, Use use);
};

void TensorChannels::State::check_peer(const char* operation, int peer, const std::string& what) const {
  if (peer < 0 || peer >= group.size())
    fail(ErrorCode::kBadInput, operation, " of ", what, ": there is no rank ", peer, " in a group of ", group.size());
}

void TensorChannels::State::fail_group(const std::string& operation, ErrorCode code, const std::string& text) {
  const std::string missing = GroupInternals::describe_missing(group);
  failure = concat("the ", operation, " failed on rank ", group.rank(), " of ", group.size(), ": ",
                   missing.empty() ? text : concat(missing, " [", text, "]"));
  fail(code, failure);
}

template <typename Describe, typename Use>
auto TensorChannels::State::guarded(Describe describe, Use use) {
  if (!failure.empty()) fail(ErrorCode::kEnvironment, "the ", describe(), " was not run, because a hand-over failed before: ", failure);
  try {
    return use();
  } catch (const Error& error) {
    fail_group(describe(), error.code(), error.what());
  } catch (const std::runtime_error& error) {
    fail_group(describe(), ErrorCode::kEnvironment, error.what());
  }
}

TensorChannels::TensorChannels(Group group, TensorChannelsOptions options) : state_(std::make_unique<State>()) {
  if (options.shared_bytes < 0)
    fail(ErrorCode::kBadInput, "hand-over of tensors: ", options.shared_bytes, " bytes of shared memory were asked for");
  state_->group = group;
  if (group.size() == 1) return;
  state_->way = GroupInternals::arena(group) ? make_shm_packets(group, options.shared_bytes) : make_network_packets(group);
}

TensorChannels::~TensorChannels() = default;

void TensorChannels::send(int peer, const std::vector<at::Tensor>& tensors, const std::string& what) {
  state_->check_peer("send", peer, what);
  const size_t bytes = packed_bytes(tensors, what);
  if (peer == state_->group.rank()) {
    const auto packet = std::make_shared<at::Tensor>(at::empty({static_cast<int64_t>(bytes)}, at::kByte));
    auto* const memory = static_cast<std::byte*>(packet->data_ptr());
    pack(tensors, memory);
    state_->own.push_back(unpack(memory, bytes, packet));
  } else {
    state_->guarded([&] { return concat("send of ", what, " to rank ", peer); }, [&] { state_->way->send(peer, tensors, bytes); });
  }
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) state_->sent_bytes += static_cast<int64_t>(tensor.nbytes());
}

std::vector<at::Tensor> TensorChannels::receive(int peer, const std::string& what) {
  state_->check_peer("receive", peer, what);
  if (peer == state_->group.rank()) {
    if (state_->own.empty())
      fail(ErrorCode::kBadInput, "receive of ", what, ": rank ", peer, " has sent itself nothing, so the wait would not end");
    std::vector<at::Tensor> tensors = std::move(state_->own.front());
    state_->own.pop_front();
    return tensors;
  }
  const auto describe = [&] { return concat("receive of ", what, " from rank ", peer); };
  return state_->guarded(describe, [&] {
    if (state_->way->ready(peer)) return state_->way->receive(peer);
    const auto begin = Clock::now();
    std::vector<at::Tensor> tensors = state_->way->receive(peer);
    state_->waited_seconds += seconds_since(begin);
    return tensors;
  });
}

bool TensorChannels::ready(int peer) {
  state_->check_peer("receive", peer, "a packet");
  if (peer == state_->group.rank()) return !state_->own.empty();
  return state_->guarded([&] { return concat("look for a packet from rank ", peer); }, [&] { return state_->way->ready(peer); });
}

void TensorChannels::flush() {
  if (!state_->way) return;
  const auto describe = [] { return std::string("flush of what was sent"); };
  state_->guarded(describe, [&] {
    const auto begin = Clock::now();
    state_->way->flush();
    state_->waited_seconds += seconds_since(begin);
  });
}

int64_t TensorChannels::sent_bytes() const { return state_->sent_bytes; }
double TensorChannels::waited_seconds() const { return state_->waited_seconds; }

}  // namespace cohort
