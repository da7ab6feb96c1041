#pragma once
// The work of a training cut into tickets (step, share) for whoever is free. Knows nothing of clocks, processes or gradients. Torch-free.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/data/sampler.h"

namespace cohort {

struct Ticket {
  int64_t step = 0;  ///< Of the sampler, from 0: the first, where it is of several.
  int share = 0;
  Share positions;             ///< In the global batch of that step; never empty. Of several steps: from 0, as many as it has of all.
  int64_t global_samples = 0;  ///< Of the whole step; of several steps their mean, so that weight() counts in steps.
  int64_t num_samples() const { return positions.size(); }
  /// The part of its step that it is.
  double weight() const { return static_cast<double>(num_samples()) / static_cast<double>(global_samples); }
};

struct TicketOptions {
  int64_t num_samples = 1;   ///< Of the data set.
  int64_t global_batch = 1;  ///< Of a step.
  int num_shares = 1;        ///< That a step is cut into, as share_of_rank() does it.
  int64_t granularity = 1;
  int64_t first_step = 0;
  int64_t end_step = 0;     ///< No ticket of this step or a later one.
  int64_t steps = 1;        ///< That a ticket is of, one after the other: its share of each.
  bool own_shares = false;  ///< Of the first step that there are tickets of a worker gets the share of its own number, where nobody has it.
};

/// Tickets go out in the order of steps and shares; one that was lost goes to the next who asks. Each is finished exactly once, so each
/// sample counts once an epoch at any speeds and whoever dies. One thread.
class Tickets {
 public:
  /// Error(kBadInput) for numbers that the sampler or share_of_rank() refuse.
  explicit Tickets(const TicketOptions& options);

  /// The next one, which `worker` then has open. None where all are handed out, or where its step is more than `most_ahead` steps (-1: any
  /// number) after the first step that is not finished.
  std::optional<Ticket> take(int worker, int64_t most_ahead = -1);
  /// Whether take() has one.
  bool has_next(int64_t most_ahead = -1) const;
  /// Of an open ticket: its samples count.
  void finish(const Ticket& ticket);
  /// Of an open ticket: it goes to whoever asks next.
  void give_back(const Ticket& ticket);
  /// Gives back all that `worker` has; returns how many.
  int64_t lose(int worker);
  /// All that anybody has.
  void give_all_back();

  bool all_finished() const { return open_.empty() && returned_.empty() && next_step_ >= options_.end_step; }
  int64_t num_open() const { return static_cast<int64_t>(open_.size()); }
  /// The first step of which not all tickets are finished.
  int64_t first_unfinished_step() const;
  /// Of finished tickets, those of steps before first_step included.
  int64_t samples_done() const { return samples_done_; }
  /// Whole steps that these samples make up, counted as the sampler does: the last step of an epoch has what is left.
  int64_t steps_done() const;
  Ticket ticket_of(int64_t step, int share) const;
  /// The tickets of single steps that it is of, without those that have no sample.
  std::vector<Ticket> steps_of(int64_t step, int share) const;

  Json state() const;
  /// Of a state() with the same options. Error(kBadInput) beginning with `where` for what is none.
  void load(const Json& state, const std::string& where);

 private:
  using Key = std::pair<int64_t, int>;  // Step and share.
  Ticket single(int64_t step, int share) const;
  void advance();
  int num_tickets_of(int64_t step) const;

  TicketOptions options_;
  Sampler sampler_;  // Of sizes alone.
  Key next() const { return {next_step_, next_share_}; }
  int64_t next_step_, samples_done_ = 0;
  int next_share_ = 0;
  std::map<Key, int> open_;  // Who has them.
  std::set<Key> returned_;
};

}  // namespace cohort
