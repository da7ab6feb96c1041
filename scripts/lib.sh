# Shared by the scripts beside it; sourced, never run. Every script works from any folder and does nothing that is already done.
set -euo pipefail
[[ ${COHORT_TORCH_PREFIX:-/} == /* ]] || COHORT_TORCH_PREFIX=$PWD/$COHORT_TORCH_PREFIX
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tested_torch=2.13.0
torch_requirement=torch==${COHORT_TORCH_VERSION:-$tested_torch}
build_packages=(g++ make cmake ninja-build python3-venv libgloo-dev nlohmann-json3-dev libtomlplusplus-dev libcli11-dev zlib1g-dev libjpeg62-turbo-dev libpng-dev libxxhash-dev libsqlite3-dev libssl-dev libzmq3-dev libcpp-httplib-dev doctest-dev)
build_folder=build/release
torch_job_kib=$((1792 * 1024))  # What one compiler job of files that include LibTorch takes at its peak.

say() { printf '== %s\n' "$*" >&2; }
skip() { printf 'skipped: %s\n' "$*" >&2; [[ ${CI:-} == true ]] && exit 1; exit 77; }  # A check that cannot run here: ctest's skipped, in CI a failure.
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# Installs those of the named Debian packages that are missing; does not touch apt when none is.
apt_packages() {
  command -v dpkg-query >/dev/null || die "this is no Debian or Ubuntu; install what these packages hold, then build with CMake (CONTRIBUTING.md): $*"
  local installed missing=() package
  installed=" $({ dpkg-query -W -f '${binary:Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true; } | sed -n 's/\(:[a-z0-9]*\)\{0,1\} installed$//p' | tr '\n' ' ')"
  for package in "$@"; do
    [[ $installed == *" $package "* ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  local as_root=()
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || die "these packages are missing and this user can not install them (neither root nor sudo): ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing with apt: ${missing[*]}"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
  "${apt[@]}" update >&2
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >&2
}

# Makes .venv where there is none that works. Debian's own Python is preferred: python3-venv belongs to it, and a wheel for it is known to exist.
virtual_environment() {
  [[ -x .venv/bin/python && -e .venv/bin/pip ]] && return 0
  local python=/usr/bin/python3
  [[ -x $python ]] || python=$(command -v python3) || die "no python3 found"
  say "making the virtual environment .venv with $python"
  rm -rf .venv
  "$python" -m venv .venv
}

# pip_packages [--index-url URL] REQUIREMENT...: what pip has installed is noted in .venv/installed.txt, so that a second call does not start it.
pip_packages() {
  local options=() missing=() requirement
  if [[ $1 == --index-url ]]; then options=("$1" "$2"); shift 2; fi
  virtual_environment
  for requirement in "$@"; do
    grep -qsxF -- "$requirement" .venv/installed.txt || missing+=("$requirement")
  done
  ((${#missing[@]})) || return 0
  say "installing with pip: ${missing[*]}"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "${options[@]}" "${missing[@]}" >&2
  [[ ${missing[0]} != torch==* || ! -f .venv/installed.txt ]] || sed -i '/^torch==/d' .venv/installed.txt  # Another version took the place of that one.
  printf '%s\n' "${missing[@]}" >>.venv/installed.txt
}

# LibTorch: the user's own (COHORT_TORCH_PREFIX), or the wheel in .venv.
torch_library() {
  if [[ -n ${COHORT_TORCH_PREFIX:-} ]]; then
    [[ -f $COHORT_TORCH_PREFIX/share/cmake/Torch/TorchConfig.cmake ]] ||
      die "COHORT_TORCH_PREFIX is '$COHORT_TORCH_PREFIX', which has no share/cmake/Torch/TorchConfig.cmake; give the folder that holds LibTorch's include, lib and share"
    return 0
  fi
  if [[ -n ${COHORT_PIP_INDEX_URL:-} ]]; then
    pip_packages --index-url "$COHORT_PIP_INDEX_URL" "$torch_requirement" numpy
    return 0
  fi
  if ! grep -qsxF -- "$torch_requirement" .venv/installed.txt; then
    say "fetching LibTorch, the wheel $torch_requirement. Cohort needs only its CPU build (200 MB), but where pip knows no other index than its"
    say "own it fetches the CUDA build: five gigabytes on disk. To avoid that stop now (Ctrl-C) and set COHORT_PIP_INDEX_URL to an index that has the"
    say "CPU build (PyTorch's install page names it), or COHORT_TORCH_PREFIX to the folder of a LibTorch that you have."
  fi
  pip_packages "$torch_requirement" numpy
}

# As many compiler jobs as there are cores, fewer where memory (of the machine or of our cgroup) does not hold them.
num_jobs() {
  local jobs available limit used
  jobs=$(nproc)
  available=$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)
  if [[ -r /sys/fs/cgroup/memory.max ]] && limit=$(</sys/fs/cgroup/memory.max) && [[ $limit != max ]]; then
    used=$(</sys/fs/cgroup/memory.current)
    ((available = (limit - used) / 1024 < available ? (limit - used) / 1024 : available))
  fi
  ((jobs = available / torch_job_kib < jobs ? available / torch_job_kib : jobs))
  echo $((jobs > 1 ? jobs : 1))
}

# A number that rises with each commit, or each day in a clone without history: whose turn it is where CI takes parts in turn.
commit_turn() {
  local turn
  turn=$(git rev-list --count HEAD 2>/dev/null) || turn=0
  ((turn > 1)) || turn=$(($(date +%s) / 86400))
  echo "$turn"
}

# Configures build/release where it is not, or was for another LibTorch; ninja sees to every later change of the CMake files. It does not see another version in
# the same folder, for pip gives files the time at which they were made: then nothing of the old build is used.
configure() {
  local built_with
  built_with=$(cat $build_folder/torch.txt 2>/dev/null) || built_with=torch==$tested_torch
  if [[ -z ${COHORT_TORCH_PREFIX:-} && $built_with != "$torch_requirement" && -f $build_folder/build.ninja ]]; then
    say "$build_folder was built with $built_with: it is made anew"
    cmake --build $build_folder --target clean >&2
    rm -f $build_folder/configured.txt
  fi
  local arguments=(--preset release "-DCOHORT_TORCH_PREFIX=${COHORT_TORCH_PREFIX:-}")
  [[ -f $build_folder/build.ninja && $(cat $build_folder/configured.txt 2>/dev/null) == "${arguments[*]}" ]] && return 0
  say "configuring $build_folder"
  cmake --fresh "${arguments[@]}" >&2  # What an earlier cache knows of another LibTorch is forgotten.
  echo "${arguments[*]}" >$build_folder/configured.txt
  [[ -n ${COHORT_TORCH_PREFIX:-} ]] || echo "$torch_requirement" >$build_folder/torch.txt
}

# build_targets TARGET...: installs what a build needs, and builds.
build_targets() {
  apt_packages "${build_packages[@]}"
  torch_library
  configure
  cmake --build $build_folder --parallel "$(num_jobs)" --target "$@" >&2
}
