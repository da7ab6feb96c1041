#include "cohort/parallel/zero/use_predictor.h"

namespace cohort {

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
