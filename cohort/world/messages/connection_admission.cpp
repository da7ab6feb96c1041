#include "cohort/world/messages/connection_admission.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/secrets.h"

namespace cohort {
namespace {

constexpr int kHandshakeFailures =
    ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
constexpr size_t kKeyBytes = 32;

std::string key_bytes(const std::string& text) {
  std::string bytes(kKeyBytes, '\0');
  if (!zmq_z85_decode(reinterpret_cast<uint8_t*>(bytes.data()), text.c_str())) fail(ErrorCode::kFailed, "invalid key");
  return bytes;
}

}  // namespace

ConnectionAdmission::ConnectionAdmission(const ZmqContext& context, const ZmqSocket& router, const std::string& client_public_key,
                                         size_t max_unauthenticated)
    : requests_(context, ZMQ_REP),
      monitor_(context, router, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | kHandshakeFailures),
      key_(key_bytes(client_public_key)),
      max_unauthenticated_(max_unauthenticated) {
  requests_.set(ZMQ_LINGER, 0);
  requests_.bind("inproc://zeromq.zap.01");
}

void ConnectionAdmission::bind(ZmqSocket& router, MessageListener listener) {
  const int descriptor = ::fcntl(listener.descriptor(), F_DUPFD_CLOEXEC, 0);  // libzmq closes the descriptor that it is given.
  if (descriptor < 0) fail(ErrorCode::kEnvironment, "cannot listen at ", listener.endpoint(), ": ", std::strerror(errno));
  router.set(ZMQ_USE_FD, descriptor);
  const std::string resolved = resolved_endpoints(listener.endpoint()).front();
  is_local_ = resolved.starts_with("ipc:");
  if (is_local_) router.set(ZMQ_IPC_FILTER_UID, static_cast<int>(::geteuid()));  // Rejects other users of this machine.
  router.bind(resolved);
  listening_ = UniqueDescriptor(::fcntl(listener.descriptor(), F_DUPFD_CLOEXEC, 0));
}

/// A request is version, number, domain, address, routing id, mechanism and the client's public key; libzmq has already verified that the
/// client has the secret key.
void ConnectionAdmission::answer_requests() {
  for (;;) {
    std::vector<std::string> parts;
    for (bool more = true; more;) {
      ZmqPart part;
      if (!requests_.receive(part)) return;  // Parts arrive together.
      parts.emplace_back(part.bytes());
      more = part.has_more();
    }
    const bool is_known = parts.size() == 7 && parts[0] == "1.0" && parts[5] == "CURVE" && equal_secrets(parts[6], key_);
    const std::string number = parts.size() > 1 ? parts[1] : "";
    const std::vector<std::string> answer = {"1.0", number, is_known ? "200" : "400", is_known ? "OK" : "another secret", "", ""};
    for (size_t i = 0; i < answer.size(); ++i) {
      ZmqPart part{std::string_view(answer[i])};
      requests_.send(part, i + 1 < answer.size());
    }
  }
}

void ConnectionAdmission::process_events(const std::function<void(int)>& on_closed) {
  answer_requests();
  while (const auto event = monitor_.next()) {
    if ((event->kind & kHandshakeFailures) != 0) {
      ++num_refused_;
    } else if (event->kind == ZMQ_EVENT_ACCEPTED) {
      // A descriptor number is reused only after it was closed.
      if (!open_.insert(event->value).second) on_closed(event->value);
    } else if (event->kind == ZMQ_EVENT_DISCONNECTED) {
      if (open_.erase(event->value) > 0) on_closed(event->value);
    }
  }
}

/// libzmq accepts every connection, and closes all of them when it stops listening. So the kernel is told to drop packets of new clients,
/// whose TCP retries by itself.
void ConnectionAdmission::limit_unauthenticated(size_t num_peers) {
  const size_t unauthenticated = open_.size() > num_peers ? open_.size() - num_peers : 0;
  if (is_local_ || (is_paused_ ? unauthenticated > max_unauthenticated_ / 2 : unauthenticated < max_unauthenticated_)) return;
  is_paused_ = !is_paused_;
  sock_filter drop_all[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
  const sock_fprog program{1, drop_all};
  const int nothing = 0;
  if (is_paused_) ::setsockopt(listening_.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
  else ::setsockopt(listening_.get(), SOL_SOCKET, SO_DETACH_FILTER, &nothing, sizeof nothing);
}

}  // namespace cohort
