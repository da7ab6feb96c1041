#pragma once
// Unexpected ends of a process: uncaught exceptions in a user's own program, exit() in the middle of our work, and errors common to all
// ranks of a host, which only one of them prints. Torch-free.

#include <exception>
#include <functional>
#include <string>

#include "cohort/base/export.h"
#include "cohort/world/world.h"

namespace cohort {

/// From now on an exception that leaves main() or a thread ends this process as it would end our own program: with one line, "cohort:
/// error: TEXT", and the exit code of an Error, or 1 for any other std::exception (such as c10::Error). Under `cohort launch` the launcher
/// prints the line, with the rank. An earlier terminate handler of the program still handles everything except Errors, and LibTorch's own
/// handles what is not a std::exception. Called by world_from_environment() and Group::create(); a further call updates `world`.
void handle_uncaught_exceptions(const World& world);

/// Ends this process as an error does, even while other threads run.
[[noreturn]] void end_process(int code, const std::string& text);

/// During its lifetime a call of exit() ends this process as an error does, with code 1: exit code 0 would mean that the work is done.
class UnfinishedWork {
 public:
  UnfinishedWork();
  ~UnfinishedWork();
  UnfinishedWork(const UnfinishedWork&) = delete;
  UnfinishedWork& operator=(const UnfinishedWork&) = delete;
};

/// The message of `error` in one line, without the stack frames that LibTorch appends.
std::string one_line_message(const std::exception& error);

/// Exit code and message of an exception that is not an Error: code 1, or 4 if no thread could be started.
struct ExitStatus {
  int code = 1;
  std::string text;
};
ExitStatus exit_status_of(const std::exception& error);

/// Prints an error that every rank of a host encounters only once: calls `print`, which prints `text`, on the first rank of the host, and
/// on another rank unless the first printed the same text already or does so within 1.5 seconds. Call it right before the process ends: the
/// first rank waits a second, so that slower ranks notice.
void print_once(const World& world, const std::string& text, const std::function<void()>& print);

}  // namespace cohort
