// The program for tests, which start it some thousand times: loading LibTorch takes 0.2 s of a processor, a fork 5 ms. With
// COHORT_WARM_SOCKET=FD in its environment it loads LibTorch, reads commands from that socket, and forks for each; what runs there is what
// main() of the program runs. Without, it is the program.
//   a command: u64 size, with three descriptors (stdin, stdout, stderr), then `size` bytes of words that end with zero: the folder, the
//   number of arguments, the arguments, the environment. The answer: i64 pid of a process in a session of its own; whoever is the nearest
//   subreaper is its parent.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "cohort/cohort.h"

extern char** environ;

namespace {

struct Command {
  int streams[3];
  std::string folder;
  std::vector<std::string> arguments, environment;
};

bool read_all(int from, char* data, size_t size) {
  for (size_t at = 0; at < size;) {
    const ssize_t got = ::read(from, data + at, size - at);
    if (got <= 0) return false;
    at += static_cast<size_t>(got);
  }
  return true;
}

bool read_command(int from, Command* command) {
  uint64_t size = 0;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof command->streams)];
  iovec part{&size, sizeof size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(from, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL) != sizeof size) return false;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_len != CMSG_LEN(sizeof command->streams) || size > (1 << 24)) return false;
  std::copy_n(reinterpret_cast<const int*>(CMSG_DATA(header)), 3, command->streams);
  std::string text(size, '\0');
  if (!read_all(from, text.data(), size)) return false;
  std::vector<std::string> words;
  for (size_t at = 0; at < size; at += words.back().size() + 1) words.emplace_back(text.c_str() + at);
  if (words.size() < 2) return false;
  const auto first = words.begin() + 2, last = first + std::atol(words[1].c_str());
  command->folder = words[0];
  command->arguments.assign(first, last);
  command->environment.assign(last, words.end());
  return true;
}

[[noreturn]] void become(const Command& command) {
  ::setsid();
  for (int stream = 0; stream < 3; ++stream) ::dup2(command.streams[stream], stream);
  ::close_range(3, ~0U, 0);
  if (::chdir(command.folder.c_str()) != 0) ::_exit(127);
  ::clearenv();
  for (const std::string& entry : command.environment) {
    const size_t equals = entry.find('=');
    ::setenv(entry.substr(0, equals).c_str(), entry.c_str() + equals + 1, 1);
  }
  std::vector<char*> argv;
  for (const std::string& argument : command.arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const int code = cohort::run_cli(static_cast<int>(argv.size()) - 1, argv.data());
  std::cout.flush();
  std::fflush(nullptr);
  ::_exit(code);  // LibTorch's static destructors cost half of what a start costs; the launcher's ranks leave them out too.
}

void serve(int socket) {
  for (Command command; read_command(socket, &command); command = {}) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    const pid_t between = ::fork();
    if (between == 0) {
      const pid_t own = ::getpid(), child = ::fork();
      if (child == 0) {
        while (::getppid() == own) ::usleep(100);  // Whoever looks at its parent sees the one that it keeps.
        become(command);
      }
      [[maybe_unused]] const ssize_t written = ::write(ends[1], &child, sizeof child);
      ::_exit(0);
    }
    pid_t child = -1;
    read_all(ends[0], reinterpret_cast<char*>(&child), sizeof child);
    ::waitpid(between, nullptr, 0);
    for (const int opened : {ends[0], ends[1], command.streams[0], command.streams[1], command.streams[2]}) ::close(opened);
    const int64_t answer = child;
    if (::send(socket, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const char* const socket = std::getenv("COHORT_WARM_SOCKET");
  if (socket == nullptr) return cohort::run_cli(argc, argv);
  serve(std::atoi(socket));
}
