#pragma once
// For tests: what a program reads that fills a Config. All others read what stands on a command line (tests/doctest_main.cpp).

#include "cohort/base/setting_name.h"

namespace cohort {

/// While it lives, messages name members.
struct MemberNames {
  MemberNames() { settings_are_options(false); }
  ~MemberNames() { settings_are_options(); }
  MemberNames(const MemberNames&) = delete;
  MemberNames& operator=(const MemberNames&) = delete;
};

}  // namespace cohort
