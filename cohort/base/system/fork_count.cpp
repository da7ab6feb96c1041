#include "cohort/base/system/fork_count.h"

#include <pthread.h>

namespace cohort {
namespace {

int num_forks = 0;

}  // namespace

int fork_count() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { ++num_forks; });
  (void)registered;
  return num_forks;
}

}  // namespace cohort
