// Shared memory is an unnamed file (memfd) that the worker opens as /proc/PID/fd/N: only this user can, and only on this host. It begins
// with a random number, which is part of the address, so that another file behind the same path (of another host, or a later process) is
// not mistaken for it. The tensors follow, aligned to 64 bytes.
//
// A worker killed while it writes has not reported, so nobody reads what it wrote. One that was suspended and resumes later writes into
// memory that nobody else uses, since each connection gets its own slot. Cost of a work item: one copy each way, and one more by whoever
// receives a version.
#include "cohort/async/packed_tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <unistd.h>

#include <cstring>

#include "cohort/base/fail.h"
#include "cohort/base/secrets.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr size_t kHeaderBytes = 64, kAlignment = 64, kNonceBytes = 16;

size_t aligned_bytes(const at::Tensor& tensor) { return (tensor.nbytes() + kAlignment - 1) / kAlignment * kAlignment; }

size_t slot_bytes(const std::vector<at::Tensor>& down, const std::vector<at::Tensor>& up) {
  size_t bytes = kHeaderBytes;
  for (const std::vector<at::Tensor>* tensors : {&down, &up})
    for (const at::Tensor& tensor : *tensors) bytes += aligned_bytes(tensor);
  return bytes;
}

void pack_into(std::byte* to, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    const at::Tensor whole = tensor.contiguous();
    if (whole.nbytes() > 0) std::memcpy(to, whole.data_ptr(), whole.nbytes());
    to += whole.nbytes();
  }
}

void unpack_from(const std::byte* from, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.nbytes() == 0) continue;
    std::memcpy(tensor.data_ptr(), from, tensor.nbytes());
    from += tensor.nbytes();
  }
}

}  // namespace

int64_t packed_bytes(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

at::Tensor packed(const std::vector<at::Tensor>& tensors) {
  at::Tensor out = at::empty({packed_bytes(tensors)}, at::kByte);
  pack_into(static_cast<std::byte*>(out.data_ptr()), tensors);
  return out;
}

std::string packed_text(const std::vector<at::Tensor>& tensors) {
  std::string out(static_cast<size_t>(packed_bytes(tensors)), 0);
  pack_into(reinterpret_cast<std::byte*>(out.data()), tensors);
  return out;
}

void unpack(const at::Tensor& bytes, const std::vector<at::Tensor>& tensors) {
  if (bytes.numel() != packed_bytes(tensors)) fail(ErrorCode::kFailed, bytes.numel(), " bytes for tensors of ", packed_bytes(tensors));
  unpack_from(static_cast<const std::byte*>(bytes.data_ptr()), tensors);
}

void unpack(const std::string& bytes, const std::vector<at::Tensor>& tensors) {
  if (std::ssize(bytes) != packed_bytes(tensors))
    fail(ErrorCode::kBadInput, "received ", bytes.size(), " bytes for tensors of ", packed_bytes(tensors));
  unpack_from(reinterpret_cast<const std::byte*>(bytes.data()), tensors);
}

struct WorkerSlot::Memory {
  Memory(UniqueDescriptor its_file, size_t its_bytes) : file(std::move(its_file)), bytes(its_bytes) {
    void* const map = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (map != MAP_FAILED) base = static_cast<char*>(map);
  }
  ~Memory() {
    if (base) ::munmap(base, bytes);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  UniqueDescriptor file;
  size_t bytes;
  char* base = nullptr;
};

WorkerSlot::WorkerSlot(std::shared_ptr<Memory> memory, std::string address, const std::vector<at::Tensor>& down,
                       const std::vector<at::Tensor>& up)
    : memory_(std::move(memory)), address_(std::move(address)) {
  char* at = memory_->base + kHeaderBytes;
  for (const auto& [like, views] : {std::pair(&down, &down_), std::pair(&up, &up_)})
    for (const at::Tensor& tensor : *like) {
      views->push_back(at::from_blob(at, tensor.sizes(), [keep = memory_](void*) {}, tensor.options().requires_grad(false)));
      at += aligned_bytes(tensor);
    }
}

WorkerSlot WorkerSlot::make(const std::vector<at::Tensor>& down, const std::vector<at::Tensor>& up) {
  UniqueDescriptor file(::memfd_create("cohort-slot", MFD_CLOEXEC));
  const size_t bytes = slot_bytes(down, up);
  // Allocate now: a page that cannot be provided would be a SIGBUS later.
  if (file.get() < 0 || ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes)) != 0) return {};
  const std::string nonce = hexadecimal(secret_bytes(kNonceBytes)), address = concat("/proc/", ::getpid(), "/fd/", file.get(), " ", nonce);
  auto memory = std::make_shared<Memory>(std::move(file), bytes);
  if (!memory->base) return {};
  std::memcpy(memory->base, nonce.data(), nonce.size());
  return {std::move(memory), address, down, up};
}

WorkerSlot WorkerSlot::find(const std::string& address, const std::vector<at::Tensor>& down, const std::vector<at::Tensor>& up) {
  const std::vector<std::string> parts = split(address, ' ');
  if (parts.size() != 2 || !parts[0].starts_with("/proc/") || parts[1].size() != 2 * kNonceBytes) return {};
  UniqueDescriptor file(::open(parts[0].c_str(), O_RDWR | O_CLOEXEC));
  struct stat found{};
  const size_t bytes = slot_bytes(down, up);
  if (file.get() < 0 || ::fstat(file.get(), &found) != 0 || !S_ISREG(found.st_mode) || found.st_size != static_cast<off_t>(bytes))
    return {};
  auto memory = std::make_shared<Memory>(std::move(file), bytes);
  if (!memory->base || std::memcmp(memory->base, parts[1].data(), parts[1].size()) != 0) return {};
  return {std::move(memory), address, down, up};
}

std::vector<at::Tensor> receive_push(const WorkerSlot* slot, const std::vector<at::Tensor>& empty, const std::string& data,
                                     const std::vector<size_t>& missing, size_t num_optional, const std::string& where) {
  std::vector<at::Tensor> tensors = slot ? slot->up() : empty;
  for (const size_t at : missing) {
    if (at >= num_optional)
      fail(ErrorCode::kBadInput, where, ": tensor ", at, " of ", tensors.size(), " is missing; only the first ", num_optional,
           " are optional");
    tensors[at] = at::Tensor();
  }
  if (!slot) unpack(data, tensors);
  return tensors;
}

void copy_tensors(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < to.size(); ++i)
    if (from[i].defined()) to[i].view(from[i].sizes()).copy_(from[i]);
}

}  // namespace cohort
