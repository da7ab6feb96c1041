#pragma once
// Fallback options where a training does not fit into memory, or only just: each with its forecast. Torch-free.

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/job/config.h"
#include "cohort/plan/search/joint_search.h"

namespace cohort {

/// A variant of the training with other inputs or another model.
struct FallbackVariant {
  std::string options;                    ///< Command-line options: "--context 32".
  std::function<ModelProfile()> profile;  ///< Error(kBadInput) where the variant is invalid.
};
/// Variants of one kind, mildest first; the first that fits is used, otherwise the last.
struct FallbackVariants {
  std::string name;             ///< "shorter context"
  bool is_last_resort = false;  ///< Tried only where no earlier option fits.
  std::vector<FallbackVariant> variants;
};
struct FallbackSources {
  std::vector<FallbackVariants> variants;
  std::string longer;              ///< A context that was asked for ("--context 512"): a note then names both ways to get it.
  std::vector<std::string> notes;  ///< How variants were forecast, or why there are none.
};

struct FallbackOption {
  std::string name;
  std::string options;  ///< Command-line options to add; "": none.
  bool fits = false;
  bool is_same_training = true;    ///< The same model on the same samples, on this cluster.
  std::optional<RankedPlan> plan;  ///< The plan with the least memory where nothing fits. Options without any layout are left out.
  std::optional<double> seconds_to_goal;
  std::string note;
};
struct FallbackOptions {
  std::string constraint;  ///< One sentence on what limits memory.
  std::vector<FallbackOption> rungs;
  std::vector<std::string> notes;
  bool is_stopped = false;  ///< Stopped early; options are missing.

  /// The fastest option that fits and trains the same model on the same samples; null: none.
  const FallbackOption* fastest() const;
};

/// The request with unlimited memory.
SearchRequest without_memory_limits(SearchRequest request);

/// Error(kBadInput) where the first option cannot run: the layout that `request.fixed` gives, or data parallelism over all workers. Each
/// option takes searches of some tenths of a second. Ends early at `stop` (null: none); `look` is called between searches and may set it.
FallbackOptions find_fallback_options(const SearchRequest& request, const FallbackSources& sources, const std::atomic<bool>* stop,
                                      const std::function<void()>& look = {});

std::string fallback_text(const FallbackOptions& ladder);
Json to_json(const FallbackOptions& ladder);  ///< The event of docs/formats/ladder.md.

// The last options: profiles of the model with shorter inputs, and of smaller models. Torch-free.

/// The variants for the model, data, context and image size of `config`. A profile from shapes is computed again for each variant, a
/// measured one is scaled by the ratio that shapes predict. Copies config and request.
FallbackSources ladder_sources(const Config& config, const SearchRequest& request);

}  // namespace cohort
