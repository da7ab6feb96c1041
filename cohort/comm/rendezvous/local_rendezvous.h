#pragma once
// Ranks on one host that share nothing but a launcher (mpirun, srun) get one memory file to meet over.

#include <functional>
#include <string>

#include "cohort/world/world.h"

namespace cohort {

/// The descriptor of a memory file that all ranks of `world` share. Rank 0 makes it and hands it to every other rank over a UNIX socket in
/// the abstract name space (no file), named by user and job; both sides check that the other runs under the same user. Blocks until all
/// have it, at most `timeout_seconds`; Error(kEnvironment) says which ranks did not come. A process that connects and says nothing holds up
/// nobody: it is turned away with a warning. Only for worlds on one host. `look` is called again and again meanwhile, by rank 0 with the
/// file, by the others with -1; what it throws ends the wait.
int share_memory_file(const World& world, double timeout_seconds, const std::function<void(int fd)>& look = {});

}  // namespace cohort
