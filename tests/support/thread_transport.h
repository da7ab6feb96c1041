#pragma once
// A transport between threads of one process, for tests of what lies above transports: simple, slow, and as strict as the contract.

#include <memory>

#include "cohort/comm/transport/transport.h"

namespace cohort {

/// What the ranks of one group share.
class ThreadHub;
std::shared_ptr<ThreadHub> make_thread_hub(int size, double timeout_seconds);

/// `own_thread`: what wants_own_thread() says, so that both ways of running calls can be tested.
std::unique_ptr<Transport> make_thread_transport(std::shared_ptr<ThreadHub> hub, int rank, bool own_thread);

}  // namespace cohort
