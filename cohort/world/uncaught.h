#pragma once
// An Error that nobody catches, in a program of the user's own. Torch-free.

#include "cohort/world/world.h"

namespace cohort {

/// From now on an Error that leaves main() or a thread ends this process as it would end our own program: one line, "cohort: error: TEXT",
/// and the Error's exit code. Under `cohort launch` the launcher prints the line, with the rank in it. Of other exceptions the terminate
/// handler that was set before takes care. world_from_environment() and Group::create() call this; again: `world` is who we are now.
void end_uncaught_errors_well(const World& world);

}  // namespace cohort
