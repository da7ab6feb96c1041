#include "cohort/comm/net/mpi_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

constexpr char kAdvice[] =
    "install Open MPI or MPICH (apt-get install openmpi-bin, or mpich) and start with it: mpirun -n 4 cohort train ... --backend mpi";

// The same in mpi.h of Open MPI 4.1 and of MPICH 4.0.
constexpr int kSuccess = 0, kThreadMultiple = 3;

/// Open MPI 4.1: handles are addresses of exported objects, MPI_Status begins with MPI_SOURCE.
struct OpenMpi {
  using Handle = void*;
  static constexpr int kAnySource = -1, kTagUb = 0, kMaxErrorText = 256, kMaxVersionText = 256;
  struct Status {
    int source, tag, error, cancelled;
    size_t count;
  };
  Handle byte, world, errors_return;
  template <typename Find>
  explicit OpenMpi(Find find)
      : byte(find("ompi_mpi_byte")), world(find("ompi_mpi_comm_world")), errors_return(find("ompi_mpi_errors_return")) {}
};

/// MPICH 4.0: handles are numbers, MPI_Status begins with two halves of the count.
struct Mpich {
  using Handle = int;
  static constexpr int kAnySource = -2, kTagUb = 0x64400001, kMaxErrorText = 512, kMaxVersionText = 8192;
  struct Status {
    int count_low, count_high, source, tag, error;
  };
  Handle byte = 0x4c00010d, world = 0x44000000, errors_return = 0x54000001;
  template <typename Find>
  explicit Mpich(Find) {}
};

template <typename Abi>
class LoadedMpi final : public MpiLibrary {
  using Mpi = typename Abi::Handle;
  using Status = typename Abi::Status;
  static_assert(sizeof(Status) >= 20);

 public:
  explicit LoadedMpi(void* library) : library_(library), abi_([this](const char* name) { return find(name); }) {
    start();
    set_errhandler_(abi_.world, abi_.errors_return);
    check(comm_rank_(abi_.world, &rank_), "MPI_Comm_rank");
    check(comm_size_(abi_.world, &size_), "MPI_Comm_size");
    int *max_tag = nullptr, found = 0;
    check(get_attr_(abi_.world, Abi::kTagUb, &max_tag, &found), "MPI_Comm_get_attr");
    max_tag_ = found ? *max_tag : 32767;  // The standard's minimum.
    char text[Abi::kMaxVersionText] = {};
    int length = 0;
    if (version_text_(text, &length) == kSuccess) version_ = text;
    version_ = version_.substr(0, version_.find_first_of(",\n"));  // Build options follow.
    std::replace(version_.begin(), version_.end(), '\t', ' ');
  }

  /// Runs at the end of the process.
  ~LoadedMpi() override {
    int finalized = 0;
    finalized_(&finalized);
    if (finalize_ && !finalized) finalize_function_();
  }

  MpiLibrary::Handle make_group(const std::vector<int>& world_ranks, int tag) override {
    Mpi all{}, some{}, made{};
    check(comm_group_(abi_.world, &all), "MPI_Comm_group");
    check(group_incl_(all, static_cast<int>(world_ranks.size()), world_ranks.data(), &some), "MPI_Group_incl");
    check(create_group_(abi_.world, some, tag, &made), "MPI_Comm_create_group");
    group_free_(&some);
    group_free_(&all);
    check(set_errhandler_(made, abi_.errors_return), "MPI_Comm_set_errhandler");
    return pack(made);
  }
  void free_group(MpiLibrary::Handle group) override {
    Mpi comm = unpack(group);
    comm_free_(&comm);
  }

  MpiLibrary::Handle send(const void* data, size_t bytes, int peer, int tag, MpiLibrary::Handle group) override {
    Mpi request{};
    check(isend_(data, static_cast<int>(bytes), abi_.byte, peer, tag, unpack(group), &request), "MPI_Isend");
    return pack(request);
  }
  MpiLibrary::Handle receive(void* data, size_t bytes, int peer, int tag, MpiLibrary::Handle group) override {
    Mpi request{};
    check(irecv_(data, static_cast<int>(bytes), abi_.byte, peer < 0 ? Abi::kAnySource : peer, tag, unpack(group), &request), "MPI_Irecv");
    return pack(request);
  }
  Outcome test(MpiLibrary::Handle& request) override {
    Mpi mine = unpack(request);
    Status status{};
    int done = 0, count = 0;
    const int result = test_(&mine, &done, &status);
    request = pack(mine);
    check(result, "MPI_Test");
    if (!done) return {};
    check(get_count_(&status, abi_.byte, &count), "MPI_Get_count");
    return {true, status.source, static_cast<size_t>(count)};
  }
  void cancel(MpiLibrary::Handle& request) override {
    Mpi mine = unpack(request);
    cancel_(&mine);
    request_free_(&mine);
    request = pack(mine);
  }

 private:
  void* find(const char* name) const {
    void* found = dlsym(library_, name);
    if (!found) fail(ErrorCode::kEnvironment, "the MPI library that was loaded lacks ", name, "; ", kAdvice);
    return found;
  }
  /// A function of the library; takes the type of the pointer that it initialises.
  struct Symbol {
    void* address;
    template <typename Function>
    operator Function*() const {
      return reinterpret_cast<Function*>(address);
    }
  };
  Symbol symbol(const char* name) const { return {find(name)}; }
  static MpiLibrary::Handle pack(Mpi handle) {
    MpiLibrary::Handle packed = 0;
    std::memcpy(&packed, &handle, sizeof handle);
    return packed;
  }
  static Mpi unpack(MpiLibrary::Handle packed) {
    Mpi handle;
    std::memcpy(&handle, &packed, sizeof handle);
    return handle;
  }

  void start() {
    int begun = 0, level = 0;
    check(initialized_(&begun), "MPI_Initialized");
    if (begun) {
      check(query_thread_(&level), "MPI_Query_thread");
    } else {
      check(init_thread_(nullptr, nullptr, kThreadMultiple, &level), "MPI_Init_thread");
      finalize_ = true;
    }
    if (level < kThreadMultiple)
      fail(ErrorCode::kEnvironment, "MPI offers thread level ", level, begun ? ", as the program initialised it" : "",
           name_settings(", and Cohort needs MPI_THREAD_MULTIPLE (3): call MPI_Init_thread with it, or use --backend gloo"));
  }

  void check(int result, const char* function) const {
    if (result == kSuccess) return;
    char text[Abi::kMaxErrorText] = {};
    int length = 0;
    error_text_(result, text, &length);
    throw std::runtime_error(concat(function, ": ", text));
  }

  void* library_;
  Abi abi_;
  int (*initialized_)(int*) = symbol("MPI_Initialized");
  int (*init_thread_)(int*, char***, int, int*) = symbol("MPI_Init_thread");
  int (*query_thread_)(int*) = symbol("MPI_Query_thread");
  int (*finalized_)(int*) = symbol("MPI_Finalized");
  int (*finalize_function_)() = symbol("MPI_Finalize");
  int (*comm_rank_)(Mpi, int*) = symbol("MPI_Comm_rank");
  int (*comm_size_)(Mpi, int*) = symbol("MPI_Comm_size");
  int (*comm_group_)(Mpi, Mpi*) = symbol("MPI_Comm_group");
  int (*group_incl_)(Mpi, int, const int*, Mpi*) = symbol("MPI_Group_incl");
  int (*group_free_)(Mpi*) = symbol("MPI_Group_free");
  int (*create_group_)(Mpi, Mpi, int, Mpi*) = symbol("MPI_Comm_create_group");
  int (*comm_free_)(Mpi*) = symbol("MPI_Comm_free");
  int (*set_errhandler_)(Mpi, Mpi) = symbol("MPI_Comm_set_errhandler");
  int (*get_attr_)(Mpi, int, void*, int*) = symbol("MPI_Comm_get_attr");
  int (*version_text_)(char*, int*) = symbol("MPI_Get_library_version");
  int (*error_text_)(int, char*, int*) = symbol("MPI_Error_string");
  int (*isend_)(const void*, int, Mpi, int, int, Mpi, Mpi*) = symbol("MPI_Isend");
  int (*irecv_)(void*, int, Mpi, int, int, Mpi, Mpi*) = symbol("MPI_Irecv");
  int (*test_)(Mpi*, int*, Status*) = symbol("MPI_Test");
  int (*get_count_)(const Status*, Mpi, int*) = symbol("MPI_Get_count");
  int (*cancel_)(Mpi*) = symbol("MPI_Cancel");
  int (*request_free_)(Mpi*) = symbol("MPI_Request_free");
};

/// The first of `names` that loads.
void* open_first(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (void* library = dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return library;
  return nullptr;
}

bool is_set(const char* variable) { return std::getenv(variable) != nullptr; }

std::unique_ptr<MpiLibrary> load() {
  const bool by_open_mpi = is_set("OMPI_COMM_WORLD_SIZE") || is_set("PMIX_RANK"), by_mpich = is_set("PMI_RANK") || is_set("PMI_SIZE");
  void* library = dlsym(RTLD_DEFAULT, "MPI_Init_thread") ? dlopen(nullptr, RTLD_NOW) : nullptr;  // The program links MPI.
  if (!library && !by_open_mpi && !by_mpich)
    fail(ErrorCode::kEnvironment, name_settings("--backend mpi: this process was not started by mpirun; "), kAdvice);
  if (!library) library = open_mpi_library(by_open_mpi ? MpiKind::kOpenMpi : MpiKind::kMpich);
  if (!library)
    fail(ErrorCode::kEnvironment, name_settings("--backend mpi: started by "), by_open_mpi ? "Open MPI" : "MPICH", ", but its library (",
         by_open_mpi ? "libmpi.so.40" : "libmpich.so.12", ") cannot be loaded [", dlerror(), "]; put its folder into LD_LIBRARY_PATH, or ",
         kAdvice);
  if (kind_of(library) == MpiKind::kOpenMpi) return std::make_unique<LoadedMpi<OpenMpi>>(library);
  return std::make_unique<LoadedMpi<Mpich>>(library);
}

}  // namespace

void* open_mpi_library(MpiKind kind) {
  // Sonames of Open MPI 2 to 5; of MPICH, of Debian's MPICH, of Intel MPI.
  return kind == MpiKind::kOpenMpi ? open_first({"libmpi.so.40", "libmpi.so"})
                                   : open_first({"libmpich.so.12", "libmpi.so.12", "libmpich.so", "libmpi.so"});
}

MpiKind kind_of(void* library) { return dlsym(library, "ompi_mpi_comm_world") ? MpiKind::kOpenMpi : MpiKind::kMpich; }

MpiLibrary& MpiLibrary::instance() {
  static const std::unique_ptr<MpiLibrary> library = load();
  return *library;
}

}  // namespace cohort
