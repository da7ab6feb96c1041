#pragma once
// What all ranks of a host find wrong alike is printed by one of them. Torch-free.

#include <string>

#include "cohort/base/export.h"
#include "cohort/world/world.h"

namespace cohort {

/// Prints the error, in a job of a launcher once a host: its first rank prints, another one keeps quiet where that has printed the same,
/// or does within 1.5 seconds. Errors that differ are all printed. Call it right before the process ends: the first rank stays for a
/// second, so that slower ones find it.
void log_error_once(const World& world, const std::string& text);

}  // namespace cohort
