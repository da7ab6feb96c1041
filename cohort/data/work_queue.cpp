// The state is the next work item, the open ones with their workers, and the returned ones. Cost per work item: a look-up among the open
// ones, of which each worker has one or a few.
#include "cohort/data/work_queue.h"

#include <algorithm>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"

namespace cohort {
namespace {

int64_t whole_number(const Json& value, const std::string& where, int64_t least, int64_t most) {
  if (!value.is_number_integer() || value.get<int64_t>() < least || value.get<int64_t>() > most)
    fail(ErrorCode::kBadInput, where, ": work items: ", value.dump().substr(0, 40), " is not a whole number from ", least, " to ", most);
  return value.get<int64_t>();
}

const Json& list_of(const Json& state, const char* key, size_t columns, const std::string& where) {
  const auto found = state.is_object() ? state.find(key) : state.end();
  const bool is_list = state.is_object() && found != state.end() && found->is_array() &&
                       std::all_of(found->begin(), found->end(), [&](const Json& row) { return row.is_array() && row.size() == columns; });
  if (!is_list) fail(ErrorCode::kBadInput, where, ": work items: '", key, "' is not a list of rows of ", columns, " numbers");
  return *found;
}

constexpr int64_t kMostSteps = int64_t{1} << 50;
constexpr int kMostWorkers = 1 << 20;

}  // namespace

WorkQueue::WorkQueue(const WorkQueueOptions& options)
    : options_(options), sampler_(options.num_samples, options.global_batch, 0), next_step_(options.first_step) {
  share_of_rank(options.global_batch, 0, options.num_shares, options.granularity);  // Validates the options.
  samples_done_ = sampler_.samples_before(options.first_step);
}

WorkItem WorkQueue::single(int64_t step, int share) const {
  const int64_t batch = sampler_.batch_at(step);
  return {step, share, share_of_rank(batch, share, options_.num_shares, options_.granularity), batch};
}

WorkItem WorkQueue::item_at(int64_t step, int share) const {
  if (options_.steps == 1) return single(step, share);
  const int64_t end = std::min(step + options_.steps, std::max(options_.end_step, step + 1));
  WorkItem all{step, share, {0, 0}, 0};
  for (int64_t each = step; each < end; ++each) {
    const WorkItem one = single(each, share);
    all.positions.end += one.num_samples();
    all.global_samples += one.global_samples;
  }
  all.global_samples /= end - step;
  return all;
}

std::vector<WorkItem> WorkQueue::steps_of(int64_t step, int share) const {
  std::vector<WorkItem> items;
  for (int64_t each = step; each < std::min(step + options_.steps, std::max(options_.end_step, step + 1)); ++each)
    if (const WorkItem one = single(each, share); one.num_samples() > 0) items.push_back(one);
  return items;
}

/// Empty shares come last.
int WorkQueue::num_items_at(int64_t step) const {
  int number = 0;
  while (number < options_.num_shares && item_at(step, number).num_samples() > 0) ++number;
  return number;
}

void WorkQueue::advance() {
  ++next_share_;
  if (next_share_ < options_.num_shares && item_at(next_step_, next_share_).num_samples() > 0) return;
  next_share_ = 0;
  next_step_ = std::min(next_step_ + options_.steps, options_.end_step);
}

int64_t WorkQueue::first_unfinished_step() const {
  int64_t first = next_step_;
  if (!open_.empty()) first = std::min(first, open_.begin()->first.first);
  if (!returned_.empty()) first = std::min(first, returned_.begin()->first);
  return first;
}

int64_t WorkQueue::steps_done() const {
  const int64_t epochs = samples_done_ / options_.num_samples, rest = samples_done_ % options_.num_samples;
  return epochs * sampler_.steps_per_epoch() + rest / options_.global_batch;
}

bool WorkQueue::has_next(int64_t staleness_bound) const {
  if (returned_.empty() && next_step_ >= options_.end_step) return false;
  const int64_t step = returned_.empty() ? next_step_ : returned_.begin()->first;
  return staleness_bound < 0 || step - first_unfinished_step() <= staleness_bound;
}

std::optional<WorkItem> WorkQueue::take(int worker, int64_t staleness_bound) {
  if (!has_next(staleness_bound)) return std::nullopt;
  if (options_.own_shares) {
    if (returned_.empty())
      for (const int64_t step = next_step_; next_step_ == step; advance()) returned_.insert(next());
    if (const auto own = returned_.find({returned_.begin()->first, worker}); own != returned_.end()) {
      const Key key = *own;
      returned_.erase(own);
      open_[key] = worker;
      return item_at(key.first, key.second);
    }
  }
  const Key key = returned_.empty() ? next() : *returned_.begin();
  if (returned_.empty()) advance();
  else returned_.erase(returned_.begin());
  open_[key] = worker;
  return item_at(key.first, key.second);
}

void WorkQueue::finish(const WorkItem& item) {
  if (open_.erase({item.step, item.share}) == 0)
    fail(ErrorCode::kFailed, "share ", item.share, " of step ", item.step, " is finished, but it is not open");
  samples_done_ += item.num_samples();
}

void WorkQueue::give_back(const WorkItem& item) {
  if (open_.erase({item.step, item.share}) == 0)
    fail(ErrorCode::kFailed, "share ", item.share, " of step ", item.step, " is returned, but it is not open");
  returned_.insert({item.step, item.share});
}

int64_t WorkQueue::lose(int worker) {
  int64_t lost = 0;
  for (auto it = open_.begin(); it != open_.end();) {
    if (it->second != worker) {
      ++it;
      continue;
    }
    returned_.insert(it->first);
    it = open_.erase(it);
    ++lost;
  }
  return lost;
}

void WorkQueue::give_all_back() {
  for (const auto& [key, worker] : open_) returned_.insert(key);
  open_.clear();
}

Json WorkQueue::state() const {
  Json open = Json::array(), returned = Json::array();
  for (const auto& [key, worker] : open_) open.push_back({key.first, key.second, worker});
  for (const Key& key : returned_) returned.push_back({key.first, key.second});
  return Json{{"next_step", next_step_},
              {"next_share", next_share_},
              {"num_shares", options_.num_shares},
              {"samples_done", samples_done_},
              {"open", open},
              {"returned", returned}};
}

void WorkQueue::load(const Json& state, const std::string& where) {
  const Json& open = list_of(state, "open", 3, where);
  const Json& returned = list_of(state, "returned", 2, where);
  const auto number = [&](const char* key, int64_t least, int64_t most) {
    return whole_number(state.value(key, Json()), where, least, most);
  };
  number("num_shares", options_.num_shares, options_.num_shares);
  WorkQueue loaded(options_);
  loaded.next_step_ = number("next_step", 0, kMostSteps);
  loaded.next_share_ = static_cast<int>(number("next_share", 0, options_.num_shares - 1));
  const auto key_of = [&](const Json& row) {
    const Key key{whole_number(row[0], where, 0, loaded.next_step_),
                  static_cast<int>(whole_number(row[1], where, 0, options_.num_shares - 1))};
    if (key >= loaded.next() || key.second >= num_items_at(key.first) || loaded.open_.contains(key) || loaded.returned_.contains(key))
      fail(ErrorCode::kBadInput, where, ": work items: share ", key.second, " of step ", key.first, " was not issued, or is listed twice");
    return key;
  };
  for (const Json& row : open) {
    const Key key = key_of(row);
    loaded.open_[key] = static_cast<int>(whole_number(row[2], where, 0, kMostWorkers));
  }
  for (const Json& row : returned) loaded.returned_.insert(key_of(row));
  // Issued work items that are neither open nor returned are finished.
  int64_t samples = sampler_.samples_before(loaded.next_step_);
  for (int share = 0; share < loaded.next_share_; ++share) samples += item_at(loaded.next_step_, share).num_samples();
  for (const auto& [key, worker] : loaded.open_) samples -= item_at(key.first, key.second).num_samples();
  for (const Key& key : loaded.returned_) samples -= item_at(key.first, key.second).num_samples();
  loaded.samples_done_ = number("samples_done", samples, samples);
  *this = loaded;
}

}  // namespace cohort
