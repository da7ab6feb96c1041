#include "cohort/parallel/backward_watch.h"

#include <torch/csrc/autograd/engine.h>

#include <atomic>
#include <utility>

namespace cohort {

struct BackwardWatch::Record {
  std::function<void()> at_end;
  std::atomic<bool> in_backward{false}, failed{false};
};

/// Ends with the engine's record of one backward().
struct BackwardWatch::Token {
  std::shared_ptr<Record> record;
  bool returned = false;

  explicit Token(std::shared_ptr<Record> record) : record(std::move(record)) {}
  ~Token() {
    if (returned) return;
    record->failed = true;
    record->in_backward = false;
  }
};

BackwardWatch::BackwardWatch(std::function<void()> at_end) : record_(std::make_shared<Record>()) { record_->at_end = std::move(at_end); }
BackwardWatch::~BackwardWatch() { record_->at_end = nullptr; }

bool BackwardWatch::enter() {
  if (record_->in_backward.exchange(true)) return false;
  auto token = std::make_shared<Token>(record_);
  torch::autograd::Engine::get_default_engine().queue_callback([token] {
    token->returned = true;
    token->record->in_backward = false;
    if (token->record->at_end) token->record->at_end();
  });
  return true;
}

bool BackwardWatch::has_failed() const { return record_->failed; }
void BackwardWatch::clear() { record_->failed = false; }

}  // namespace cohort
