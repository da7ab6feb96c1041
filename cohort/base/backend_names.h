#pragma once

#include <string>
#include <vector>

namespace cohort {

/// What --backend takes wherever tensors lie in host memory.
inline const std::vector<std::string> kBackendNames = {"auto", "shm", "gloo", "mpi", "shm+gloo", "shm+mpi"};

}  // namespace cohort
