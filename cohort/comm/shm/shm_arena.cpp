#include "cohort/comm/shm/shm_arena.h"

#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <mutex>
#include <new>
#include <sstream>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/rendezvous/local_rendezvous.h"
#include "cohort/comm/shm/memory_count.h"

namespace cohort {
namespace {

constexpr size_t kPage = 4096;
constexpr double kSocketSeconds = 5;  // All ranks are waiting when rank 0 begins to listen.

/// Header of the file.
struct ShmHeader {
  uint64_t nonce;
};

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

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

size_t file_bytes_for(int size) { return ShmArena::kHeaderBytes + static_cast<size_t>(size) * ShmArena::kRegionBytes; }

/// Creates rank 0's file; -1 where the kernel does not support it.
int make_file(int size) {
  const int fd = ::memfd_create("cohort-arena", MFD_CLOEXEC);
  if (fd < 0) return -1;
  if (::ftruncate(fd, static_cast<off_t>(file_bytes_for(size))) == 0 && ::posix_fallocate(fd, 0, ShmArena::kHeaderBytes) == 0) return fd;
  ::close(fd);
  return -1;
}

/// Waits for an entry; "" on a time-out or without the store.
std::string try_text(c10d::Store& store, const std::string& key) {
  try {
    return get_text(store, key);
  } catch (const std::exception&) {
    return "";
  }
}

/// Sends rank 0's file to the ranks that need it.
void hand_out(c10d::Store& store, const std::string& socket_name, int fd, int num_receivers) {
  try {
    DescriptorServer server(socket_name);
    set_text(store, "cohort/arena/socket", "listening");
    server.serve(fd, num_receivers, kSocketSeconds);
  } catch (const Error&) {
    set_text(store, "cohort/arena/socket", "none");
  }
}

}  // namespace

ShmArena::Map::Map(int fd, int size) : fd_(fd), bytes_(file_bytes_for(size)) {
  // Touching pages beyond the end of a foreign file would be a SIGBUS.
  if (::lseek(fd, 0, SEEK_END) != static_cast<off_t>(bytes_)) return;
  void* map = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (map != MAP_FAILED) base_ = static_cast<std::byte*>(map);
}

ShmArena::Map::~Map() {
  if (base_) ::munmap(base_, bytes_);
  ::close(fd_);
}

bool ShmArena::Map::has_nonce(uint64_t nonce) const { return base_ && reinterpret_cast<const ShmHeader*>(base_)->nonce == nonce; }

/// What rank 0 publishes, and how others open the file.
struct ShmArena::Opener {
  int pid = 0, fd = -1;
  uint64_t nonce = 0;

  std::string text() const { return concat(pid, " ", fd, " ", nonce); }
  bool parse(const std::string& text) {
    std::istringstream in(text);
    return static_cast<bool>(in >> pid >> fd >> nonce);
  }
  std::string socket_name() const { return concat("cohort/arena/", nonce); }

  /// Files mapped by rank 0 in this process, for ranks that are its threads: one mapping is one address for sanitizers.
  static std::shared_ptr<Map> mapped_here(uint64_t nonce, std::shared_ptr<Map> put = nullptr) {
    static std::mutex mutex;
    static std::map<uint64_t, std::weak_ptr<Map>> maps;
    std::lock_guard<std::mutex> lock(mutex);
    std::erase_if(maps, [](const auto& entry) { return entry.second.expired(); });
    if (put) maps[nonce] = put;
    const auto found = maps.find(nonce);
    return found == maps.end() ? nullptr : found->second.lock();
  }
  std::shared_ptr<Map> map(int descriptor, int size) const {
    if (descriptor < 0) return nullptr;
    auto map = std::make_shared<Map>(descriptor, size);
    return map->has_nonce(nonce) ? map : nullptr;
  }
  std::shared_ptr<Map> open_by_process(int size) const {
    if (pid == ::getpid()) return mapped_here(nonce);
    return map(::open(concat("/proc/", pid, "/fd/", fd).c_str(), O_RDWR | O_CLOEXEC), size);
  }
  std::shared_ptr<Map> open_by_socket(int size) const { return map(receive_descriptor_from(socket_name(), kSocketSeconds), size); }
};

ShmArena::ShmArena(std::shared_ptr<Map> map, int rank, int size) : map_(std::move(map)), rank_(rank), size_(size) {}
ShmArena::~ShmArena() { count_memory(-static_cast<int64_t>(reserved_bytes_)); }

std::shared_ptr<ShmArena> ShmArena::create(c10d::Store& store, int rank, int size, Opening opening) {
  const auto answer_key = [](int attempt, int peer) { return concat("cohort/arena/", attempt, "/", peer); };
  std::shared_ptr<Map> map;
  Opener opener;
  if (rank == 0) {
    if (const int fd = make_file(size); fd >= 0) map = std::make_shared<Map>(fd, size);
    if (map && !map->base()) map.reset();
    if (map) {
      opener = {::getpid(), map->fd(), random_nonce()};
      reinterpret_cast<ShmHeader*>(map->base())->nonce = opener.nonce;
      Opener::mapped_here(opener.nonce, map);
    }
    set_text(store, "cohort/arena", map ? opener.text() : "none");
  } else if (opener.parse(get_text(store, "cohort/arena")) && opening != Opening::kSocket) {
    map = opener.open_by_process(size);
  }

  set_text(store, answer_key(1, rank), map ? "yes" : "no");
  int num_without = 0;
  for (int peer = 0; peer < size; ++peer) num_without += get_text(store, answer_key(1, peer)) != "yes";
  if (num_without == 0) return std::shared_ptr<ShmArena>(new ShmArena(std::move(map), rank, size));
  if (opener.fd < 0 || opening == Opening::kProcess) return nullptr;

  if (rank == 0) {
    hand_out(store, opener.socket_name(), map->fd(), num_without);
  } else if (!map && try_text(store, "cohort/arena/socket") == "listening") {
    map = opener.open_by_socket(size);
  }
  set_text(store, answer_key(2, rank), map ? "yes" : "no");
  for (int peer = 0; peer < size; ++peer)
    if (get_text(store, answer_key(2, peer)) != "yes") return nullptr;
  return std::shared_ptr<ShmArena>(new ShmArena(std::move(map), rank, size));
}

/// Commits memory for [offset, offset + bytes) of this rank's region, which ends at `limit`.
std::byte* ShmArena::commit(size_t offset, size_t bytes, size_t limit) {
  if (offset > limit || bytes > limit - offset)
    fail(ErrorCode::kEnvironment, "the shared region of rank ", rank_, " is used up: ", offset, " of ", limit, " bytes, ", bytes,
         " more asked for");
  std::byte* const data = region(rank_) + offset;
  count_memory(static_cast<int64_t>(bytes));
  if (const int error = ::posix_fallocate(map_->fd(), data - map_->base(), static_cast<off_t>(bytes)); error != 0) {
    count_memory(-static_cast<int64_t>(bytes));
    fail(ErrorCode::kEnvironment, "no ", human_bytes(static_cast<int64_t>(bytes)), " of shared memory for rank ", rank_, ": ",
         std::strerror(error));
  }
  return data;
}

void ShmArena::free_pages(const std::byte* data, size_t bytes) {
  ::fallocate(map_->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, data - map_->base(), static_cast<off_t>(bytes));
}

void ShmArena::give_back(const std::byte* data, size_t bytes) {
  free_pages(data, bytes);
  count_memory(-static_cast<int64_t>(bytes));
}

at::Tensor ShmArena::allocate(int64_t num_elements, at::TensorOptions options) {
  const size_t bytes = round_up(std::max<size_t>(1, static_cast<size_t>(num_elements) * options.dtype().itemsize()), kPage);
  std::byte* const data = commit(next_, bytes, kRegionBytes / 2);
  // Offsets are never reused, so ranks that free at different times still allocate alike.
  next_ += bytes;
  return at::from_blob(data, {num_elements}, [arena = shared_from_this(), data, bytes](void*) { arena->give_back(data, bytes); }, options);
}

size_t ShmArena::reserve(size_t bytes) {
  const size_t offset = next_, rounded = round_up(std::max<size_t>(1, bytes), kPage);
  commit(offset, rounded, kRegionBytes / 2);
  next_ += rounded;
  reserved_bytes_ += rounded;
  return offset;
}

std::byte* ShmArena::allocate_local(size_t bytes) {
  const size_t rounded = round_up(std::max<size_t>(1, bytes), kPage);
  return commit(next_local_.fetch_add(rounded), rounded, kRegionBytes);
}

void ShmArena::release_local(std::byte* data, size_t bytes) { give_back(data, round_up(std::max<size_t>(1, bytes), kPage)); }
void ShmArena::take_local_again(std::byte* data, size_t bytes) {
  commit(static_cast<size_t>(data - region(rank_)), round_up(std::max<size_t>(1, bytes), kPage), kRegionBytes);
}
void ShmArena::leave_local(size_t bytes) { count_memory(-static_cast<int64_t>(round_up(std::max<size_t>(1, bytes), kPage))); }
void ShmArena::free_left(const std::byte* data, size_t bytes) { free_pages(data, round_up(std::max<size_t>(1, bytes), kPage)); }

bool ShmArena::offset_of(const void* data, size_t bytes, size_t* offset) const {
  const std::byte* const at = static_cast<const std::byte*>(data);
  const std::byte* const begin = region(rank_);
  if (at < begin || at + bytes > begin + kRegionBytes) return false;
  *offset = static_cast<size_t>(at - begin);
  return true;
}

namespace {

enum State : uint32_t { kUsed, kReleased, kOrphaned };

/// Rounds up to one of eight sizes between powers of two, so that packets of similar sizes share blocks.
size_t rounded_size(size_t bytes) {
  const size_t step = std::max<size_t>(4096, std::bit_floor(bytes) / 8);
  return (bytes + step - 1) / step * step;
}

}  // namespace

struct alignas(64) ShmBlocks::Header {
  std::atomic<uint32_t> state{kUsed};
  size_t block_bytes;  // Including this header.
};

ShmBlocks::Header& ShmBlocks::header_of(std::byte* data) { return *std::launder(reinterpret_cast<Header*>(data - sizeof(Header))); }

ShmBlocks::ShmBlocks(std::shared_ptr<ShmArena> arena) : arena_(std::move(arena)) {}

ShmBlocks::~ShmBlocks() {
  const auto give_back = [this](std::byte* data) { arena_->release_local(data - sizeof(Header), header_of(data).block_bytes); };
  for (const auto& [bytes, blocks] : free_) std::for_each(blocks.begin(), blocks.end(), give_back);
  for (std::byte* data : used_) {
    const size_t bytes = header_of(data).block_bytes;  // Read before the block may be gone.
    if (header_of(data).state.exchange(kOrphaned, std::memory_order_acq_rel) == kReleased) give_back(data);
    else arena_->leave_local(bytes);
  }
}

void ShmBlocks::release(ShmArena& arena, std::byte* data) {
  Header& header = header_of(data);
  const size_t bytes = header.block_bytes;  // Read before the block is its owner's again.
  if (header.state.exchange(kReleased, std::memory_order_acq_rel) == kOrphaned) arena.free_left(data - sizeof(Header), bytes);
}

/// Collects released blocks.
void ShmBlocks::collect() {
  std::erase_if(used_, [this](std::byte* data) {
    if (header_of(data).state.load(std::memory_order_acquire) != kReleased) return false;
    free_[header_of(data).block_bytes].push_back(data);
    ++num_free_;
    return true;
  });
}

std::byte* ShmBlocks::take(size_t bytes) {
  const size_t wanted = rounded_size(bytes + sizeof(Header));
  collect();
  // At most twice the size: otherwise small packets would hold the large blocks, and large ones take new memory.
  for (auto found = free_.lower_bound(wanted); found != free_.end() && found->first <= 2 * wanted; ++found) {
    if (found->second.empty()) continue;
    std::byte* const data = found->second.back();
    found->second.pop_back();
    --num_free_;
    used_.push_back(data);
    header_of(data).state.store(kUsed, std::memory_order_relaxed);
    return data;
  }
  std::byte* const block = arena_->allocate_local(wanted);
  Header* const header = new (block) Header;
  header->block_bytes = wanted;
  used_.push_back(block + sizeof(Header));
  return used_.back();
}

}  // namespace cohort
