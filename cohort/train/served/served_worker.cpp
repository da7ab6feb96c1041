// One ticket at a time: weights and buffers come with the order, the gradient and the buffers that forward left go back, and the next order
// is asked for once they are handed over. Nothing is kept from one ticket to the next, so a worker may die, or come back, at any time.
//
// Cost of a ticket: two messages with the model's bytes and two small ones.
#include "cohort/train/served/served_worker.h"

#include <signal.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/train/async/packed_tensors.h"
#include "cohort/train/served/served_words.h"

namespace cohort {
namespace {

std::vector<at::Tensor> own_tensors(const ServedModel& model) {
  std::vector<at::Tensor> out = model.weights;
  for (const NamedTensor& buffer : model.buffers) out.push_back(buffer.tensor.detach());
  return out;
}

}  // namespace

ServedWorker::ServedWorker(const torch::nn::Module& model, TicketSource source, MessageClient link, ServedWorkerOptions options)
    : tensors_(model), source_(std::move(source)), link_(std::move(link)), options_(std::move(options)), pulled_(own_tensors(tensors_)) {}

void ServedWorker::come_in(double timeout_seconds) {
  link_.connect(timeout_seconds);
  link_.send({.text = Json{{"is", "here"}, {"worker", options_.worker}, {"configuration", options_.hello}}.dump()});
  ask();
}

void ServedWorker::ask() {
  link_.send({.text = Json{{"is", "free"}}.dump()});
  waits_since_ = steady_seconds();
}

std::string ServedWorker::run() {
  come_in(options_.timeout_seconds);
  for (;;) {
    try {
      if (const std::optional<std::string> end = obey()) return *end;
    } catch (const LostServer&) {
      if (const std::optional<std::string> end = last_word()) return *end;
      come_in(kComeBackSeconds);
    } catch (const std::exception& error) {
      const auto* own = dynamic_cast<const Error*>(&error);
      tell_failure(static_cast<int>(own ? own->code() : ErrorCode::kFailed), first_line(error.what()));
      throw;
    }
  }
}

/// A training may have come to its end while this worker computed: what the server said before it left can still be read.
std::optional<std::string> ServedWorker::last_word() {
  try {
    while (const std::optional<PeerMessage> message = link_.receive(0)) {
      const Json json = parse_strict_ordered_json(message->text, {.path = link_.server_name()});
      if (json.value("do", "") == "end") return json.at("error").get<std::string>();
    }
  } catch (const Error&) {
    // Nothing was said.
  }
  return std::nullopt;
}

/// Of the connection alone: what fails elsewhere is no reason to come in again.
template <typename Talk>
auto ServedWorker::over_link(const Talk& talk) {
  try {
    return talk();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kEnvironment || link_.was_dismissed()) throw;
    throw LostServer();
  }
}

std::optional<std::string> ServedWorker::obey() {
  if (options_.between_tickets) options_.between_tickets();
  const std::optional<PeerMessage> message = over_link([&] { return link_.receive(kLookSeconds); });
  if (!message) return std::nullopt;
  const Json json = parse_strict_ordered_json(message->text, {.path = link_.server_name()});
  const std::string what = json.value("do", "");
  if (what == "end") return json.at("error").get<std::string>();
  if (what != "work") fail(ErrorCode::kFailed, link_.server_name(), " said ", quote_text(what), ", which is not understood");
  work(work_order_from(json, link_.server_name()), message->data);
  return std::nullopt;
}

void ServedWorker::work(const WorkOrder& order, const std::string& data) {
  WorkDone done{.step = order.step, .share = order.share, .waiting_seconds = steady_seconds() - waits_since_};
  const double came = steady_seconds();
  unpack(data, pulled_);
  if (num_pushes_ == 0 && options_.injection.pause_seconds > 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.injection.pause_seconds));
  if (num_pushes_ == options_.injection.kill_step) ::raise(SIGKILL);
  const double began = steady_seconds();
  const TicketResult result = source_(order);
  const double computing = steady_seconds() - began;
  if (options_.injection.slow_factor > 1)
    std::this_thread::sleep_for(std::chrono::duration<double>(computing * (options_.injection.slow_factor - 1)));
  const double computed = steady_seconds();
  done.computing_seconds = computed - began;
  done.loss = result.loss;
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < result.gradients.size(); ++i) {
    if (result.gradients[i].defined()) tensors.push_back(result.gradients[i]);
    else done.missing.push_back(i);
  }
  tensors.insert(tensors.end(), result.buffers.begin(), result.buffers.end());
  std::string bytes = packed_text(tensors);
  done.moving_seconds = began - came + steady_seconds() - computed;
  over_link([&] { link_.send({.text = to_json(done).dump(), .data = std::move(bytes)}, options_.timeout_seconds); });
  ++num_pushes_;
  if (options_.pushed) options_.pushed(order.step + 1);
  if (options_.between_tickets) options_.between_tickets();  // Before weights are asked for, which would grow old meanwhile.
  over_link([&] { ask(); });
}

void ServedWorker::tell_failure(int code, const std::string& text) {
  try {
    link_.send({.text = Json{{"is", "failed"}, {"code", code}, {"error", text}}.dump(-1, ' ', true, Json::error_handler_t::replace)});
  } catch (const Error&) {
    // The server is gone, which may be what is being told.
  }
}

}  // namespace cohort
