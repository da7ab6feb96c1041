#pragma once
// What all ranks of a host find wrong alike is printed by one of them. Torch-free.

#include <functional>
#include <string>

#include "cohort/base/export.h"
#include "cohort/world/world.h"

namespace cohort {

/// Calls `print`, which prints `text`, in a job of a launcher once a host: its first rank prints, another one keeps quiet where that has
/// printed the same, or does within 1.5 seconds. Texts that differ are all printed. Call it right before the process ends: the first rank
/// stays for a second, so that slower ones find it.
void print_once(const World& world, const std::string& text, const std::function<void()>& print);

}  // namespace cohort
