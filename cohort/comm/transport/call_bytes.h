#pragma once
// How many bytes a call moves, and whether it can: what every transport asks of a call before it looks at any data.

#include <cstddef>

#include "cohort/comm/transport/transport.h"

namespace cohort {

inline size_t piece_bytes(const Call& call) { return call.count * c10::elementSize(call.type); }
/// Bytes that a rank with this call hands in and gets out; 0 where it does not take part (the input of others than the root of a scatter).
size_t input_bytes(const Call& call, int rank, int size);
size_t output_bytes(const Call& call, int rank, int size);

/// An all-to-all with counts for each rank.
bool is_uneven(const Call& call);

/// Error(kBadInput) for a call that no rank could carry out: a root outside the group, counts for another number of ranks.
void check_call(const Call& call, int size);

}  // namespace cohort
