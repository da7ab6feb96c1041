#include "cohort/comm/transport/recorder.h"

#include <chrono>
#include <cstring>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/transport/calls.h"

namespace cohort {
namespace {

/// The processor's counter where readable without a system call: a third of the cost of std::chrono.
inline uint64_t ticks_now() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

double unix_seconds() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

// Slots are sequence locks: stores and loads are ordered.
constexpr auto kAfter = std::memory_order_release, kBefore = std::memory_order_acquire;
constexpr uint64_t kFailedBit = 1;  // In end_ticks: a call never ends at tick 0 or 1.

uint64_t packed(CallRecord::Kind kind, Op op, Reduction reduction, int8_t type) {
  return static_cast<uint64_t>(kind) | static_cast<uint64_t>(op) << 8 | static_cast<uint64_t>(reduction) << 16 |
         static_cast<uint64_t>(static_cast<uint8_t>(type)) << 24;
}

const char* name_of(CallRecord::State state) {
  return state == CallRecord::State::kRunning ? "running" : state == CallRecord::State::kDone ? "done" : "failed";
}

const char* name_of(const CallRecord& record) {
  if (record.kind == CallRecord::Kind::kCollective) return cohort::name_of(record.signature.op);
  return record.kind == CallRecord::Kind::kSend ? "send" : "receive";
}

/// The value with this name among the first `count`.
template <typename Value, typename Name>
Value value_named(const std::string& text, int count, Name name) {
  for (int i = 0; i < count; ++i)
    if (text == name(static_cast<Value>(i))) return static_cast<Value>(i);
  fail(ErrorCode::kFailed, "'", printable(text),
       "' in the record of another rank is not known here; do all ranks run one version of Cohort?");
}

}  // namespace

Recorder::Recorder()
    : slots_(std::make_unique<std::array<Slot, kCapacity>>()), first_ticks_(ticks_now()), first_seconds_(steady_seconds()) {}

uint64_t Recorder::begin(uint64_t kind, int root, int tag, uint64_t count, uint64_t sequence, const char* name) {
  const uint64_t record_id = num_started_.load(std::memory_order_relaxed) + 1;
  Slot& slot = (*slots_)[record_id % kCapacity];
  slot.record_id.store(0, kAfter);
  slot.end_ticks.store(0, kAfter);
  slot.kind.store(kind, kAfter);
  slot.root_and_tag.store(static_cast<uint64_t>(static_cast<uint32_t>(root)) << 32 | static_cast<uint32_t>(tag), kAfter);
  slot.count.store(count, kAfter);
  slot.sequence.store(sequence, kAfter);
  if (name && name[0]) {
    uint64_t words[sizeof Signature::name / 8];
    copy_name(reinterpret_cast<char*>(words), name);
    for (size_t i = 0; i < slot.name.size(); ++i) slot.name[i].store(words[i], kAfter);
  } else {
    slot.name[0].store(0, kAfter);
  }
  slot.start_ticks.store(ticks_now(), kAfter);
  slot.record_id.store(record_id, kAfter);
  num_started_.store(record_id, kAfter);
  return record_id;
}

uint64_t Recorder::start(const Call& call) {
  const bool plain = call.op == Op::kBarrier;
  return begin(packed(CallRecord::Kind::kCollective, call.op, call.reduction, static_cast<int8_t>(call.type)), call.root, 0,
               plain                      ? 0
               : call.send_counts.empty() ? call.count
                                          : kUnevenCount,
               call.sequence, call.name);
}

uint64_t Recorder::start_message(CallRecord::Kind kind, size_t bytes, int peer, int tag, const char* name) {
  return begin(packed(kind, Op::kBarrier, Reduction::kSum, 0), peer, tag, bytes, ++num_messages_, name);
}

void Recorder::end(uint64_t record_id, bool failed) {
  Slot& slot = (*slots_)[record_id % kCapacity];
  if (slot.record_id.load(std::memory_order_relaxed) != record_id) return;  // More than kCapacity calls have begun since.
  slot.end_ticks.store(((ticks_now() | 2) & ~kFailedBit) | (failed ? kFailedBit : 0), kAfter);
}

bool Recorder::read(uint64_t record_id, CallRecord* record) const {
  const Slot& slot = (*slots_)[record_id % kCapacity];
  if (slot.record_id.load(std::memory_order_acquire) != record_id) return false;
  const uint64_t kind = slot.kind.load(kBefore), root_and_tag = slot.root_and_tag.load(kBefore), end = slot.end_ticks.load(kBefore),
                 start = slot.start_ticks.load(kBefore), now = ticks_now();
  Call call;
  call.op = static_cast<Op>(kind >> 8 & 0xff);
  call.reduction = static_cast<Reduction>(kind >> 16 & 0xff);
  call.type = static_cast<at::ScalarType>(kind >> 24 & 0xff);
  call.root = static_cast<int>(root_and_tag >> 32);
  call.sequence = slot.sequence.load(kBefore);
  record->signature = signature_of(call);
  record->signature.count = slot.count.load(kBefore);
  record->kind = static_cast<CallRecord::Kind>(kind & 0xff);
  if (record->kind != CallRecord::Kind::kCollective) record->signature.root = call.root;
  record->tag = static_cast<int>(static_cast<uint32_t>(root_and_tag));
  uint64_t words[sizeof Signature::name / 8] = {slot.name[0].load(kBefore)};
  for (size_t i = 1; words[0] != 0 && i < slot.name.size(); ++i) words[i] = slot.name[i].load(kBefore);
  std::memcpy(record->signature.name, words, sizeof words);
  record->state = end == 0 ? CallRecord::State::kRunning : end & kFailedBit ? CallRecord::State::kFailed : CallRecord::State::kDone;
  const double seconds_a_tick = now > first_ticks_ ? (steady_seconds() - first_seconds_) / static_cast<double>(now - first_ticks_) : 0;
  const auto since = [&](uint64_t later) { return later > start ? static_cast<double>(later - start) * seconds_a_tick : 0; };
  record->start_seconds = unix_seconds() - since(now);
  record->seconds = since(end == 0 ? now : end);
  return slot.record_id.load(std::memory_order_acquire) == record_id;
}

std::vector<CallRecord> Recorder::last(size_t most) const {
  const uint64_t last = num_started_.load(std::memory_order_acquire);
  const uint64_t count = std::min<uint64_t>({last, most, kCapacity});
  std::vector<CallRecord> records;
  for (uint64_t record_id = last - count + 1; record_id <= last; ++record_id) {
    CallRecord record;
    if (read(record_id, &record)) records.push_back(record);
  }
  return records;
}

std::string Recorder::text(size_t most) const {
  std::string text;
  for (const CallRecord& record : last(most)) text += describe(record) + "\n";
  return text;
}

std::string describe(const CallRecord& record) {
  std::string text;
  if (record.kind == CallRecord::Kind::kCollective) {
    text = describe(record.signature);
  } else {
    const bool sends = record.kind == CallRecord::Kind::kSend;
    text = concat(name_of(record), " #", record.signature.sequence);
    if (record.signature.name[0]) text += concat(" of ", record.signature.name);
    text += concat(sends ? " to " : " from ", record.signature.root < 0 ? "any rank" : concat("rank ", record.signature.root), " (",
                   record.signature.count, " bytes, tag ", record.tag, ")");
  }
  if (record.state == CallRecord::State::kRunning) return concat(text, ", running for ", human_seconds(record.seconds));
  return concat(text, ", ", name_of(record.state), " after ", human_seconds(record.seconds));
}

Json to_json(const CallRecord& record) {
  Json json;
  json["op"] = name_of(record);
  json["sequence"] = record.signature.sequence;
  json["name"] = printable(std::string(record.signature.name, ::strnlen(record.signature.name, sizeof record.signature.name)));
  json["type"] = c10::toString(static_cast<at::ScalarType>(record.signature.type));
  json["count"] = record.signature.count;
  json["reduction"] = cohort::name_of(record.signature.reduction);
  json["root"] = record.signature.root;
  json["tag"] = record.tag;
  json["state"] = name_of(record.state);
  json["start"] = record.start_seconds;
  json["seconds"] = record.seconds;
  return json;
}

CallRecord call_record_from_json(const Json& json) try {
  CallRecord record;
  const std::string op = json.at("op").get<std::string>(), state = json.at("state").get<std::string>();
  if (op == "send" || op == "receive") record.kind = op == "send" ? CallRecord::Kind::kSend : CallRecord::Kind::kReceive;
  else record.signature.op = value_named<Op>(op, static_cast<int>(Op::kBarrier) + 1, [](Op value) { return cohort::name_of(value); });
  record.signature.reduction = value_named<Reduction>(json.at("reduction").get<std::string>(), static_cast<int>(Reduction::kBitXor) + 1,
                                                      [](Reduction value) { return cohort::name_of(value); });
  record.signature.type =
      static_cast<int8_t>(value_named<at::ScalarType>(json.at("type").get<std::string>(), static_cast<int>(at::ScalarType::NumOptions),
                                                      [](at::ScalarType type) { return c10::toString(type); }));
  record.signature.sequence = json.at("sequence").get<uint64_t>();
  record.signature.count = json.at("count").get<uint64_t>();
  record.signature.root = json.at("root").get<int>();
  copy_name(record.signature.name, json.at("name").get<std::string>().c_str());
  record.tag = json.at("tag").get<int>();
  record.state = state == "running" ? CallRecord::State::kRunning : state == "done" ? CallRecord::State::kDone : CallRecord::State::kFailed;
  record.start_seconds = json.at("start").get<double>();
  record.seconds = json.at("seconds").get<double>();
  return record;
} catch (const Json::exception& error) {
  fail(ErrorCode::kFailed, "the record of another rank cannot be read: ", error.what());
}

}  // namespace cohort
