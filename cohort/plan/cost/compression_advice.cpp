#include "cohort/plan/cost/compression_advice.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr double kWorthwhile = 0.95;  // Share of the step now; a smaller gain is not worth the loss.

/// Whether it rounds every gradient slightly, instead of delaying most of them.
bool is_mild(const std::string& compress) { return compress == "fp16" || compress == "bf16" || compress == "int8"; }

std::string human_bits(double bytes_per_second) {
  const double megabits = bytes_per_second * 8e-6;
  const bool giga = megabits >= 1000;
  const double value = giga ? megabits / 1000 : megabits;
  return concat(value < 9.95 ? std::round(value * 10) / 10 : std::round(value), giga ? " Gbit/s" : " Mbit/s");
}

/// Compares a compression in use with none and with the others.
std::string sentence_in_use(const StepMeasurement& step, const LinkEstimate& link, const std::vector<AdviceRecord::Row>& rows) {
  const double without = rows.front().predicted_step_seconds;
  const AdviceRecord::Row* best = nullptr;
  for (const AdviceRecord::Row& row : rows)
    if (row.compress != "none" && row.compress != step.compress && is_mild(row.compress) &&
        (!best || row.predicted_step_seconds < best->predicted_step_seconds))
      best = &row;
  const std::string place = link.bytes_per_second > 0 ? concat(" on this link (", human_bits(link.bytes_per_second), ")") : "";
  const std::string now = human_seconds(step.step_seconds), predicted = human_seconds(without);
  if (without < kWorthwhile * step.step_seconds)
    return concat("compress=", step.compress, " does not pay", place, ": predicted step ", predicted, " without it, against ", now, " now");
  std::string out =
      step.step_seconds < kWorthwhile * without
          ? concat("compress=", step.compress, " pays", place, ": ", now, " a step, against a predicted ", predicted, " without it")
          : concat("compress=", step.compress, " changes little", place, ": ", now, " a step, a predicted ", predicted,
                   " without it and without its rounding");
  if (best && best->predicted_step_seconds < kWorthwhile * step.step_seconds)
    out += concat("; predicted with ", best->compress, " ", human_seconds(best->predicted_step_seconds));
  return out;
}

const AdviceRecord::Row* best_of(const std::vector<AdviceRecord::Row>& rows, bool mild) {
  const AdviceRecord::Row* best = nullptr;
  for (const AdviceRecord::Row& row : rows) {
    if (row.compress == "none" || is_mild(row.compress) != mild) continue;
    if (!best || row.predicted_step_seconds < best->predicted_step_seconds) best = &row;
  }
  return best;
}

std::string sentence_for(const StepMeasurement& step, const LinkEstimate& link, const std::vector<AdviceRecord::Row>& rows) {
  const AdviceRecord::Row *mild = best_of(rows, true), *strong = best_of(rows, false);
  const auto better = [](const AdviceRecord::Row* row, double than) { return row && row->predicted_step_seconds < kWorthwhile * than; };
  const auto seconds = [](const AdviceRecord::Row* row) { return human_seconds(row->predicted_step_seconds); };
  const std::string place = concat(" would pay on this link (", human_bits(link.bytes_per_second), "): predicted step ");
  const std::string now = concat(" against ", human_seconds(step.step_seconds), " now"), loss = ", at some loss of convergence speed";
  if (link.bytes_per_second <= 0) return "compression does not pay here: one rank exchanges nothing";
  if (step.compress != "none") return sentence_in_use(step, link, rows);
  if (better(mild, step.step_seconds)) {
    const bool both = better(strong, mild->predicted_step_seconds);
    return concat("compress=", mild->compress, place, seconds(mild), now,
                  both ? concat("; ", strong->compress, " ", seconds(strong), loss) : "");
  }
  if (better(strong, step.step_seconds)) return concat("compress=", strong->compress, place, seconds(strong), now, loss);
  const AdviceRecord::Row* least = mild ? mild : strong;
  return concat("compression does not pay here: the exchange shows for ", human_seconds(step.exposed_seconds), " of ",
                human_seconds(step.step_seconds),
                least ? concat(", and compressing ", human_bytes(rows.front().sent_bytes), " to ", human_bytes(least->sent_bytes), " with ",
                               least->compress, " alone would take ", human_seconds(least->compress_seconds))
                      : "");
}

}  // namespace

AdviceRecord advise(const StepMeasurement& step, const LinkEstimate& link, const std::vector<CompressionCost>& costs) {
  if (costs.empty() || costs.front().compress != "none") fail(ErrorCode::kBadInput, "advice on compression: the first row must be none");
  const auto on_link = [&](const CompressionCost& cost) { return link.seconds(cost.exchange.sent_bytes, cost.exchange.num_exchanges); };
  const auto now = std::find_if(costs.begin(), costs.end(), [&](const CompressionCost& cost) { return cost.compress == step.compress; });
  if (now == costs.end()) fail(ErrorCode::kBadInput, "advice on compression: no row is of compress=", step.compress, ", which is in use");
  const double shown = std::max(0.0, step.exposed_seconds - now->compress_seconds), on_link_now = on_link(*now);
  const double hidden = std::max(0.0, on_link_now - shown), waiting = std::max(0.0, shown - on_link_now);
  AdviceRecord advice;
  for (const CompressionCost& cost : costs)
    advice.rows.push_back({cost.compress,
                           cost.compress == step.compress ? step.step_seconds
                                                          : step.step_seconds - step.exposed_seconds + waiting + cost.compress_seconds +
                                                                std::max(0.0, on_link(cost) - hidden),
                           cost.exchange.sent_bytes, cost.compress_seconds});
  advice.sentence = sentence_for(step, link, advice.rows);
  return advice;
}

}  // namespace cohort
