#pragma once
// How a forked child returns a text to its parent.

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace cohort {

/// Memory that forked processes share by descriptor, of any length. std::system_error where the kernel gives none.
class SharedText {
 public:
  SharedText() : file_(::memfd_create("cohort-text", MFD_CLOEXEC)) {
    if (file_ < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
  }
  ~SharedText() { ::close(file_); }
  SharedText(const SharedText&) = delete;
  SharedText& operator=(const SharedText&) = delete;

  void write(const std::string& text) const {
    for (size_t done = 0; done < text.size();) {
      const ssize_t count = ::pwrite(file_, text.data() + done, text.size() - done, static_cast<off_t>(done));
      if (count < 0) throw std::system_error(errno, std::generic_category(), "write for the parent process");
      done += static_cast<size_t>(count);
    }
  }
  /// "" where nothing was written.
  std::string read() const {
    std::string text(static_cast<size_t>(::lseek(file_, 0, SEEK_END)), '\0');
    for (size_t done = 0; done < text.size();) {
      const ssize_t count = ::pread(file_, text.data() + done, text.size() - done, static_cast<off_t>(done));
      if (count <= 0) throw std::system_error(errno, std::generic_category(), "read of a child process's answer");
      done += static_cast<size_t>(count);
    }
    return text;
  }

 private:
  int file_;
};

}  // namespace cohort
