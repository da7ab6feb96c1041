// Simulated annealing of a placement's loads (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983).
//
// The largest load alone is a plateau: most moves do not change it. So what falls is the 32-norm of the loads, which is nearly the
// largest but also sees the others, plus some of the mean, which falls with transfers, plus a fine for memory that is not there. A step is
// one of
//   one item to another part, mostly to one that it shares a net with;
//   two items change places;
//   all items of a net that are on one part go to another;
//   a connected piece of up to 12 items goes to another part.
// Worse is accepted with probability exp(-rise / temperature), the temperature falls geometrically. A step costs the nets of the items
// that move, not the size of the problem. Loads are added up anew every 2^16 steps, so rounding errors stay small.

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "bench/program/published/load_search.h"
#include "cohort/base/clock.h"
#include "cohort/base/random.h"

namespace cohort {

LoadState::LoadState(const LoadProblem& problem, Placement placement)
    : problem_(problem), num_parts_(static_cast<size_t>(problem.num_parts())), nets_of_(problem.items.size()) {
  for (size_t n = 0; n < problem.nets.size(); ++n)
    for (const int pin : problem.nets[n].pins) nets_of_[pin].push_back(static_cast<int>(n));
  restart(placement);
}

void LoadState::restart(const Placement& placement) {
  placement_ = placement;
  loads_ = loads_of(problem_, placement_);
  bytes_.assign(num_parts_, 0);
  count_.assign(problem_.nets.size() * num_parts_, 0);
  span_.assign(problem_.nets.size(), 0);
  for (size_t i = 0; i < placement_.size(); ++i) bytes_[placement_[i]] += problem_.items[i].bytes;
  for (size_t n = 0; n < problem_.nets.size(); ++n)
    for (const int pin : problem_.nets[n].pins) span_[n] += count_[n * num_parts_ + placement_[pin]]++ == 0;
  cut_.clear();
  place_.assign(problem_.nets.size(), 0);
  for (size_t n = 0; n < problem_.nets.size(); ++n)
    if (span_[n] > 1) cut(static_cast<int>(n));
}

void LoadState::cut(int net) {
  place_[net] = static_cast<int>(cut_.size());
  cut_.push_back(net);
}

void LoadState::join(int net) {
  place_[cut_.back()] = place_[net];
  cut_[place_[net]] = cut_.back();
  cut_.pop_back();
}

double LoadState::excess(int part) const {
  const double most = problem_.memory_bytes;
  if (problem_.is_cpu(part) || bytes_[part] <= most) return 0;
  return bytes_[part] / std::max(most, 1.0) - (most > 0 ? 1 : 0);
}

void LoadState::leave(int net, int part) {
  if (--count_[net * num_parts_ + part] > 0) return;
  if (span_[net]-- > 1) pay(part, -problem_.nets[net].cost);
}

void LoadState::enter(int net, int part) {
  if (count_[net * num_parts_ + part]++ > 0) return;
  if (span_[net]++ > 0) pay(part, problem_.nets[net].cost);
}

void LoadState::move(int item, int to) {
  const int from = placement_[item];
  for (const int net : nets_of_[item]) {
    const int before = span_[net];
    leave(net, from);
    enter(net, to);
    if (before == 1 && span_[net] > 1) cut(net);
    if (before > 1 && span_[net] == 1) join(net);
    // A part that was alone has company now, or the other way round: what `leave` and `enter` cannot see.
    if (before == 1 && span_[net] == 2) pay(from, problem_.nets[net].cost);
    if (before == 2 && span_[net] == 1) pay(to, -problem_.nets[net].cost);
  }
  loads_[from] -= problem_.work_on(from, item);
  loads_[to] += problem_.work_on(to, item);
  bytes_[from] -= problem_.items[item].bytes;
  bytes_[to] += problem_.items[item].bytes;
  placement_[item] = to;
}

namespace {

class Annealer {
 public:
  Annealer(const LoadProblem& problem, const Placement& start, const AnnealOptions& options)
      : problem_(problem), options_(options), state_(problem, start), random_(mix64(options.seed)), best_(start) {
    for (const double load : state_.loads()) scale_ = std::max(scale_, load);
    if (!(scale_ > 0) || !std::isfinite(scale_)) scale_ = 1;
    if (fits(problem, start)) best_load_ = largest_load(problem, start);
    energy_ = energy();
  }

  Placement run() {
    const double steps = static_cast<double>(std::max<int64_t>(options_.steps, 1));
    for (int64_t step = 0; step < options_.steps && best_load_ > options_.goal; ++step) {
      if (step % 1024 == 0) {
        temperature_ = options_.hot * std::pow(options_.cold / options_.hot, static_cast<double>(step) / steps);
        if (options_.deadline > 0 && steady_seconds() > options_.deadline) break;
        if (step % 65536 == 0) state_.restart(Placement(state_.placement()));
      }
      propose();
      if (!moves_.empty()) settle();
    }
    return best_;
  }

 private:
  struct Move {
    int item, from;
  };

  uint64_t bits() { return mix64(random_++); }
  int draw(size_t below) { return static_cast<int>((bits() >> 32) * below >> 32); }
  double chance() { return unit_interval(bits()); }

  double energy() const {
    double sum = 0, fine = 0, mean = 0;
    for (int part = 0; part < problem_.num_parts(); ++part) {
      double x = state_.loads()[part] / scale_;
      if (!problem_.is_cpu(part)) mean += x / problem_.num_accelerators;
      for (int i = 0; i < 5; ++i) x *= x;
      sum += x;
      fine += state_.excess(part);
    }
    for (int i = 0; i < 5; ++i) sum = std::sqrt(sum);
    return sum + fine + options_.mean_weight * mean;
  }

  void move(int item, int to) {
    const int from = state_.part_of(item);
    if (from == to || !std::isfinite(problem_.work_on(to, item))) return;
    moves_.push_back({item, from});
    state_.move(item, to);
  }

  /// Keeps what `propose` did, or takes it back.
  void settle() {
    const double now = energy();
    if (now > energy_ && chance() >= std::exp((energy_ - now) / temperature_)) {
      for (size_t i = moves_.size(); i > 0; --i) state_.move(moves_[i - 1].item, moves_[i - 1].from);
      return;
    }
    energy_ = now;
    const double load = *std::max_element(state_.loads().begin(), state_.loads().end());
    if (load < best_load_ * (1 - 1e-12) && memory_holds()) {
      best_load_ = load;
      best_ = state_.placement();
    }
  }

  bool memory_holds() const {
    for (int part = 0; part < problem_.num_accelerators; ++part)
      if (state_.excess(part) > 0) return false;
    return true;
  }

  /// A part that one of the item's nets reaches; any part where there is none.
  int part_near(int item) {
    const std::vector<int>& nets = state_.nets_of(item);
    if (!nets.empty() && draw(8) > 0) {
      const std::vector<int>& pins = problem_.nets[nets[draw(nets.size())]].pins;
      if (const int part = state_.part_of(pins[draw(pins.size())]); part != state_.part_of(item)) return part;
    }
    return draw(static_cast<size_t>(problem_.num_parts()));
  }

  /// Mostly one at a cut: an item with all its neighbours beside it is seldom better elsewhere.
  int draw_item() {
    const std::vector<int>& cut = state_.cut_nets();
    if (cut.empty() || draw(4) == 0) return draw(problem_.items.size());
    const std::vector<int>& pins = problem_.nets[cut[draw(cut.size())]].pins;
    return pins[draw(pins.size())];
  }

  void propose() {
    moves_.clear();
    const int item = draw_item(), kind = draw(8);
    if (kind < 4) move(item, part_near(item));
    else if (kind < 6) exchange(item);
    else if (kind < 7) move_net(item);
    else move_piece(item);
  }

  void exchange(int item) {
    const int other = draw_item(), from = state_.part_of(item), to = state_.part_of(other);
    if (from == to) return;
    move(item, to);
    move(other, from);
  }

  void move_net(int item) {
    const std::vector<int>& nets = state_.nets_of(item);
    if (nets.empty()) return;
    const int from = state_.part_of(item), to = part_near(item);
    for (const int pin : problem_.nets[nets[draw(nets.size())]].pins)
      if (state_.part_of(pin) == from) move(pin, to);
  }

  void move_piece(int item) {
    const int from = state_.part_of(item), to = part_near(item);
    if (from == to) return;
    const size_t most = 2 + static_cast<size_t>(draw(11));
    move(item, to);
    for (size_t tries = 0; moves_.size() < most && !moves_.empty() && tries < 2 * most; ++tries) {
      const std::vector<int>& nets = state_.nets_of(moves_[draw(moves_.size())].item);
      if (nets.empty()) return;
      const std::vector<int>& pins = problem_.nets[nets[draw(nets.size())]].pins;
      if (const int pin = pins[draw(pins.size())]; state_.part_of(pin) == from) move(pin, to);
    }
  }

  const LoadProblem& problem_;
  const AnnealOptions& options_;
  LoadState state_;
  uint64_t random_;
  Placement best_;
  double best_load_ = std::numeric_limits<double>::infinity();
  double scale_ = 0, energy_ = 0, temperature_ = 0;
  std::vector<Move> moves_;
};

}  // namespace

Placement anneal_loads(const LoadProblem& problem, const Placement& start, const AnnealOptions& options) {
  if (problem.num_parts() < 2 || problem.items.empty()) return start;
  return Annealer(problem, start, options).run();
}

}  // namespace cohort
