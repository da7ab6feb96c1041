#pragma once
// A process that ends by itself: exceptions that nobody catches in a program of the user's own, exit() in the middle of ours, and what all
// ranks of a host find wrong alike, which one of them prints. Torch-free.

#include <exception>
#include <functional>
#include <string>

#include "cohort/base/export.h"
#include "cohort/world/world.h"

namespace cohort {

/// From now on an exception that leaves main() or a thread ends this process as it would end our own program: one line, "cohort: error:
/// TEXT", and the exit code of an Error, 1 for any other std::exception (LibTorch's c10::Error too). Under `cohort launch` the launcher
/// prints the line, with the rank in it. A terminate handler that the program set before takes care of all but Errors, and LibTorch's own
/// of what is no std::exception. world_from_environment() and Group::create() call this; again: `world` is who we are now.
void end_uncaught_errors_well(const World& world);

/// Ends this process as an error does, though other threads still run.
[[noreturn]] void end_process(int code, const std::string& text);

/// While one lives, a call of exit() in this process ends it as an error does, with code 1: whoever started us would take code 0 for work
/// that is done.
class UnfinishedWork {
 public:
  UnfinishedWork();
  ~UnfinishedWork();
  UnfinishedWork(const UnfinishedWork&) = delete;
  UnfinishedWork& operator=(const UnfinishedWork&) = delete;
};

/// What `error` says, in one line: without the C++ frames that LibTorch appends.
std::string sentence_of(const std::exception& error);

/// Exit code and sentence of an exception that is no Error: 1, and 4 where no thread could be started.
struct Ending {
  int code = 1;
  std::string text;
};
Ending ending_of(const std::exception& error);

/// Calls `print`, which prints `text`, in a job of a launcher once a host: its first rank prints, another one keeps quiet where that has
/// printed the same, or does within 1.5 seconds. Texts that differ are all printed. Call it right before the process ends: the first rank
/// stays for a second, so that slower ones find it.
void print_once(const World& world, const std::string& text, const std::function<void()>& print);

}  // namespace cohort
