#include "cohort/train/measured/measure_in_ranks.h"

#include <ATen/Parallel.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/memory.h"
#include "cohort/base/text/json.h"
#include "cohort/world/launch.h"

namespace cohort {
namespace {

/// Memory that forked processes share by descriptor, of any length.
class SharedText {
 public:
  SharedText() : file_(::memfd_create("cohort-bench", MFD_CLOEXEC)) {
    if (file_ < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
  }
  ~SharedText() { ::close(file_); }
  SharedText(const SharedText&) = delete;

  void write(const std::string& text) const {
    for (size_t done = 0; done < text.size();) {
      const ssize_t count = ::pwrite(file_, text.data() + done, text.size() - done, static_cast<off_t>(done));
      if (count < 0) throw std::system_error(errno, std::generic_category(), "write of what was measured");
      done += static_cast<size_t>(count);
    }
  }
  std::string read() const {
    std::string text(static_cast<size_t>(::lseek(file_, 0, SEEK_END)), '\0');
    for (size_t done = 0; done < text.size();) {
      const ssize_t count = ::pread(file_, text.data() + done, text.size() - done, static_cast<off_t>(done));
      if (count <= 0) throw std::system_error(errno, std::generic_category(), "read of what was measured");
      done += static_cast<size_t>(count);
    }
    return text;
  }

 private:
  int file_;
};

}  // namespace

Json measure_in_ranks(int num_ranks, const std::string& backend, const std::function<Json(const World& world, Group& group)>& measure) {
  const SharedText answer;
  const int code = run_ranks({.num_ranks = num_ranks}, [&](const World& world) {
    keep_freed_memory();
    at::set_num_threads(1);
    Group group = Group::create(world, {.backend = backend});
    const Json measured = measure(world, group);
    if (world.rank == 0) answer.write(measured.dump());
    return 0;
  });
  if (code != 0) throw Error(static_cast<ErrorCode>(code), concat("bench: the ranks ended with code ", code));
  return Json::parse(answer.read());
}

}  // namespace cohort
