#pragma once
// Compute threads of a process that uses a trained model.

namespace cohort {

/// Of LibTorch; 0: one a core that may be used.
void use_threads(int threads);

}  // namespace cohort
