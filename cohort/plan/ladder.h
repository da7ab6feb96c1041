#pragma once
// What to do where a training does not fit into memory, or only badly: each way out with its forecast. Torch-free.

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

/// The same training with other inputs or another model.
struct LadderVariant {
  std::string options;                    ///< As typed: "--context 32".
  std::function<ModelProfile()> profile;  ///< Error(kBadInput) where there is none.
};
/// Variants of one kind, mildest first: the first that fits is the rung, else the last.
struct LadderVariants {
  std::string name;             ///< "shorter context"
  bool is_last_resort = false;  ///< Looked at only where nothing before fits.
  std::vector<LadderVariant> variants;
};
struct LadderSources {
  std::vector<LadderVariants> variants;
  std::string longer;              ///< "--context 512" where that was asked for: both ways out are said in a sentence.
  std::vector<std::string> notes;  ///< Of how variants were forecast, or why there are none.
};

struct Rung {
  std::string name;
  std::string options;  ///< What to type beside what was typed; "": nothing.
  bool fits = false;
  bool is_same_training = true;    ///< Of the same model on the same samples, here.
  std::optional<RankedPlan> plan;  ///< Where nothing fits, the one with the least memory. Rungs of which there is no layout are left out.
  std::optional<double> seconds_to_goal;
  std::string note;
};
struct Ladder {
  std::string constraint;  ///< What binds: one sentence.
  std::vector<Rung> rungs;
  std::vector<std::string> notes;
  bool is_stopped = false;  ///< Rungs are missing.

  /// The fastest of those that fit and train the same model on the same samples; null: none.
  const Rung* fastest() const;
};

/// The same on devices whose memory has no end.
SearchRequest without_memory_limits(SearchRequest request);

/// Error(kBadInput) where the first rung can not be run. `request`: with its cluster, and in `fixed` what was typed; the first rung is that
/// layout, or data parallelism over all workers. Searches of some tenths of a second each. Ends early at `stop` (null: none); `look` is
/// called between searches, and may set it.
Ladder make_ladder(const SearchRequest& request, const LadderSources& sources, const std::atomic<bool>* stop,
                   const std::function<void()>& look = {});

std::string ladder_text(const Ladder& ladder);
Json to_json(const Ladder& ladder);  ///< The event of docs/formats/ladder.md.

// The last rungs: profiles of the same model with shorter inputs, and of a smaller one. Torch-free.

/// For the model, data, context and image size of `config`. `request` has the profile as it is, and its cluster: one from shapes is made
/// anew, one that was measured is scaled by what shapes say of the difference. Keeps copies.
LadderSources ladder_sources(const Config& config, const SearchRequest& request);

}  // namespace cohort
