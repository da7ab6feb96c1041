#include "cohort/job/specs/devices.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "cohort/base/error.h"
#include "cohort/job/config.h"
#include "cohort/job/job.h"
#include "cohort/job/refusals.h"

namespace cohort {
namespace {

TEST_CASE("devices: one for all, or one a rank") {
  CHECK(parse_devices("cpu").all_cpu());
  const Devices one = parse_devices("cuda:2");
  CHECK(!one.is_list());
  CHECK(one.of(5).index == 2);
  const Devices mixed = parse_devices("cuda:0, cpu,cuda");
  CHECK(mixed.is_list());
  CHECK(!mixed.all_cpu());
  CHECK(mixed.any_cpu());
  CHECK(to_text(mixed.of(0)) == "cuda:0");
  CHECK(to_text(mixed.of(1)) == "cpu");
  CHECK(to_text(mixed.of(2)) == "cuda");
  CHECK(parse_devices("cpu,cpu").all_cpu());
  CHECK(first_devices("cuda:0,cpu,cpu", 2) == "cuda:0,cpu");
  CHECK(first_devices("cuda:0,cpu,cpu", 1) == "cuda:0");
  CHECK(first_devices("cuda", 2) == "cuda");
}

TEST_CASE("devices: a list of cpu is cpu to the run that is kept, and is still one entry a rank") {
  Config config;
  config.device = "cpu,cpu";
  const Job job = resolve(config, 2);
  CHECK(job.config.device == "cpu");
  CHECK(job.devices.is_list());
  config.device = "cuda:0,cpu";
  CHECK(resolve(config, 2).config.device == "cuda:0,cpu");
}

TEST_CASE("devices: what is none is refused with the entry that is wrong") {
  for (const auto& [text, says] :
       std::vector<std::pair<std::string, std::string>>{{"gpu", "did you mean 'cuda'?"},
                                                        {"cuda:0,cpux", "'cpux' is not a device (did you mean 'cpu'?)"},
                                                        {"cuda:", "no whole number after 'cuda:'"},
                                                        {"cuda:-1", "no whole number after 'cuda:'"},
                                                        {"cuda:0x1,cpu", "'cuda:0x1' has no whole number"},
                                                        {"cuda:128", "a host has no GPU 128"},
                                                        {"cpu,,cpu", "'' is not a device"},
                                                        {"cpu,", "is not a device"},
                                                        {"rocm", "cuda:0,cpu,cpu"}}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(parse_devices(text), doctest::Contains(says.c_str()), Error);
  }
  std::string many = "cpu";
  for (int i = 0; i < 5000; ++i) many += ",cpu";
  CHECK_THROWS_WITH_AS(parse_devices(many), doctest::Contains("5001 entries"), Error);
}

TEST_CASE("devices: a list has one entry a rank") {
  parse_devices("cuda").check(7);
  parse_devices("cuda:0,cpu,cpu").check(3);
  CHECK_THROWS_WITH_AS(parse_devices("cuda:0,cpu,cpu").check(2), doctest::Contains("3 entries, and there are 2 ranks"), Error);
  CHECK_THROWS_WITH_AS(parse_devices("cpu,cpu").check(1), doctest::Contains("2 entries, and there is 1 rank"), Error);
}

TEST_CASE("devices: ranks without a number take the GPUs that nobody names, in turn") {
  const auto gpus = [](const char* text, int ranks, int num_gpus) {
    const Devices devices = parse_devices(text);
    std::vector<int> out;
    for (int rank = 0; rank < ranks; ++rank) out.push_back(devices.of(rank).is_gpu ? gpu_of_rank(devices, rank, 0, ranks, num_gpus) : -1);
    return out;
  };
  CHECK(gpus("cuda", 3, 2) == std::vector{0, 1, 0});
  CHECK(gpus("cuda:1", 3, 2) == std::vector{1, 1, 1});
  CHECK(gpus("cuda,cpu,cuda", 3, 2) == std::vector{0, -1, 1});
  CHECK(gpus("cuda:1,cuda,cpu,cuda", 4, 3) == std::vector{1, 0, -1, 2});
  CHECK(gpus("cuda:0,cuda", 2, 1) == std::vector{0, 0});
  // The second of two hosts begins anew.
  const Devices two_hosts = parse_devices("cuda,cuda,cuda,cuda");
  CHECK(gpu_of_rank(two_hosts, 2, 2, 2, 2) == 0);
  CHECK(gpu_of_rank(two_hosts, 3, 2, 2, 2) == 1);
}

TEST_CASE("devices: a mixed job is refused what a GPU is refused, and NCCL") {
  const auto refused = [](const char* device, const char* layout, const char* backend) {
    Config config;
    config.device = device, config.layout = layout, config.backend = backend;
    return refusal_of(resolve(config, 2).situation(false)).value_or("");
  };
  CHECK(refused("cuda:0,cpu", "pp=2", "auto").find("--device cuda:0,cpu with pp") != std::string::npos);
  CHECK(refused("cuda:0,cpu", "tp=2", "auto").find("with tp") != std::string::npos);
  CHECK(refused("cuda:0,cpu", "dp=2,compress=int8", "auto").find("compress=int8") != std::string::npos);
  CHECK(refused("cuda:0,cpu", "dp", "nccl").find("--backend nccl") != std::string::npos);
  for (const char* layout : {"dp", "dp=2,zero=1", "dp=2,zero=3"}) CHECK(refused("cuda:0,cpu", layout, "auto") == "");
  CHECK(refused("cuda:0,cuda:1", "dp", "nccl") == "");
  CHECK(refused("cpu,cpu", "pp=2", "auto") == "");
}

}  // namespace
}  // namespace cohort
