#include "cohort/comm/device_exchange.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/call_lane.h"

namespace cohort {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kHasOne = '+', kHasNone = '-';  // First byte of an offer, before the identity or the reason.

/// Gathers the ranks' signatures of one call over the control plane.
class SignatureGather : public Task {
 public:
  SignatureGather(std::shared_ptr<CallLane> lane, const Call& call, int size, std::string name)
      : lane_(std::move(lane)), name_(std::move(name)), mine_(signature_of(call)), all_(static_cast<size_t>(size)) {
    call_.op = Op::kAllGather;
    call_.type = at::kByte;
    call_.input = &mine_;
    call_.output = all_.data();
    call_.count = sizeof mine_;
    call_.name = name_.c_str();
  }
  ~SignatureGather() override {
    if (added_) lane_->end_with_memory(*this);
  }

  void start() {
    added_ = true;
    lane_->add(*this);
  }
  /// Throws where a rank is missing or makes a different call.
  void wait(const std::string& group) {
    lane_->wait(*this);
    if (error()) std::rethrow_exception(error());
    check_signatures(all_.data(), static_cast<int>(all_.size()), group.c_str());
  }

 private:
  std::shared_ptr<CallLane> lane_;
  std::string name_;
  Signature mine_;
  std::vector<Signature> all_;
  bool added_ = false;
};

c10d::ReduceOp reduce_op(Reduction reduction) {
  using c10d::ReduceOp;
  static constexpr ReduceOp::RedOpType kOps[] = {ReduceOp::SUM, ReduceOp::AVG,  ReduceOp::PRODUCT, ReduceOp::MIN,
                                                 ReduceOp::MAX, ReduceOp::BAND, ReduceOp::BOR,     ReduceOp::BXOR};
  return kOps[static_cast<size_t>(reduction)];
}

}  // namespace

std::string device_offer(const DeviceLink& link) { return link.why_not.empty() ? kHasOne + link.identity : kHasNone + link.why_not; }

std::string why_no_device_exchange(const std::vector<std::string>& offers, const std::string& backend) {
  for (size_t rank = 0; rank < offers.size(); ++rank)
    if (offers[rank].empty() || offers[rank].front() != kHasOne)
      return concat("rank ", rank, ": ", offers[rank].size() > 1 ? offers[rank].substr(1) : "it has no device");
  for (size_t rank = 1; rank < offers.size(); ++rank) {
    const auto same = std::find(offers.begin(), offers.begin() + static_cast<std::ptrdiff_t>(rank), offers[rank]);
    if (same != offers.begin() + static_cast<std::ptrdiff_t>(rank))
      return concat("ranks ", same - offers.begin(), " and ", rank, " share one device (", offers[rank].substr(1), "), which ", backend,
                    name_settings(" refuses; start one rank for each, or use --backend gloo, over which ranks may share one"));
  }
  return "";
}

/// An exchange under way.
class DeviceCall : public Pending {
 public:
  DeviceCall(std::shared_ptr<DeviceExchange> exchange, const Call& call, at::Tensor output, at::Tensor input, std::string what)
      : exchange_(std::move(exchange)),
        call_(call),
        what_(std::move(what)),
        output_(std::move(output)),
        input_(std::move(input)),
        text_(concat(name_of(call_.op), " #", call_.sequence, " over ", exchange_->name(), " of ", what_, " (", call_.count, " ",
                     c10::toString(call_.type), ")")) {
    call_.name = what_.c_str();
  }
  ~DeviceCall() override {
    if (ended_) return;
    if (std::uncaught_exceptions() == 0) {
      try {
        wait();
        return;
      } catch (const std::exception&) {
      }
    }
    // An exception is in flight or the exchange failed: peers may never come, and the tensors are about to be freed.
    exchange_->end_group(concat("the group was ended while ", text_, " was under way"));
  }

  void start() {
    const auto& control = exchange_->control_;
    signatures_ = std::make_unique<SignatureGather>(control, call_, exchange_->backend_->getSize(),
                                                    concat(what_, ", before its ", name_of(call_.op), " over ", exchange_->name()));
    signatures_->start();
    if (!exchange_->connected_) check_signatures_of_all();
    try {
      if (call_.count > 0) work_ = exchange_->launch(call_, output_, input_);
    } catch (const std::exception& error) {
      ended_ = true;
      exchange_->fail_group(text_, "it could not be started", error.what());
    }
    exchange_->connected_ = true;
  }

  void wait() override {
    if (ended_) return;
    if (!exchange_->failure_.empty()) {
      ended_ = true;
      fail(ErrorCode::kEnvironment, exchange_->failure_);
    }
    check_signatures_of_all();
    ended_ = true;
    if (work_) exchange_->await(*work_, text_);
  }

 private:
  void check_signatures_of_all() {
    if (checked_) return;
    checked_ = true;
    try {
      signatures_->wait(exchange_->options_.group);
    } catch (const std::exception& error) {
      ended_ = true;
      exchange_->end_group(first_line(error.what()));
      throw;
    }
  }

  std::shared_ptr<DeviceExchange> exchange_;
  Call call_;
  std::string what_;
  at::Tensor output_, input_;
  std::string text_;
  std::unique_ptr<SignatureGather> signatures_;
  c10::intrusive_ptr<c10d::Work> work_;
  bool checked_ = false, ended_ = false;
};

DeviceExchange::DeviceExchange(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<CallLane> control, Options options)
    : backend_(std::move(backend)), control_(std::move(control)), options_(std::move(options)) {}

DeviceExchange::~DeviceExchange() {
  try {
    // While an exception is in flight, peers may be inside a call that this rank never makes.
    if (failure_.empty() && std::uncaught_exceptions() == 0) backend_->shutdown();
    else backend_->abort();
  } catch (const std::exception&) {
  }
}

std::unique_ptr<Pending> DeviceExchange::start(Op op, at::Tensor output, at::Tensor input, std::string what, Reduction reduction,
                                               int root) {
  if (!input.is_contiguous() || !output.is_contiguous())
    fail(ErrorCode::kBadInput, name_of(op), " of ", what, ": a contiguous tensor is wanted");
  if (!failure_.empty()) fail(ErrorCode::kEnvironment, "the ", name_of(op), " of ", what, " cannot start: ", failure_);
  Call call;
  call.op = op;
  call.reduction = reduction;
  call.type = input.scalar_type();
  call.root = root;
  call.count = static_cast<size_t>(op == Op::kReduceScatter ? output.numel() : input.numel());
  call.sequence = ++num_calls_;
  auto pending = std::make_unique<DeviceCall>(shared_from_this(), call, std::move(output), std::move(input), std::move(what));
  pending->start();
  return pending;
}

c10::intrusive_ptr<c10d::Work> DeviceExchange::launch(const Call& call, at::Tensor output, at::Tensor input) {
  const c10::AutoGradMode no_gradients(false);
  std::vector<at::Tensor> tensors{output};
  if (call.op == Op::kAllReduce) {
    c10d::AllreduceOptions options;
    options.reduceOp = reduce_op(call.reduction);
    return backend_->allreduce(tensors, options);
  }
  if (call.op == Op::kBroadcast) {
    c10d::BroadcastOptions options;
    options.rootRank = call.root;
    return backend_->broadcast(tensors, options);
  }
  if (call.op == Op::kReduceScatter) return backend_->_reduce_scatter_base(output, input);
  if (call.op == Op::kAllGather) return backend_->_allgather_base(output, input);
  fail(ErrorCode::kBadInput, name_of(call.op), " is not built for tensors on a device");
}

void DeviceExchange::await(c10d::Work& work, const std::string& call) {
  constexpr std::chrono::microseconds kSpin(1000), kNap(50), kLook(200'000);
  const auto began = Clock::now();
  AwakeTimer waited(began);
  auto next_look = began + kLook;
  std::string ended;  // Peers found ended at the last poll; one may end right after it has completed.
  try {
    while (!work.isCompleted()) {
      const auto now = Clock::now();
      if (waited.seconds(now) > options_.timeout_seconds)
        fail_group(call, concat("all ranks started it, and it did not end within ", options_.timeout_seconds, " s"), "");
      if (now > next_look) {
        if (!ended.empty()) fail_group(call, ended, "");
        ended = ended_peers();
        next_look = now + (ended.empty() ? kLook : 5 * kLook);
      }
      if (now - began < kSpin) std::this_thread::yield();
      else std::this_thread::sleep_for(kNap);
    }
    work.wait();  // For its error, and to order this thread's stream after it.
  } catch (const Error&) {
    if (!failure_.empty()) throw;  // Ours.
    end_group(concat("the ", call, " failed"));
    throw;
  } catch (const std::exception& error) {
    const std::string missing = ended_peers();
    fail_group(call, missing.empty() ? concat(options_.backend, " gave it up") : missing, error.what());
  }
}

std::string DeviceExchange::ended_peers() const {
  std::vector<std::string> ended;
  for (int peer = 0; peer < options_.peers.size(); ++peer)
    if (options_.peers.state_of(peer, backend_->getRank()) == "has ended") ended.push_back(options_.peers.name_of(peer) + " has ended");
  return join(ended, ", ");
}

void DeviceExchange::fail_group(const std::string& call, const std::string& reason, const std::string& text) {
  const std::string message = concat("the ", call, " failed on rank ", backend_->getRank(), " of ", backend_->getSize(),
                                     options_.group == "world" ? "" : " of group " + options_.group, ": ", reason,
                                     text.empty() ? "" : " [" + first_line(text) + "]");
  end_group(message);
  fail(ErrorCode::kEnvironment, message);
}

void DeviceExchange::end_group(const std::string& why) {
  if (!failure_.empty()) return;
  failure_ = why;
  try {
    backend_->abort();
  } catch (const std::exception&) {
  }
  control_->close();
}

}  // namespace cohort
