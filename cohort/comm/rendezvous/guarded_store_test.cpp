#include "cohort/comm/rendezvous/guarded_store.h"

#include <doctest/doctest.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

using Bytes = std::vector<uint8_t>;

const std::string kSecret = "0123456789abcdef", kOther = "0123456789abcdeg";

Bytes bytes(const std::string& text) { return {text.begin(), text.end()}; }

/// Records requests, as a server of the store sees them.
class Glass : public c10d::HashStore {
 public:
  std::map<std::string, Bytes> entries;
  using Store::set;
  void set(const std::string& key, const Bytes& value) override {
    entries[key] = value;
    HashStore::set(key, value);
  }
};

TEST_CASE("a sealed store gives back what ranks of the job put there, of any length") {
  auto store = c10::make_intrusive<Glass>();
  SealedStore one(store, kSecret), two(store, kSecret);
  for (const size_t length : {0, 1, 31, 32, 33, 64, 1000}) {
    Bytes value(length);
    for (size_t i = 0; i < length; ++i) value[i] = static_cast<uint8_t>(i * 7);
    one.set(concat("key ", length), value);
    CHECK(two.get(concat("key ", length)) == value);
  }
  CHECK(one.check({"key 1"}));
  CHECK(one.add("counter", 3) == 3);
  CHECK(two.add("counter", 4) == 7);
  CHECK(two.clone()->get("key 31") == one.get("key 31"));
  CHECK(one.deleteKey("key 1"));
  CHECK_FALSE(two.check({"key 1"}));
}

TEST_CASE("whoever serves the store reads nothing, and equal values look different") {
  auto store = c10::make_intrusive<Glass>();
  SealedStore sealed(store, kSecret);
  const std::string value = "10.0.0.1 29500 and a token";
  sealed.set("a", bytes(value));
  sealed.set("b", bytes(value));
  REQUIRE(store->entries.size() == 2);
  std::vector<Bytes> seen;
  for (const auto& [key, entry] : store->entries) {
    seen.push_back(entry);
    for (size_t at = 0; at + 4 <= value.size(); ++at)
      CHECK(std::string(entry.begin(), entry.end()).find(value.substr(at, 4)) == std::string::npos);
  }
  CHECK(Bytes(seen[0].begin() + 16, seen[0].begin() + 20) != Bytes(seen[1].begin() + 16, seen[1].begin() + 20));
}

TEST_CASE("what a stranger writes is refused: any changed bit, another key's value, another secret's, a short one") {
  auto store = c10::make_intrusive<Glass>();
  SealedStore sealed(store, kSecret);
  sealed.set("a", bytes("the value"));
  sealed.set("b", bytes("the value"));
  const auto name_of = [&](const std::string& key) {
    for (const auto& [name, entry] : store->entries)
      if (name.ends_with("/" + key)) return name;
    return std::string();
  };
  const std::string name = name_of("a");
  const Bytes good = store->entries.at(name);
  const auto refused = [&](const Bytes& entry) {
    store->set(name, entry);
    try {
      sealed.get("a");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kEnvironment);
      return std::string(error.what()).find("entry 'a' was not written by a rank of this job") != std::string::npos;
    }
    return false;
  };
  for (size_t i = 0; i < good.size(); ++i) {
    Bytes changed = good;
    changed[i] ^= 1;
    CHECK(refused(changed));
  }
  CHECK(refused({}));
  CHECK(refused(bytes("10.6.6.6 1 x")));
  CHECK(refused(Bytes(good.begin(), good.end() - 1)));
  CHECK(refused(store->entries.at(name_of("b"))));
  store->set(name, good);
  CHECK(sealed.get("a") == bytes("the value"));
  SealedStore other(store, kOther);
  CHECK_FALSE(other.check({"a"}));
}

TEST_CASE("ranks with different tokens get an error at once, from the rank that has the wrong one") {
  const auto told = [](const std::string& rank_0, const std::string& rank_1) -> std::string {
    auto store = c10::make_intrusive<c10d::HashStore>();
    check_same_secret(*store, 0, rank_0, "10.0.0.1:29500");
    try {
      check_same_secret(*store, 1, rank_1, "10.0.0.1:29500");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kEnvironment);
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
      CHECK(std::string(error.what()).find(rank_0.empty() ? rank_1 : rank_0) == std::string::npos);  // No message shows a token.
      return error.what();
    }
    return "";
  };
  CHECK(told(kSecret, kSecret).empty());
  CHECK(told("", "").empty());
  CHECK(told(kSecret, kOther).find("the token of rank 1 is not that of the job at 10.0.0.1:29500") != std::string::npos);
  CHECK(told(kSecret, "").find("rank 1 has no token, and the job at 10.0.0.1:29500 asks for one") != std::string::npos);
  CHECK(told("", kSecret).find("rank 0 of the job at 10.0.0.1:29500 has none") != std::string::npos);
}

TEST_CASE("a rank that waits in vain learns that another was turned away, where one was") {
  auto store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(std::chrono::milliseconds(50));
  check_same_secret(*store, 0, kSecret, "10.0.0.1:29500");
  SealedStore sealed(store, kSecret);
  const auto told = [&]() -> std::string {
    try {
      sealed.get("cohort/peer/1");
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  };
  CHECK(told().find("turned away") == std::string::npos);
  check_same_secret(*store, 2, kSecret, "10.0.0.1:29500");
  CHECK(told().find("turned away") == std::string::npos);
  CHECK_THROWS_AS(check_same_secret(*store, 1, kOther, "10.0.0.1:29500"), Error);
  CHECK(told().find("one was turned away because its token is another than this job's") != std::string::npos);
}

}  // namespace
}  // namespace cohort
