#include "cohort/study/search/study_queue.h"

#include <algorithm>

namespace cohort::study {

int team_size(const StudySpec& spec, int64_t batch_size, int num_ranks) {
  if (spec.is_noisy_quadratic() || spec.max_batch_per_worker <= 0) return 1;
  const int64_t wanted = (batch_size + spec.max_batch_per_worker - 1) / spec.max_batch_per_worker;
  return static_cast<int>(std::clamp<int64_t>(wanted, 1, num_ranks));
}

StudyQueue::StudyQueue(const StudySpec& spec, int num_ranks) : spec_(spec), rule_(spec), running_(spec.batches.size()) {
  for (const BatchSpec& batch : spec.batches) {
    batches_.push_back(make_batch_queue(spec, batch));
    teams_.push_back(team_size(spec, batch.batch_size, num_ranks));
  }
}

std::optional<int> StudyQueue::phase() {
  std::optional<int> team;
  for (size_t i = 0; i < batches_.size(); ++i)
    if (!batches_[i]->done()) team = std::min(team.value_or(teams_[i]), teams_[i]);
  return team;
}

std::optional<StudyQueue::Pick> StudyQueue::next() {
  const std::optional<int> team = phase();
  std::vector<size_t> order;
  for (size_t i = 0; i < batches_.size(); ++i)
    if (team && teams_[i] == *team && !batches_[i]->done()) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return running_[a] != running_[b] ? running_[a] < running_[b] : cost_left(a) > cost_left(b);
  });
  for (const size_t i : order) {
    const std::optional<int64_t> id = batches_[i]->next();
    if (!id) continue;
    ++running_[i];
    return Pick{i, *id};
  }
  return std::nullopt;
}

void StudyQueue::lost(const Pick& pick) {
  --running_[pick.batch];
  batches_[pick.batch]->lost(pick.id);
}

void StudyQueue::ended(size_t batch, TrialSummary summary) {
  running_[batch] = std::max(0, running_[batch] - 1);  // A trial that had ended before a restart was not running here.
  ended_steps_ += static_cast<double>(summary.steps);
  ended_budgets_ += static_cast<double>(spec_.batches[batch].train_steps);
  batches_[batch]->ended(std::move(summary));
}

double StudyQueue::cost(size_t batch, int64_t steps) const {
  return static_cast<double>(spec_.batches[batch].batch_size + kStepOverheadSamples) * static_cast<double>(steps);
}

double StudyQueue::cost_left(size_t batch) const {
  const double used = ended_budgets_ > 0 ? ended_steps_ / ended_budgets_ : 1;
  return used * static_cast<double>(batches_[batch]->num_left()) * cost(batch, spec_.batches[batch].train_steps);
}

double StudyQueue::cost_left() const {
  double sum = 0;
  for (size_t i = 0; i < batches_.size(); ++i) sum += cost_left(i);
  return sum;
}

}  // namespace cohort::study
