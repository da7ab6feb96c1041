#include "cohort/trained/threads.h"

#include <ATen/Parallel.h>

#include "cohort/base/cores.h"

namespace cohort {

void use_threads(int threads) { at::set_num_threads(threads > 0 ? threads : num_usable_cores()); }

}  // namespace cohort
