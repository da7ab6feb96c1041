#include "cohort/comm/shm_arena.h"

#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>
#include <string>

#include "cohort/base/error.h"
#include "cohort/base/text.h"

namespace cohort {
namespace {

constexpr size_t kPage = 4096;

/// First bytes of the file.
struct ShmHeader {
  uint64_t nonce;
};

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }
size_t header_bytes_for(int size) { return round_up(sizeof(ShmHeader) + 128 + sizeof(ShmRank) * static_cast<size_t>(size), kPage); }

uint64_t random_nonce() {
  uint64_t nonce = 0;
  std::ifstream("/dev/urandom", std::ios::binary).read(reinterpret_cast<char*>(&nonce), sizeof nonce);
  return nonce;
}

std::string get_text(c10d::Store& store, const std::string& key) {
  const std::vector<uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}
void set_text(c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

/// Rank 0's file: -1 when this kernel gives none.
int make_file(int size) {
  const int fd = ::memfd_create("cohort-arena", MFD_CLOEXEC);
  if (fd < 0) return -1;
  const size_t header = header_bytes_for(size), staging = ShmArena::kStagingBytes;
  bool ok = ::ftruncate(fd, static_cast<off_t>(header + static_cast<size_t>(size) * ShmArena::kRegionBytes)) == 0 &&
            ::posix_fallocate(fd, 0, static_cast<off_t>(header)) == 0;
  for (int rank = 0; ok && rank < size; ++rank)
    ok = ::posix_fallocate(fd, static_cast<off_t>(header + static_cast<size_t>(rank) * ShmArena::kRegionBytes),
                           static_cast<off_t>(staging)) == 0;
  if (ok) return fd;
  ::close(fd);
  return -1;
}

}  // namespace

ShmArena::ShmArena(int fd, int rank, int size)
    : fd_(fd),
      rank_(rank),
      size_(size),
      header_bytes_(header_bytes_for(size)),
      total_bytes_(header_bytes_ + static_cast<size_t>(size) * kRegionBytes) {
  void* map = ::mmap(nullptr, total_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (map != MAP_FAILED) base_ = static_cast<std::byte*>(map);
}

ShmArena::~ShmArena() {
  if (base_) ::munmap(base_, total_bytes_);
  ::close(fd_);
}

ShmRank& ShmArena::counters(int rank) const {
  return reinterpret_cast<ShmRank*>(base_ + round_up(sizeof(ShmHeader), alignof(ShmRank)))[rank];
}

std::shared_ptr<ShmArena> ShmArena::create(c10d::Store& store, int rank, int size) {
  std::shared_ptr<ShmArena> arena;
  if (rank == 0) {
    const int fd = make_file(size);
    if (fd >= 0) arena.reset(new ShmArena(fd, rank, size));
    if (arena && !arena->base_) arena.reset();
    if (arena) {
      for (int peer = 0; peer < size; ++peer) new (&arena->counters(peer)) ShmRank;
      const uint64_t nonce = random_nonce();
      reinterpret_cast<ShmHeader*>(arena->base_)->nonce = nonce;
      set_text(store, "cohort/arena", concat(::getpid(), " ", fd, " ", nonce));
    } else {
      set_text(store, "cohort/arena", "none");
    }
  } else {
    const std::vector<std::string> fields = split(get_text(store, "cohort/arena"), ' ');
    const int fd = fields.size() == 3 ? ::open(concat("/proc/", fields[0], "/fd/", fields[1]).c_str(), O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0) {
      // A file of another size is not ours; touching pages beyond its end would be a SIGBUS.
      const off_t bytes = ::lseek(fd, 0, SEEK_END);
      arena.reset(new ShmArena(fd, rank, size));
      if (!arena->base_ || bytes != static_cast<off_t>(arena->total_bytes_) ||
          concat(reinterpret_cast<ShmHeader*>(arena->base_)->nonce) != fields[2])
        arena.reset();
    }
  }
  set_text(store, concat("cohort/arena/", rank), arena ? "yes" : "no");
  for (int peer = 0; peer < size; ++peer)
    if (get_text(store, concat("cohort/arena/", peer)) != "yes") return nullptr;
  return arena;
}

/// Takes `bytes` of memory for [offset, offset + bytes) of this rank's region, which ends at `limit`.
std::byte* ShmArena::commit(size_t offset, size_t bytes, size_t limit) {
  if (offset > limit || bytes > limit - offset)
    fail(ErrorCode::kEnvironment, "the shared region of rank ", rank_, " is used up: ", offset, " of ", limit, " bytes, ", bytes,
         " more asked for");
  std::byte* const data = region(rank_) + offset;
  if (const int error = ::posix_fallocate(fd_, data - base_, static_cast<off_t>(bytes)); error != 0)
    fail(ErrorCode::kEnvironment, "no ", human_bytes(static_cast<int64_t>(bytes)), " of shared memory for rank ", rank_, ": ",
         std::strerror(error));
  return data;
}

void ShmArena::give_back(const std::byte* data, size_t bytes) {
  ::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, data - base_, static_cast<off_t>(bytes));
}

at::Tensor ShmArena::allocate(int64_t num_elements, at::TensorOptions options) {
  const size_t bytes = round_up(std::max<size_t>(1, static_cast<size_t>(num_elements) * options.dtype().itemsize()), kPage);
  std::byte* const data = commit(next_, bytes, kRegionBytes / 2);
  // Offsets are never used twice, so ranks that free at different times still allocate alike.
  next_ += bytes;
  return at::from_blob(data, {num_elements}, [arena = shared_from_this(), data, bytes](void*) { arena->give_back(data, bytes); }, options);
}

std::byte* ShmArena::allocate_local(size_t bytes) {
  const size_t rounded = round_up(std::max<size_t>(1, bytes), kPage);
  return commit(next_local_.fetch_add(rounded), rounded, kRegionBytes);
}

void ShmArena::release_local(std::byte* data, size_t bytes) { give_back(data, round_up(std::max<size_t>(1, bytes), kPage)); }

bool ShmArena::offset_of(const void* data, size_t bytes, size_t* offset) const {
  const std::byte* const at = static_cast<const std::byte*>(data);
  const std::byte* const begin = region(rank_);
  if (at < begin || at + bytes > begin + kRegionBytes) return false;
  *offset = static_cast<size_t>(at - begin);
  return true;
}

}  // namespace cohort
