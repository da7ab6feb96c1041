#include "cohort/comm/shm/shm_transport.h"

#include <algorithm>
#include <cstring>

#include "cohort/base/fail.h"
#include "cohort/comm/shm/shm_messages.h"
#include "cohort/comm/transport/calls.h"
#include "cohort/comm/transport/reduce.h"

namespace cohort {
namespace {

// A published completion costs every peer a cache line, so small calls share one.
constexpr uint64_t kPublishEvery = ShmBoard::kNumSlots / 4;
// Larger copies should reuse the ring's first bytes, which are in cache.
constexpr size_t kReuseBytes = 2 << 10;
constexpr uint64_t kNowhere = ~uint64_t{0};

uint64_t key_of(const Signature& signature) {
  return static_cast<uint64_t>(signature.op) | static_cast<uint64_t>(signature.reduction) << 8 |
         static_cast<uint64_t>(static_cast<uint8_t>(signature.type)) << 16 | (signature.sequence & 0xff) << 24 |
         static_cast<uint64_t>(static_cast<uint32_t>(signature.root)) << 32;
}

/// 0 without a name.
uint32_t hash_of(const char (&name)[sizeof Signature::name]) {
  if (name[0] == 0) return 0;
  uint64_t hash = 0;
  for (size_t at = 0; at < sizeof name; at += sizeof hash) {
    uint64_t word;
    std::memcpy(&word, name + at, sizeof word);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return static_cast<uint32_t>(hash) | 1;
}

}  // namespace

ShmTransport::ShmTransport(std::shared_ptr<ShmArena> arena, const std::vector<int>& pids, double timeout_seconds, const ShmTuning& tuning,
                           std::string group)
    : Transport(arena->rank(), arena->size()),
      board_(std::make_shared<ShmBoard>(std::move(arena))),
      waiter_(std::make_shared<ShmWaiter>(pids, timeout_seconds)),
      steps_(*board_, *waiter_),
      messages_(std::make_shared<ShmMessages>(board_, waiter_)),
      group_(std::move(group)) {
  set_tuning(tuning);
  std::vector<ShmFlag*> lost;
  for (int peer = 0; peer < size(); ++peer) lost.push_back(&board_->counters(peer).lost);
  waiter_->set_lost_flags(std::move(lost), rank());
}

ShmTransport::~ShmTransport() = default;

void ShmTransport::set_tuning(const ShmTuning& tuning) {
  tuning_ = tuning;
  // A tile has a cache line per rank; several copies fit into the ring.
  tuning_.tile_bytes = std::clamp<size_t>(tuning.tile_bytes / 64 * 64, 64 * static_cast<size_t>(size()), ShmBoard::kTileBytes);
  tuning_.flat_bytes = std::min(tuning.flat_bytes, ShmBoard::kRingBytes / 4);
  tuning_.direct_bytes = std::min(tuning.direct_bytes, ShmBoard::kRingBytes / 4);
}

// Starting.

void ShmTransport::start(Call& call) {
  const uint64_t number = started_ + 1;
  make_room(number);
  const Signature signature = signature_of(call);
  ShmSlot& slot = board_->slot(rank(), number);
  slot.key = key_of(signature);
  slot.count = signature.count;
  slot.name_hash = hash_of(signature.name);
  slot.signature = signature;
  if (call.op == Op::kAllToAll && !call.send_counts.empty()) place_counts(call, number);
  place_input(call, slot, number);
  started_ = number;
  call.handle = number;
  under_way(number) = {&call, nullptr};
  publish(slot.arrived, number);
}

/// Waits until the slot of `number` is free.
void ShmTransport::make_room(uint64_t number) {
  if (number - finished_ > kMaxUnderWay) finish_oldest();
  if (number <= ShmBoard::kNumSlots || completed_by_all_ + ShmBoard::kNumSlots >= number) return;
  learn_completed();
  if (completed_by_all_ + ShmBoard::kNumSlots >= number) return;
  // This rank has finished and published that call long ago (kMaxUnderWay), so no peer can be waiting for it.
  waiter_->wait_all(rank(), number - ShmBoard::kNumSlots, [&](int peer) -> ShmFlag& { return board_->counters(peer).completed; });
  learn_completed();
}

void ShmTransport::finish_oldest() {
  UnderWay& oldest = under_way(finished_ + 1);
  try {
    run(*oldest.call, finished_ + 1);
  } catch (...) {
    oldest.error = std::current_exception();
  }
}

void ShmTransport::learn_completed() {
  uint64_t completed = finished_;
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) completed = std::min(completed, board_->counters(peer).completed.value.load(std::memory_order_acquire));
  completed_by_all_ = completed;
  while (!copies_.empty() && copies_.front().number <= completed) copies_.pop_front();
}

void ShmTransport::place_counts(const Call& call, uint64_t number) {
  uint64_t* const counts = board_->rank_counts(rank(), number);
  const size_t num = static_cast<size_t>(size());
  if (call.send_counts.size() != num || call.receive_counts.size() != num)
    fail(ErrorCode::kBadInput, "all-to-all of ", num, " ranks with ", call.send_counts.size(), " counts to send and ",
         call.receive_counts.size(), " to receive");
  std::copy(call.send_counts.begin(), call.send_counts.end(), counts);
  std::copy(call.receive_counts.begin(), call.receive_counts.end(), counts + num);
}

/// Whether peers can access the caller's memory.
bool ShmTransport::is_shared(const Call& call, size_t given, ShmSlot::Offsets* offsets) const {
  const void* const input = call.input ? call.input : call.output;
  size_t at = 0;
  if (!arena()->offset_of(input, given, &at)) return false;
  offsets->input = at;
  offsets->output = kNowhere;
  if (call.op != Op::kAllReduce && (call.op != Op::kReduce || call.root != rank())) return true;
  if (!arena()->offset_of(call.output, given, &at)) return false;
  offsets->output = at;
  return true;
}

void ShmTransport::place_input(const Call& call, ShmSlot& slot, uint64_t number) {
  const size_t given = input_bytes(call, rank(), size());
  const void* const input = call.input ? call.input : call.output;
  if (given == 0) {
    slot.source = ShmSource::kNothing;
  } else if (given <= std::min(ShmSlot::kInlineBytes, std::max(tuning_.flat_bytes, tuning_.direct_bytes))) {
    slot.source = ShmSource::kInline;
    std::memcpy(slot.data, input, given);
  } else {
    ShmSlot::Offsets offsets{kNowhere, kNowhere};
    const bool shared = is_shared(call, given, &offsets);
    std::byte* const copy = given <= (shared ? tuning_.direct_bytes : tuning_.flat_bytes) ? take_from_ring(given, number) : nullptr;
    slot.source = copy ? ShmSource::kCopied : shared ? ShmSource::kShared : ShmSource::kPrivate;
    if (copy) {
      std::memcpy(copy, input, given);
      offsets.input = static_cast<uint64_t>(copy - arena()->region(rank()));
    }
    slot.offsets = offsets;
  }
}

/// Room for a copy until all ranks have completed call `number`; null when the ring is full.
std::byte* ShmTransport::take_from_ring(size_t bytes, uint64_t number) {
  const size_t length = (bytes + 63) / 64 * 64;
  const auto place = [&]() -> size_t {
    if (copies_.empty()) return 0;
    const Copy &oldest = copies_.front(), &newest = copies_.back();
    const bool wrapped = newest.begin < oldest.begin;
    if (!wrapped && length <= oldest.begin) return 0;
    const size_t limit = wrapped ? oldest.begin : ShmBoard::kRingBytes;
    return newest.end + length <= limit ? newest.end : ShmBoard::kRingBytes;
  };
  if (length > kReuseBytes) learn_completed();
  size_t begin = place();
  if (begin == ShmBoard::kRingBytes) {
    learn_completed();
    begin = place();
  }
  if (begin == ShmBoard::kRingBytes) return nullptr;
  copies_.push_back({number, begin, begin + length});
  return board_->ring(rank()) + begin;
}

bool ShmTransport::ready(const Call& call) {
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank() && !ShmWaiter::has_reached(board_->slot(peer, call.handle).arrived, call.handle)) return false;
  return true;
}

// Finishing.

void ShmTransport::finish(Call& call) {
  if (call.handle == 0) start(call);
  if (call.handle <= finished_) {
    if (std::exception_ptr error = std::exchange(under_way(call.handle).error, nullptr)) std::rethrow_exception(error);
    return;
  }
  if (call.handle != finished_ + 1)
    fail(ErrorCode::kFailed, "rank ", rank(), " finishes call ", call.handle, " of the group before call ", finished_ + 1);
  run(call, call.handle);
}

void ShmTransport::run(const Call& call, uint64_t number) {
  // In any case this call ends on this rank; its copy is freed when all ranks have completed it.
  struct Over {
    ShmTransport& transport;
    uint64_t number;
    ~Over() {
      transport.finished_ = number;
      if (number - transport.published_ < kPublishEvery && transport.board_->slot(transport.rank(), number).source != ShmSource::kCopied)
        return;
      transport.published_ = number;
      publish(transport.board_->counters(transport.rank()).completed, number);
    }
  } over{*this, number};
  waiter_->wait_all(rank(), number, [&](int peer) -> ShmFlag& { return board_->slot(peer, number).arrived; });
  check(call, number);
  move_data(call, number);
}

/// Throws, the same on all ranks, for calls that differ or are invalid.
void ShmTransport::check(const Call& call, uint64_t number) {
  const ShmSlot& mine = board_->slot(rank(), number);
  bool same = true;
  uint32_t name = 0;  // The first name given: all ranks compare with the same one.
  for (int peer = 0; peer < size(); ++peer) {
    const ShmSlot& slot = board_->slot(peer, number);
    if (name == 0) name = slot.name_hash;
    same &= slot.key == mine.key && slot.count == mine.count && (slot.name_hash == 0 || slot.name_hash == name);
  }
  if (!same) {
    std::vector<Signature> signatures;
    for (int peer = 0; peer < size(); ++peer) signatures.push_back(board_->slot(peer, number).signature);
    check_signatures(signatures.data(), size(), group_.c_str());
  }
  if (call.op == Op::kAllReduce || call.op == Op::kReduce || call.op == Op::kReduceScatter) check_reduction(call.reduction, call.type);
}

/// Sets the addresses of every rank's input and output.
void ShmTransport::read_slots(uint64_t number, bool* any_private, bool* any_shared) {
  job_.sources.resize(static_cast<size_t>(size()));
  job_.targets.resize(static_cast<size_t>(size()));
  for (int peer = 0; peer < size(); ++peer) {
    ShmSlot& slot = board_->slot(peer, number);
    const std::byte*& source = job_.sources[static_cast<size_t>(peer)];
    std::byte*& target = job_.targets[static_cast<size_t>(peer)];
    source = target = nullptr;
    *any_private |= slot.source == ShmSource::kPrivate;
    *any_shared |= slot.source == ShmSource::kShared;
    if (slot.source == ShmSource::kInline) source = slot.data;
    if (slot.source == ShmSource::kCopied || slot.source == ShmSource::kShared) {
      source = arena()->region(peer) + slot.offsets.input;
      if (slot.offsets.output != kNowhere) target = arena()->region(peer) + slot.offsets.output;
    }
  }
}

void ShmTransport::move_data(const Call& call, uint64_t number) {
  fill_job(job_, call, rank(), size());
  if (call.op == Op::kAllToAll && !call.send_counts.empty()) {
    for (int peer = 0; peer < size(); ++peer) job_.counts.push_back(board_->rank_counts(peer, number));
    check_counts(job_);
  }
  bool any_private = false, any_shared = false, any_copied = false;
  read_slots(number, &any_private, &any_shared);
  for (int peer = 0; peer < size(); ++peer) {
    const ShmSource source = board_->slot(peer, number).source;
    any_copied |= source == ShmSource::kInline || source == ShmSource::kCopied;
  }
  if (size() == 1) {
    job_.sources[0] = job_.input;
    return all_read(job_);
  }
  if (!any_private && !any_shared) return all_read(job_);
  if (job_.reduces_whole()) {
    // Reading in place what its owner overwrites with the result would race, so shared arrays are only combined with shared arrays.
    return any_private || any_copied ? tiled_reduction(job_, steps_, tuning_.tile_bytes) : push_in_place(job_, steps_);
  }
  std::vector<std::byte> apart;
  if (overwrites_input(call, rank(), size())) {
    apart.resize(output_bytes(call, rank(), size()));
    job_.output = apart.data();
  }
  if (any_private) {
    tiled_exchange(job_, steps_, tuning_.tile_bytes);
  } else {
    all_read(job_);
    steps_.next();
  }
  if (!apart.empty()) std::memcpy(call.output, apart.data(), apart.size());
}

// Messages.

std::shared_ptr<Message> ShmTransport::send(const void* data, size_t bytes, int peer, int tag) {
  return messages_->send(data, bytes, peer, tag);
}
std::shared_ptr<Message> ShmTransport::receive(void* data, size_t bytes, int peer, int tag) {
  return messages_->receive(data, bytes, peer, tag);
}

}  // namespace cohort
