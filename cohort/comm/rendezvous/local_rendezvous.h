#pragma once
// Shares a memory file between processes of one user on one host that have nothing but a launcher (mpirun, srun) in common: its descriptor
// is passed over a UNIX socket without a name in the file system.

#include <sys/socket.h>
#include <sys/un.h>

#include <functional>
#include <string>

#include "cohort/base/files/file.h"
#include "cohort/world/world.h"

namespace cohort {

/// Abstract address: a zero byte, then the name. Returns its length.
socklen_t fill_local_address(sockaddr_un& address, const std::string& name);
/// Sends a descriptor to other processes. The address is bound from construction on.
class DescriptorServer {
 public:
  /// Error(kEnvironment) when the socket cannot be made. `name` must be new: other processes of this host share the name space.
  explicit DescriptorServer(const std::string& name);
  /// Blocks until `num_receivers` processes of this user have received `fd`; other users are rejected. Returns how many came within
  /// `timeout_seconds`.
  int serve(int fd, int num_receivers, double timeout_seconds);

 private:
  UniqueDescriptor listener_;
};

/// The descriptor sent by the server of `name`; -1 where there is none, it belongs to another user, or does not answer within
/// `timeout_seconds`.
int receive_descriptor_from(const std::string& name, double timeout_seconds);

/// The descriptor of a memory file shared by all ranks of `world`, which must be on one host. Rank 0 creates it and sends it to the others
/// over a UNIX socket in the abstract name space, named by user and job; both sides check the user. Blocks until all ranks have it, at most
/// `timeout_seconds`; Error(kEnvironment) names the missing ranks. A process that connects without a greeting is rejected with a warning.
/// `look` is called repeatedly meanwhile, by rank 0 with the file, by the others with -1; an exception ends the wait.
int share_memory_file(const World& world, double timeout_seconds, const std::function<void(int fd)>& look = {});

}  // namespace cohort
