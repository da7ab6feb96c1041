#pragma once
// The calls of one group under way. For group.cpp and device_exchange.cpp alone.

#include <ATen/core/Tensor.h>

#include <exception>
#include <memory>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/comm/call_lane.h"
#include "cohort/comm/group.h"

namespace cohort {

inline void check_memory(const char* operation, const at::Tensor& tensor, const std::string& what) {
  if (!tensor.device().is_cpu() || !tensor.is_contiguous())
    fail(ErrorCode::kBadInput, operation, " of ", what, ": a contiguous CPU tensor is wanted, not one on ", tensor.device().str(),
         tensor.is_contiguous() ? "" : " with gaps");
}

/// The call over one or two tensors; `name` must outlive it.
inline Call call_of(Op op, const at::Tensor& output, const at::Tensor& input, const std::string& name) {
  check_memory(name_of(op), input, name);
  if (!output.is_same(input)) check_memory(name_of(op), output, name);
  Call call;
  call.op = op;
  call.type = input.scalar_type();
  call.input = input.data_ptr();
  call.output = output.data_ptr();
  call.count = static_cast<size_t>(input.numel());
  call.name = name.c_str();
  return call;
}

/// Before the memory of a call goes away: it ends, or all of the group does. While an exception passes, the others may never come.
inline void end_with_memory(CallLane& lane, Task& task) {
  if (task.has_ended()) return;
  if (std::uncaught_exceptions() == 0) {
    try {
      lane.wait(task);
      return;
    } catch (const std::exception&) {
    }
  }
  lane.close();
}

/// An exchange under way.
class PendingCall : public Pending, public Task {
 public:
  PendingCall(std::shared_ptr<CallLane> lane, std::string what, at::Tensor output, at::Tensor input)
      : lane_(std::move(lane)), what_(std::move(what)), output_(std::move(output)), input_(std::move(input)) {}
  ~PendingCall() override { end_with_memory(*lane_, *this); }

  /// Starts the call; count and reduction may have been changed before.
  void start(Op op, size_t count) {
    call_ = call_of(op, output_, input_, what_);
    call_.count = count;
    lane_->add(*this);
  }
  void wait() override {
    lane_->wait(*this);
    if (error()) std::rethrow_exception(error());
  }

 private:
  std::shared_ptr<CallLane> lane_;
  std::string what_;
  at::Tensor output_, input_;
};

class NothingPending : public Pending {
 public:
  void wait() override {}
};

/// A message that its caller waits for.
class BlockingMessage : public Task {
 public:
  BlockingMessage(CallRecord::Kind kind, const at::Tensor& tensor, int peer, int tag, const std::string& what)
      : tag_(tag), data_(tensor.data_ptr()) {
    kind_ = kind;
    call_.root = peer;
    call_.count = tensor.nbytes();
    call_.handle = static_cast<uint64_t>(tag);
    call_.name = what.c_str();
  }
  int source() const { return source_; }

 private:
  std::shared_ptr<Message> post(Transport& transport) override {
    return kind_ == CallRecord::Kind::kSend ? transport.send(data_, call_.count, call_.root, tag_)
                                            : transport.receive(data_, call_.count, call_.root, tag_);
  }
  int tag_;
  void* data_;
};

}  // namespace cohort
