#pragma once
// Processes of one user on one host that share nothing but a launcher (mpirun, srun): an open file goes from one to another over a UNIX
// socket without a name in the file system, and so they get one memory file to meet over.

#include <sys/socket.h>
#include <sys/un.h>

#include <functional>
#include <string>

#include "cohort/base/files/file.h"
#include "cohort/world/world.h"

namespace cohort {

/// Abstract address: a zero byte, then the name. Returns the address' length.
socklen_t fill_local_address(sockaddr_un& address, const std::string& name);
/// Hands `fd` to `num_receivers` processes. The address is free from construction on, so that receivers may be told of it.
class DescriptorServer {
 public:
  /// Error(kEnvironment) when the socket cannot be made. `name` must be new: other processes of this host share the name space.
  explicit DescriptorServer(const std::string& name);
  /// Blocks until that number of processes of this user have it; processes of other users are turned away. Returns how many came within
  /// `timeout_seconds`.
  int serve(int fd, int num_receivers, double timeout_seconds);

 private:
  UniqueDescriptor listener_;
};

/// The descriptor that the server of `name` hands out; -1 when there is none, when it belongs to another user, or when it says nothing for
/// `timeout_seconds`.
int receive_descriptor_from(const std::string& name, double timeout_seconds);

/// The descriptor of a memory file that all ranks of `world` share. Rank 0 makes it and hands it to every other rank over a UNIX socket in
/// the abstract name space (no file), named by user and job; both sides check that the other runs under the same user. Blocks until all
/// have it, at most `timeout_seconds`; Error(kEnvironment) says which ranks did not come. A process that connects and says nothing holds up
/// nobody: it is turned away with a warning. Only for worlds on one host. `look` is called again and again meanwhile, by rank 0 with the
/// file, by the others with -1; what it throws ends the wait.
int share_memory_file(const World& world, double timeout_seconds, const std::function<void(int fd)>& look = {});

}  // namespace cohort
