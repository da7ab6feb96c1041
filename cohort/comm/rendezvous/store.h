#pragma once
// How ranks meet: the key-value store of a job, and over it the address of the server (world/messages/), rank 0.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <optional>
#include <string>

#include "cohort/base/export.h"
#include "cohort/world/messages/message_listener.h"
#include "cohort/world/world.h"

namespace cohort {

/// The store of this job. Which one follows from the launcher:
///  * one rank: a store in memory;
///  * ranks that Cohort started: a c10d::FileStore over the inherited memory file. No port, no name, and nobody without the descriptor can
///  join;
///  * MASTER_ADDR and MASTER_PORT given (torchrun, or set by the user): c10d::TCPStore. Where rank 0 hosts it, it listens on MASTER_ADDR
///  only
///    (TCPStore by itself would listen on every address). Ranks with a token (world/job_token.h) use it sealed (guarded_store.h); ranks on
///    several hosts must have one;
///  * mpirun or srun on one host without MASTER_ADDR: rank 0 hands a memory file to the others over a UNIX socket that checks the user.
/// Blocks until the store answers; Error(kEnvironment) naming the address after `timeout_seconds`, Error(kInterrupted) after a stop signal,
/// or the error of a rank that failed to start. Its waits fail alike.
COHORT_PROGRAM_API c10::intrusive_ptr<c10d::Store> make_store(const World& world, double timeout_seconds);

/// A prefix of the job's store for the next group of all its ranks. The store is created by the first call and kept until the process ends,
/// since rank 0 may host it for ranks that still read it. The n-th call of every rank gets the same prefix, so all ranks call this equally
/// often.
c10::intrusive_ptr<c10d::Store> next_group_store(const World& world, double timeout_seconds);

struct ServerAddress {
  std::optional<MessageListener> listener;  ///< On rank 0 only.
  std::string endpoint, secret;
};

/// For a listener that all ranks know already, or that serves this process only.
ServerAddress local_server_address(MessageListener listener);
/// Rank 0 listens and publishes its address in the store under `key`, with the secret where the job has none of its own (job_token.h),
/// since all ranks are then on one host. No port is opened where Cohort forked the ranks, or for one rank. `own` (on rank 0; may be none):
/// a listener with the job's own secret that other processes find as well. Error(kEnvironment) where rank 0 publishes nothing in time.
ServerAddress share_server_address(const World& world, c10d::Store& store, const std::string& key, double timeout_seconds,
                                   std::optional<MessageListener> own = std::nullopt);

}  // namespace cohort
