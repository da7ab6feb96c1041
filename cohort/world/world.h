#pragma once
// Who this process is, read once from the environment of whatever launched it. Torch-free.

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
  int store_fd = -1;              ///< Ranks that Cohort started itself meet over this inherited memory file; no port is opened.
  int status_fd = -1;             ///< Shared page in which the launcher reads each rank's progress (status.h).
  std::string master_address;     ///< Otherwise: where rank 0 listens, or "" when the launcher gave none,
  int master_port = 0;
  bool agent_store = false;  ///< and whether the launcher itself (torchrun's agent) listens there.
  std::string job_id;        ///< The launcher's own name of the job, the same on all ranks; may be "".
};

/// Reads, in this order: Cohort's own variables, torchrun's (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT),
/// Open MPI's (OMPI_COMM_WORLD_*), MPICH's (PMI_RANK, PMI_SIZE, MPI_LOCALRANKID), Slurm's (SLURM_PROCID, SLURM_STEP_ID, ...; only in a step
/// of srun's with more than one task). None: one rank. A variable that is missing or not a number: Error(kEnvironment) that names it.
COHORT_API World world_from_environment();

/// How many threads this rank computes with so that its host's ranks do not crowd each other out: its part of the cores that may be used.
COHORT_API int cores_of_rank(const World& world);

/// "Open MPI: 2 ranks" and so on, for `doctor`.
COHORT_API std::string describe(const World& world);

}  // namespace cohort
