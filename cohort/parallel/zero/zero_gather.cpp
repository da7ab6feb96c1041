// Gather on use.
//
// Each rank runs its own program and needs whole units when its operators read them. A gather is collective, so the ranks must agree on the
// unit of each gather. They do so with a small header per rank and gather:
//
//     kind     the rank needs a unit now, or has finished its pass (it then serves the others)
//     unit     which
//     promise  the unit that it would start next, foreseen from the last step (UsePredictor); none; or any, from a rank that serves
//     ready    how many gradient exchanges it could start
//
// 1. A rank that needs a unit which is not live, with no gather under way, asks: the headers of all ranks are exchanged (all wait). The
//    lowest rank that needs something decides; a rank that needed something else asks again afterwards. When none needs anything, all have
//    finished and the section ends.
// 2. When a gather is complete, its headers say what all ranks promised. If they agree the next gather starts at once, headers and slices
//    together, and nobody waits: it travels while the operators of the present unit run. If not, the next gather is asked for.
// 3. Right after each gather, gradient exchanges that all ranks are ready for are started. All ranks see the same headers, so they start
//    gathers and exchanges in the same order, whatever each needs and when.
//
// A wrong promise costs a needless gather, and so does a unit that only some ranks use. Neither can hang. A rank without samples serves
// from the start. After a section in which ranks needed different units all forget what they learnt, so that all predict alike again.
//
// Writes of the program to a unit are kept: this rank's part is copied to its slice before the unit is dropped or sent again. Ranks must
// write alike; checksums of what each wrote are compared at the end of the next pass (zero_state.cpp).
//
// At most `live_bytes` of units stay, besides those of the operator that is about to run; the unit whose next use is predicted last is
// dropped first (Belady's rule; least recently used without a prediction). After backward the weights change and all are dropped.
//
// Cost, p ranks, unit of n bytes: (p-1)/p n received a gather, and a header of 32 bytes; two gathers of each unit a step (forward and
// backward) but for those that stay. Source: ZeRO stage 3, Rajbhandari et al. 2020, section 5.3, and FSDP, Zhao et al. 2023 (VLDB 16:12),
// section 3.3, whose prefetch follows the order of the last step. The agreement by headers is ours: there a rank that deviates hangs.
#include "cohort/parallel/zero/zero_gather.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/parallel/common/staged_exchange.h"
#include "cohort/parallel/watch/weight_watch.h"

namespace cohort {
namespace {

constexpr int64_t kNone = -1, kAny = -2;
enum Field { kKind, kUnit, kPromise, kReady, kHeaderSize };

/// Adds its lifetime to a sum.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += seconds_since(began_); }

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

int64_t field(const at::Tensor& headers, int rank, Field which) { return headers.const_data_ptr<int64_t>()[rank * kHeaderSize + which]; }

}  // namespace

ZeroGather::ZeroGather(Group group, std::vector<GatheredUnit> units, UnitMemory& memory, Options options)
    : group_(std::move(group)), units_(std::move(units)), memory_(memory), options_(std::move(options)), states_(units_.size()) {}

bool ZeroGather::in_use(int unit) const { return std::find(in_use_.begin(), in_use_.end(), unit) != in_use_.end(); }

int64_t ZeroGather::live_bytes() const {
  int64_t bytes = 0;
  for (size_t unit = 0; unit < units_.size(); ++unit)
    if (states_[unit].live) bytes += bytes_of(static_cast<int>(unit));
  return bytes;
}

void ZeroGather::use(const std::vector<int>& units) {
  in_use_ = units;
  for (const int unit : units) {
    // Forward and backward (without grad mode) use the same units in different orders.
    predictor_.note(2 * unit + (c10::GradMode::is_enabled() ? 1 : 0));
    bring(unit);
    states_[static_cast<size_t>(unit)].last_use = ++clock_;
  }
}

void ZeroGather::bring(int unit) {
  if (is_live(unit)) return;
  wanted_ = unit;
  while (!is_live(unit)) {
    if (outstanding_.unit < 0) {
      ++num_unforeseen_;
      ask(kNeeds, unit);
    }
    complete();
  }
  wanted_ = -1;
}

/// The units expected next, without repetitions and without the present one.
std::vector<int> ZeroGather::expected_units() const {
  std::vector<int> units;
  for (const int event : predictor_.ahead(2 * units_.size() + 8))
    if (std::find(units.begin(), units.end(), event / 2) == units.end()) units.push_back(event / 2);
  return units;
}

/// The unit that this rank would gather after `after`.
int ZeroGather::promise(int after) const {
  if (serving_ != kNeeds) return kAny;
  if (draining_) return kNone;
  if (wanted_ >= 0 && wanted_ != after) return wanted_;
  // The next missing unit, if it fits beside those used before it.
  int64_t kept = bytes_of(after);
  for (const int unit : in_use_)
    if (unit != after && is_live(unit)) kept += bytes_of(unit);
  for (const int unit : expected_units()) {
    if (unit == after || in_use(unit)) continue;
    kept += bytes_of(unit);
    if (kept > options_.live_bytes) return kNone;
    if (!is_live(unit)) return unit;
  }
  return kNone;
}

at::Tensor ZeroGather::header(int64_t kind, int unit) const {
  at::Tensor values = at::empty({kHeaderSize}, at::kLong);
  int64_t* const data = values.data_ptr<int64_t>();
  data[kKind] = kind;
  data[kUnit] = unit;
  data[kPromise] = promise(unit);
  data[kReady] = serving_ == kNeeds ? options_.num_ready() : serving_ == static_cast<int64_t>(Section::kPass) ? options_.num_exchanges : 0;
  return values;
}

/// Exchanges headers and starts the gather that they decide on. False when all ranks have finished the section `kind`.
bool ZeroGather::ask(int64_t kind, int unit) {
  at::Tensor headers = at::empty({group_.size(), kHeaderSize}, at::kLong);
  {
    const Stopwatch waiting(waited_seconds_);
    group_.all_gather(headers, header(kind, unit), "the requests for weights");  // One name, since ranks may request different units.
  }
  int64_t decided = -1, other_kind = kind;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const int64_t asked = field(headers, rank, kUnit);
    if (field(headers, rank, kKind) != kNeeds) {
      other_kind = field(headers, rank, kKind);
      if (kind != kNeeds && other_kind != kind)
        fail(ErrorCode::kFailed, "ZeRO: rank ", rank,
             (other_kind == static_cast<int64_t>(Section::kPass) ? " ends a step" : " ends an evaluation"), " where rank ", group_.rank(),
             " does the other; all ranks must train and evaluate in the same order");
    } else if (decided < 0) {
      decided = asked;
    }
  }
  for (int rank = 0; rank < group_.size(); ++rank) irregular_ |= field(headers, rank, kUnit) != decided;
  if (decided < 0) {
    if (kind == static_cast<int64_t>(Section::kPass)) options_.start_exchanges(options_.num_exchanges);
    return false;
  }
  begin(static_cast<int>(decided), std::move(headers), nullptr);
  return true;
}

void ZeroGather::begin_promised(int unit) {
  at::Tensor headers = at::empty({group_.size(), kHeaderSize}, at::kLong);
  auto pending =
      group_.start_all_gather(headers.view({-1}), header(kNeeds, unit), "the header of " + units_[static_cast<size_t>(unit)].name);
  begin(unit, std::move(headers), std::move(pending));
}

void ZeroGather::begin(int unit, at::Tensor headers, std::unique_ptr<Pending> headers_pending) {
  const GatheredUnit& gathered = units_[static_cast<size_t>(unit)];
  at::Tensor output = gathered.whole;
  if (is_live(unit)) {  // Requested by another rank.
    if (states_[static_cast<size_t>(unit)].is_unkept) keep(unit);
    output = at::empty({gathered.whole.numel()}, gathered.slice.options());
  } else {
    make_room(bytes_of(unit));
    memory_.attach(gathered.whole);
  }
  ++num_gathers_;
  auto data_pending = start_all_gather(group_, output, gathered.slice, gathered.name);
  outstanding_ = {unit, std::move(headers), std::move(output), std::move(headers_pending), std::move(data_pending)};
}

/// Waits for the gather under way, then starts what its headers allow.
void ZeroGather::complete() {
  Outstanding done = std::move(outstanding_);
  outstanding_ = {};
  {
    const Stopwatch waiting(waited_seconds_);
    if (done.headers_pending) done.headers_pending->wait();
    done.data_pending->wait();
  }
  states_[static_cast<size_t>(done.unit)].live = true;
  int64_t next = kAny, ready = std::numeric_limits<int64_t>::max();
  for (int rank = 0; rank < group_.size(); ++rank) {
    const int64_t promised = field(done.headers, rank, kPromise);
    ready = std::min(ready, field(done.headers, rank, kReady));
    if (promised == kAny) continue;
    next = next == kAny || next == promised ? promised : kNone;
  }
  options_.start_exchanges(ready);
  if (next >= 0) begin_promised(static_cast<int>(next));
}

void ZeroGather::settle() {
  in_use_.clear();
  draining_ = true;  // Without promises all ranks end with the same gather.
  while (outstanding_.unit >= 0) complete();
  draining_ = false;
}

void ZeroGather::finish(Section section) {
  settle();
  serving_ = static_cast<int64_t>(section);
  while (ask(serving_, -1))
    while (outstanding_.unit >= 0) complete();
  serving_ = kNeeds;
  if (irregular_) predictor_.forget();
  else predictor_.note(UsePredictor::kEnd);
  irregular_ = false;
}

void ZeroGather::mark_written(const std::vector<int>& units) {
  for (const int unit : units) states_[static_cast<size_t>(unit)].is_unkept = states_[static_cast<size_t>(unit)].was_written = true;
}

/// Copies this rank's slice from a unit that the program wrote to.
void ZeroGather::keep(int unit) {
  const GatheredUnit& gathered = units_[static_cast<size_t>(unit)];
  State& state = states_[static_cast<size_t>(unit)];
  const at::Tensor mine = gathered.whole.narrow(0, group_.rank() * gathered.slice.numel(), gathered.slice.numel());
  if (held_ && !state.was_written) state.was_written = !mine.equal(gathered.slice);  // For instance through data_ptr().
  gathered.slice.copy_(mine);
  state.checksum = checksum(gathered.whole);
  state.is_unkept = false;
}

void ZeroGather::keep_writes() {
  for (size_t unit = 0; unit < units_.size(); ++unit)
    if (states_[unit].live && (held_ || states_[unit].is_unkept)) keep(static_cast<int>(unit));
}

std::vector<int64_t> ZeroGather::written_checksums() const {
  std::vector<int64_t> checksums;
  for (const State& state : states_) checksums.push_back(state.checksum);
  return checksums;
}

void ZeroGather::forget_writes() {
  for (State& state : states_) {
    state.was_written = false;
    state.checksum = 0;
  }
}

void ZeroGather::weights_changed() {
  held_ = false;
  in_use_.clear();
  for (State& state : states_) state.is_unkept = false;
  for (size_t unit = 0; unit < units_.size(); ++unit) drop(static_cast<int>(unit));
}

void ZeroGather::hold_all() {
  if (held_) return;
  held_ = true;
  std::vector<std::unique_ptr<Pending>> pending;
  // Also units that are live here: the ranks need not hold the same.
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    drop(static_cast<int>(unit));
    memory_.attach(units_[unit].whole);
    ++num_gathers_;
    pending.push_back(start_all_gather(group_, units_[unit].whole, units_[unit].slice, units_[unit].name));
    states_[unit].live = true;
  }
  for (const auto& one : pending) one->wait();
}

void ZeroGather::release_all() {
  if (!held_) return;
  keep_writes();
  weights_changed();
}

void ZeroGather::drop(int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  if (!state.live) return;
  if (state.is_unkept) keep(unit);
  memory_.detach(units_[static_cast<size_t>(unit)].whole);
  state.live = false;
}

/// Drops units until `bytes` more fit, first those not expected or expected last.
void ZeroGather::make_room(int64_t bytes) {
  const std::vector<int> expected = expected_units();
  const auto distance = [&](int unit) { return std::find(expected.begin(), expected.end(), unit) - expected.begin(); };
  for (int64_t live = live_bytes(); live + bytes > options_.live_bytes;) {
    int victim = -1;
    for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
      if (!is_live(unit) || in_use(unit)) continue;
      const auto later = [&](int a, int b) {
        const auto a_distance = distance(a), b_distance = distance(b);
        if (a_distance != b_distance) return a_distance > b_distance;
        return states_[static_cast<size_t>(a)].last_use < states_[static_cast<size_t>(b)].last_use;
      };
      if (victim < 0 || later(unit, victim)) victim = unit;
    }
    if (victim < 0) return;
    live -= bytes_of(victim);
    drop(victim);
  }
}

void UsePredictor::note(int event) {
  if (event == last_) return;
  next_[key(before_, last_)] = event;
  before_ = last_;
  last_ = event;
}

std::vector<int> UsePredictor::ahead(size_t count) const {
  std::vector<int> events;
  int before = before_, last = last_;
  while (events.size() < count) {
    const auto place = next_.find(key(before, last));
    if (place == next_.end() || place->second == kEnd) break;
    events.push_back(place->second);
    before = last;
    last = place->second;
  }
  return events;
}

void UsePredictor::forget() {
  next_.clear();
  before_ = last_ = kEnd;
}

}  // namespace cohort
