#include "cohort/comm/tensor_channels.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <csignal>
#include <cstring>
#include <deque>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "tests/support/thread_ranks.h"

namespace cohort {
namespace {

using Tensors = std::vector<at::Tensor>;
/// The last is messages through shared memory: what ranks of one host have between them where a job spans several.
constexpr const char* kBackends[] = {"shm", "gloo", "shm+gloo"};

GroupOptions over(const char* backend, double timeout_seconds = 20) { return {.backend = backend, .timeout_seconds = timeout_seconds}; }

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("wrong: " + what);
}

std::string error_of(const std::function<void()>& use) {
  try {
    use();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

/// Bytes that follow from the key alone.
at::Tensor bytes_of(uint64_t key, int64_t count) {
  at::Tensor words = torch::empty({(count + 7) / 8}, torch::kLong);
  auto* const data = words.data_ptr<int64_t>();
  for (int64_t i = 0; i < words.numel(); ++i) data[i] = static_cast<int64_t>(mix64(key + static_cast<uint64_t>(i)));
  return words.view(torch::kByte).slice(0, 0, count);
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && torch::equal(a, b);
}

/// All kinds of tensors that a stage may send.
Tensors all_kinds() {
  Tensors out{torch::Tensor(), torch::tensor(3.5), torch::empty({0}), torch::empty({4, 0, 2}, torch::kHalf)};
  for (const auto type : {torch::kFloat, torch::kHalf, torch::kBFloat16, torch::kDouble, torch::kLong, torch::kInt, torch::kShort,
                          torch::kByte, torch::kChar, torch::kBool, torch::kComplexFloat})
    out.push_back(torch::arange(21).remainder(5).to(type).view({3, 7}));
  const at::Tensor wide = torch::arange(240, torch::kFloat).view({2, 3, 8, 5});
  for (const at::Tensor& tensor :
       {wide.transpose(1, 2), wide.slice(2, 1, 7, 3), wide.contiguous(at::MemoryFormat::ChannelsLast), wide.select(3, 2),
        torch::arange(3).expand({4, 3}), torch::conj(torch::complex(wide, wide)), torch::imag(torch::conj(torch::complex(wide, wide)))})
    out.push_back(tensor);
  out.push_back(torch::ones({2, 2}).requires_grad_() * 3);
  return out;
}

TEST_CASE("every type, shape and stride arrives as it was sent") {
  for (const char* backend : kBackends)
    run_thread_ranks(
        2,
        [](Group& group) {
          TensorChannels channels(group);
          const int peer = 1 - group.rank();
          Tensors sent = all_kinds(), changing{torch::ones({1000})};
          channels.send(peer, sent, "all kinds");
          channels.send(peer, {}, "nothing");
          channels.send(peer, changing, "ones");
          channels.send(group.rank(), sent, "to myself");
          changing[0].zero_();
          for (const int from : {peer, group.rank()}) {
            const Tensors got = channels.receive(from, "all kinds");
            require(got.size() == sent.size(), "number of tensors");
            for (size_t i = 0; i < got.size(); ++i) {
              require(same(got[i], sent[i]), concat("tensor ", i, " from rank ", from));
              if (!got[i].defined()) continue;
              require(got[i].is_contiguous() && !got[i].requires_grad(), "dense, without history");
              require(reinterpret_cast<uintptr_t>(got[i].data_ptr()) % 64 == 0, "alignment");
              got[i].zero_();
            }
          }
          require(channels.receive(peer, "nothing").empty(), "an empty packet");
          require(channels.receive(peer, "ones")[0].eq(1).all().item<bool>(), "a tensor changed after send()");
          int64_t bytes = changing[0].nbytes();
          for (const at::Tensor& tensor : sent) bytes += tensor.defined() ? 2 * static_cast<int64_t>(tensor.nbytes()) : 0;
          require(channels.sent_bytes() == bytes, "sent_bytes");
          channels.flush();
        },
        over(backend));
}

/// All ranks know all packets: number `i` goes from one random rank to another.
struct Schedule {
  uint64_t seed;
  int num_ranks;

  int from(int i) const { return static_cast<int>(random_bits(seed, i, 0) % static_cast<uint64_t>(num_ranks)); }
  int to(int i) const { return static_cast<int>(random_bits(seed, i, 1) % static_cast<uint64_t>(num_ranks)); }
  Tensors packet(int i) const {
    Tensors tensors;
    for (uint64_t j = 0; j < random_bits(seed, i, 2) % 4; ++j) {
      const int64_t sizes[] = {0, 1, 63, 64, 65, 4095, 4097, 70001};
      tensors.push_back(bytes_of(random_bits(seed, i, j), sizes[random_bits(seed, i, j, 3) % 8]));
    }
    return tensors;
  }
};

/// Each rank goes through the packets in order: sends its own at once, receives those for it then or some time later, and holds some of
/// what it got for a while.
void run_schedule(Group& group, const Schedule& schedule, int num_packets, int64_t shared_bytes) {
  TensorChannels channels(group, {.shared_bytes = shared_bytes});
  std::deque<int> due;
  std::vector<std::pair<int, Tensors>> held;
  const auto check = [&](int i, const Tensors& got) {
    const Tensors expected = schedule.packet(i);
    require(got.size() == expected.size(), concat("number of tensors of packet ", i));
    for (size_t j = 0; j < got.size(); ++j) require(same(got[j], expected[j]), concat("tensor ", j, " of packet ", i));
  };
  const auto receive = [&] {
    const int i = due.front();
    due.pop_front();
    held.emplace_back(i, channels.receive(schedule.from(i), concat("packet ", i)));
    check(i, held.back().second);
  };
  for (int i = 0; i < num_packets; ++i) {
    if (schedule.from(i) == group.rank()) channels.send(schedule.to(i), schedule.packet(i), concat("packet ", i));
    if (schedule.to(i) == group.rank()) due.push_back(i);
    const uint64_t dice = random_bits(schedule.seed, i, group.rank(), 4);
    while (due.size() > dice % 7) receive();
    if (held.size() > dice / 7 % 5) {
      check(held.front().first, held.front().second);  // Nobody may have written over it.
      held.erase(held.begin());
    }
  }
  while (!due.empty()) receive();
  channels.flush();
}

TEST_CASE("random schedules, with much, little and no shared memory") {
  for (const char* backend : kBackends)
    for (int num_ranks = 2; num_ranks <= 5; ++num_ranks)
      for (const int64_t shared_bytes : {int64_t{0}, int64_t{100'000}, int64_t{1} << 28}) {
        if (backend != kBackends[0] && (shared_bytes > 0 || num_ranks == 3)) continue;
        const Schedule schedule{static_cast<uint64_t>(num_ranks * 10 + shared_bytes % 7), num_ranks};
        run_thread_ranks(num_ranks, [&](Group& group) { run_schedule(group, schedule, 100, shared_bytes); }, over(backend));
      }
}

TEST_CASE("ranks that send to each other before they receive do not wait for each other") {
  for (const char* backend : kBackends) {
    std::barrier all_sent(3);
    run_thread_ranks(
        3,
        [&](Group& group) {
          constexpr int64_t kCount = 3'000'001;
          TensorChannels channels(group, {.shared_bytes = 5'000'000});
          for (int packet = 0; packet < 3; ++packet)
            for (const int peer : {0, 1, 2})
              if (peer != group.rank()) channels.send(peer, {torch::full({kCount}, group.rank() * 10 + packet, torch::kByte)}, "large");
          all_sent.arrive_and_wait();
          // Held: the limit is on what is unread, so a receiver may keep everything.
          std::vector<Tensors> held;
          for (int packet = 0; packet < 3; ++packet)
            for (const int peer : {2, 1, 0}) {
              if (peer == group.rank()) continue;
              held.push_back(channels.receive(peer, "large"));
              require(held.back()[0].eq(peer * 10 + packet).all().item<bool>(), "a large packet");
            }
          channels.flush();
          require(channels.sent_bytes() == 6 * kCount, "sent_bytes");
        },
        over(backend));
  }
}

TEST_CASE("more packets than slots wait their turn in order, and ready() tells of them") {
  for (const char* backend : kBackends) {
    std::barrier step(2);
    const int num_packets = backend == kBackends[0] ? 600 : 60;
    run_thread_ranks(
        2,
        [&](Group& group) {
          TensorChannels channels(group);
          if (group.rank() == 0) {
            step.arrive_and_wait();
            for (int i = 0; i < num_packets; ++i) channels.send(1, {torch::tensor(i)}, concat("packet ", i));
            channels.flush();
            require(channels.waited_seconds() > 0, "the flush waited");
          } else {
            require(!channels.ready(0), "nothing was sent");
            step.arrive_and_wait();
            while (!channels.ready(0)) std::this_thread::yield();
            require(channels.waited_seconds() == 0, "ready() does not wait");
            for (int i = 0; i < num_packets; ++i) require(channels.receive(0, "number")[0].item<int64_t>() == i, concat("packet ", i));
            require(!channels.ready(0), "all were received");
          }
        },
        over(backend));
  }
}

TEST_CASE("tensors outlive the channels and the group, and end in any thread") {
  for (const char* backend : kBackends) {
    std::vector<Tensors> kept(4);
    run_thread_ranks(
        2,
        [&](Group& group) {
          const auto rank = static_cast<size_t>(group.rank());
          TensorChannels channels(group);
          for (const uint64_t key : {1u, 2u}) channels.send(1 - group.rank(), {bytes_of(key + rank, 100'003), torch::tensor(7)}, "kept");
          for (const size_t i : {0u, 1u}) kept[2 * rank + i] = channels.receive(1 - group.rank(), "kept");
          channels.send(1 - group.rank(), {bytes_of(9, 50'000)}, "never asked for");
        },
        over(backend));
    std::thread([&] {
      for (size_t rank : {0u, 1u})
        for (size_t i : {0u, 1u}) CHECK(same(kept[2 * rank + i][0], bytes_of(1 + i + (1 - rank), 100'003)));
      kept[1].pop_back();
      kept[2].erase(kept[2].begin());
      CHECK(kept[2][0].item<int64_t>() == 7);
    }).join();
    CHECK(same(kept[1][0], bytes_of(3, 100'003)));
    kept.clear();
  }
}

TEST_CASE("blocks come back while their users end in other threads, and are used again") {
  run_thread_ranks(
      2,
      [](Group& group) {
        TensorChannels channels(group);
        std::set<const void*> places;
        std::atomic<int> num_ended{0};
        std::vector<std::thread> threads;
        for (int i = 0; i < 200; ++i) {
          // Neighbours in size share blocks.
          channels.send(1 - group.rank(), {bytes_of(static_cast<uint64_t>(i), 300'000 + i)}, "block");
          Tensors got = channels.receive(1 - group.rank(), "block");
          require(same(got[0], bytes_of(static_cast<uint64_t>(i), 300'000 + i)), concat("packet ", i));
          places.insert(got[0].data_ptr());
          if (i % 20 == 0)
            threads.emplace_back([held = std::move(got), &num_ended]() mutable {
              held.clear();
              ++num_ended;
            });
        }
        for (std::thread& thread : threads) thread.join();
        require(num_ended == 10, "threads");
        require(places.size() <= 20, concat(places.size(), " places for 200 packets, of which few are held at a time"));
      },
      over("shm"));
}

TEST_CASE("channels one after the other in one group, and its collectives between them") {
  for (const char* backend : kBackends)
    run_thread_ranks(
        3,
        [](Group& group) {
          for (int round = 0; round < 3; ++round) {
            {
              TensorChannels channels(group);
              channels.send((group.rank() + 1) % 3, {torch::tensor(10 * round + group.rank())}, "round");
              const int from = (group.rank() + 2) % 3;
              require(channels.receive(from, "round")[0].item<int64_t>() == 10 * round + from, "round");
            }
            at::Tensor ones = torch::ones({5});
            group.all_reduce(ones, Reduction::kSum, "ones");
            require(ones.eq(3).all().item<bool>(), "a sum between channels");
          }
        },
        over(backend));
}

TEST_CASE("what cannot be handed over is refused with the reason") {
  TensorChannels alone{Group()};
  alone.send(0, {torch::ones({2})}, "a note");
  CHECK(alone.ready(0));
  CHECK(alone.receive(0, "a note")[0].eq(1).all().item<bool>());
  CHECK(!alone.ready(0));
  alone.flush();
  CHECK(error_of([&] { alone.receive(0, "a note"); }) == "receive of a note: rank 0 has sent itself nothing, so the wait would not end");
  CHECK(error_of([&] { alone.send(1, {}, "a note"); }) == "send of a note: there is no rank 1 in a group of 1");
  CHECK(error_of([&] { alone.send(0, {torch::ones({2}), torch::ones({2, 2}).to_sparse()}, "a note"); }).find("of a note: tensor 1 (") !=
        std::string::npos);
  CHECK(error_of([] { TensorChannels(Group(), {.shared_bytes = -1}); }).find("-1 bytes") != std::string::npos);
}

TEST_CASE("a rank that sends nothing is an error within the time-out, and of every later call") {
  for (const char* backend : {"shm", "gloo"})
    run_thread_ranks(
        2,
        [](Group& group) {
          TensorChannels channels(group);
          if (group.rank() == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(600));
          const std::string first = error_of([&] { channels.receive(1, "the activations of step 3"); });
          const std::string later = error_of([&] { channels.send(1, {}, "more"); });
          require(first.find("the receive of the activations of step 3 from rank 1 failed on rank 0 of 2: ") == 0, first);
          require(first.find("rank 1 sent nothing within 0.4 s") != std::string::npos, first);
          require(later.find("the send of more to rank 1 was not run, because a hand-over failed before: the receive of the") == 0, later);
        },
        over(backend, 0.4));
}

/// Forked ranks, of which rank 1 does `act` after both have exchanged a packet; the error that rank 0 then gets.
std::string survivor_says(const char* backend, double timeout_seconds, const std::function<void()>& act,
                          const std::function<void(TensorChannels&)>& use) {
  constexpr size_t kText = 4096;
  auto* const text = static_cast<char*>(::mmap(nullptr, kText, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const int store = ::memfd_create("store", 0);
  const std::string path = concat("/proc/", ::getpid(), "/fd/", store);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < 2; ++rank) {
    pids.push_back(::fork());
    if (pids.back() != 0) continue;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const std::string said = error_of([&] {
      Group group =
          Group::create(c10::make_intrusive<c10d::FileStore>(path, 2), rank, 2, {.backend = backend, .timeout_seconds = timeout_seconds});
      TensorChannels channels(group, {.shared_bytes = 1000});
      channels.send(1 - rank, {torch::ones({1000})}, "the first");
      channels.receive(1 - rank, "the first");
      channels.flush();
      // Gloo sends when it comes to it: rank 1 ends when its packet is there.
      std::atomic_ref<char> has_all(text[kText - 1]);
      if (rank == 0) has_all = 1;
      while (!has_all) ::usleep(1000);
      rank == 1 ? act() : use(channels);
    });
    if (rank == 0) std::strncpy(text, said.c_str(), kText - 2);
    ::_exit(0);
  }
  ::waitpid(pids[0], nullptr, 0);
  ::kill(pids[1], SIGKILL);
  ::waitpid(pids[1], nullptr, 0);
  const std::string out = text;
  ::munmap(text, kText);
  ::close(store);
  return out;
}

TEST_CASE("a rank that is killed or stopped is named by who waits for it, with what it waits for") {
  const auto receive = [](TensorChannels& channels) { channels.receive(1, "activations 7"); };
  const auto fill = [](TensorChannels& channels) {
    for (int i = 0; i < 100; ++i) channels.send(1, {torch::ones({100'000})}, concat("gradients ", i));
    channels.flush();
  };
  for (const char* backend : kBackends) {
    const auto expect = [&](const std::string& said, const std::string& part) {
      CHECK_MESSAGE(said.find(part) != std::string::npos, said);
    };
    const std::string killed = survivor_says(backend, 20, [] { ::raise(SIGKILL); }, receive);
    expect(killed, "the receive of activations 7 from rank 1 failed on rank 0 of 2: rank 1 (pid ");
    expect(killed, ") has ended");
    if (backend == kBackends[2]) continue;
    const std::string stopped = survivor_says(backend, 0.6, [] { ::raise(SIGSTOP); }, receive);
    expect(stopped, "the receive of activations 7 from rank 1 failed on rank 0 of 2: rank 1 (pid ");
    expect(stopped, ") is stopped");
    expect(survivor_says(backend, 20, [] { ::raise(SIGKILL); }, fill), ") has ended");
  }
}

}  // namespace
}  // namespace cohort
