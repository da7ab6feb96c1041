#pragma once
// Reductions over a network, in rank order: x0 o x1 o x2 ..., whatever the size, so all ranks and all runs agree bitwise.
//
// Steps for p ranks and n bytes:
//   all-reduce, small (up to kSmallBytes): 1. every rank gathers all p arrays; 2. reduces them in rank order.
//   all-reduce, large: 1. rank r receives slice r of every rank; 2. reduces the p slices in rank order; 3. hands the result to all.
//   reduce: the same, but that step 1 (small) or 3 (large) goes to the root alone.
//   reduce-scatter: steps 1 and 2 of the large all-reduce; the slices are the ranks' pieces.
//
// Cost for a rank: small 1 round, (p-1) n bytes in and out; large 2 rounds, 2 (p-1)/p n in and out, as a ring all-reduce moves in 2 (p-1)
// rounds; scratch n and a slice. Reduce-scatter half of that.
//
// Why: a ring adds each element in an order that depends on its place in the buffer, so results change with bucket boundaries and ranks.
//
// Source: reduce-scatter + all-gather of Rabenseifner 2004, "Optimization of Collective Reduction Operations"; here direct, and the order
// is fixed.

namespace cohort {

struct Call;
class NetworkTransport;

void network_all_reduce(NetworkTransport& network, const Call& call);
void network_reduce(NetworkTransport& network, const Call& call);
void network_reduce_scatter(NetworkTransport& network, const Call& call);

}  // namespace cohort
