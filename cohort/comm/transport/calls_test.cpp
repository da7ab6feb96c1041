#include "cohort/comm/transport/calls.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

Signature sum_of(const char* name, uint64_t count, uint64_t sequence = 7) {
  Call call;
  call.op = Op::kAllReduce;
  call.type = at::kFloat;
  call.count = count;
  call.name = name;
  call.sequence = sequence;
  return signature_of(call);
}

std::string text_of(const std::vector<Signature>& signatures) {
  try {
    check_signatures(signatures.data(), static_cast<int>(signatures.size()), "world");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kFailed);
    return error.what();
  }
  return "";
}

TEST_CASE("signatures hold what ranks must agree on and nothing else") {
  Call call;
  call.op = Op::kBroadcast;
  call.root = 3;
  call.reduction = Reduction::kMax;
  call.count = 5;
  call.name = "a name of a parameter that is longer than the room for it";
  const Signature signature = signature_of(call);
  CHECK(signature.reduction == Reduction::kSum);
  CHECK(signature.root == 3);
  CHECK(std::string(signature.name) == "a name of a parameter that is...");
  call.op = Op::kAllGather;
  CHECK(signature_of(call).root == 0);
  call.op = Op::kBarrier;
  CHECK(describe(signature_of(call)) == "barrier #0 of a name of a parameter that is...");
  call = {};
  call.op = Op::kAllToAll;
  call.send_counts = call.receive_counts = {1, 2};
  CHECK(describe(signature_of(call)) == "all-to-all #0 (uneven Byte)");
  CHECK(describe(sum_of("conv1.weight", 100)) == "all-reduce #7 of conv1.weight (100 Float, sum)");
  CHECK(describe_ranks({4}) == "rank 4");
  CHECK(describe_ranks({0, 2}) == "ranks 0 and 2");
  CHECK(describe_ranks({0, 2, 5}) == "ranks 0, 2 and 5");
}

TEST_CASE("a name that is too long is cut between words, the path of a tensor at its beginning") {
  const auto name = [](const std::string& whole) {
    char room[sizeof Signature::name];
    copy_name(room, whole.c_str());
    return std::string(room);
  };
  CHECK(name(std::string(39, 'x')) == std::string(39, 'x'));
  CHECK(name("gradient bucket 0 of 2 (conv1.weight)!!") == "gradient bucket 0 of 2 (conv1.weight)!!");
  CHECK(name("gradient bucket 3 of 12 (encoder.layer.11.query.weight, 400 bytes)") == "gradient bucket 3 of 12 (encoder...)");
  CHECK(name("gradient bucket 0 of 1 (0.weight ... 2.bias, 400 bytes)") == "gradient bucket 0 of 1 (0.weight...)");
  CHECK(name("the ranks that have left (two) are waited for still") == "the ranks that have left (two) are...");
  CHECK(name("transformer.encoder.layers.11.attention.query.weight") == "...layers.11.attention.query.weight");
  CHECK(name(std::string(50, 'x')) == "..." + std::string(36, 'x'));
  CHECK(name("two " + std::string(50, 'x')) == "two " + std::string(31, 'x') + "...");
  CHECK(name("two " + std::string(30, 'x') + "\xc3\xa4\xc3\xa4\xc3\xa4") == "two " + std::string(30, 'x') + "...");
}

TEST_CASE("equal calls pass, names are compared only where both ranks gave one") {
  CHECK(text_of({sum_of("a", 5), sum_of("a", 5), sum_of("a", 5)}) == "");
  CHECK(text_of({sum_of("", 5), sum_of("a", 5), sum_of("", 5)}) == "");
  CHECK(text_of({sum_of("", 5), sum_of("a", 5), sum_of("b", 5)}).find("all-reduce #7 of b") != std::string::npos);
}

TEST_CASE("the minority is named with both calls and what to look for") {
  CHECK(
      text_of({sum_of("conv2.weight", 200), sum_of("conv2.weight", 200), sum_of("conv1.weight", 100)}) ==
      "the ranks of group world do not make the same call: rank 2 calls all-reduce #7 of conv1.weight (100 Float, sum), the other ranks "
      "all-reduce #7 of conv2.weight (200 Float, sum); rank 2 probably skipped a call or made one more: look for a branch that depends on "
      "the rank or on its data");
  CHECK(text_of({sum_of("a", 5), sum_of("a", 5), sum_of("a", 6)}).find("rank 2 has another shape") != std::string::npos);
  Signature half = sum_of("a", 5);
  half.type = static_cast<int8_t>(at::kHalf);
  CHECK(text_of({sum_of("a", 5), half, sum_of("a", 5)}).find("rank 1 uses another data type") != std::string::npos);
  Signature maximum = sum_of("a", 5);
  maximum.reduction = Reduction::kMax;
  CHECK(text_of({maximum, sum_of("a", 5), sum_of("a", 5)}).find("rank 0 asks for another reduction") != std::string::npos);
  // Two ranks: nobody is the minority.
  const std::string two = text_of({sum_of("a", 5), sum_of("b", 5)});
  CHECK(two.find("rank 0 calls all-reduce #7 of a") != std::string::npos);
  CHECK(two.find("rank 1 all-reduce #7 of b") != std::string::npos);
  CHECK(two.find("one of them probably skipped") != std::string::npos);
  // Three parties.
  const std::string three = text_of({sum_of("a", 5), sum_of("b", 5), sum_of("c", 5), sum_of("c", 5)});
  CHECK(three.find("rank 0 calls") != std::string::npos);
  CHECK(three.find("rank 1 calls") != std::string::npos);
  CHECK(three.find("ranks 2 and 3 all-reduce #7 of c") != std::string::npos);
}

}  // namespace
}  // namespace cohort
