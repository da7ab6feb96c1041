#pragma once
// Rank and size of this process, from the environment of its launcher. Torch-free.

#include <string>

#include "cohort/base/export.h"

namespace cohort {

struct World {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string launcher = "none";  ///< none, cohort, torchrun, openmpi, mpich, slurm.
  std::string host;               ///< This machine's name.
  int store_fd = -1;              ///< Inherited memory file for the rendezvous of Cohort's own launcher; no port is opened.
  int status_fd = -1;             ///< Shared page for each rank's progress (status.h).
  std::string master_address;     ///< With other launchers: where rank 0 listens, "" if not given.
  int master_port = 0;
  bool agent_store = false;  ///< torchrun's agent itself listens there.
  std::string job_id;        ///< The launcher's id of the job, equal on all ranks; may be "".
};

/// Reads, in this order: Cohort's own variables, torchrun's (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT),
/// Open MPI's (OMPI_COMM_WORLD_*), MPICH's (PMI_RANK, PMI_SIZE, MPI_LOCALRANKID), Slurm's (SLURM_PROCID, SLURM_STEP_ID, ...; only in a step
/// with more than one task). Without a launcher: one rank. Error(kEnvironment) naming a variable that is missing or not a number.
COHORT_API World world_from_environment();

/// Number of compute threads for this rank: its share of the usable cores of its host.
COHORT_API int cores_of_rank(const World& world);

/// "Open MPI: 2 ranks" and so on, for `doctor`.
COHORT_API std::string describe(const World& world);

}  // namespace cohort
