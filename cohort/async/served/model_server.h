#pragma once
// The parameter server of an asynchronous training: hands out work items and versions, and applies pushes in the order of their arrival.
// Workers may join, leave, be lost and reconnect at any time. model_server.cpp has the protocol.

#include <functional>
#include <memory>
#include <string>

#include "cohort/async/async_training.h"
#include "cohort/world/messages/message_server.h"

namespace cohort {

/// An applied push with its wall-clock seconds.
struct ServedPush : AppliedPush {
  double push_seconds = 0, computing_seconds = 0;
};

struct ModelServerOptions {
  std::function<void(const ServedPush&)> applied;  ///< Called after each push.
  std::string configuration;                       ///< Workers must have been started with the same.
  std::string fingerprint;                         ///< Of the data, for processes that join; "": none may.
  int num_workers = 1;
  std::function<bool(int worker)> may_connect;  ///< True if a worker that has not connected may still do so.
};

/// One thread at a time.
class ModelServer {
 public:
  virtual ~ModelServer() = default;
  /// Handles the next event, waiting at most `timeout_seconds`. Error(kFailed) if a worker reports that the training itself failed, such as
  /// by a loss that is not finite; a worker that fails otherwise is lost.
  virtual void poll(double timeout_seconds) = 0;
  /// Tells all workers that the training has ended, and why ("" if completed); waits a while until they have left.
  virtual void end(const std::string& why) = 0;
  /// While paused, hands out no work; workers that wait get theirs afterwards.
  virtual void pause(bool on) = 0;
};

/// `training` must outlive it.
std::unique_ptr<ModelServer> make_model_server(AsyncTraining& training, ModelServerOptions options, MessageServer server);

}  // namespace cohort
