#include "cohort/infer/exported.h"

#include <optional>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/data/source/description_json.h"
#include "cohort/infer/trained_data.h"
#include "cohort/infer/trained_file.h"
#include "cohort/version.h"

namespace cohort {

std::map<std::string, std::string> exported_metadata(const Checkpoint& checkpoint) {
  if (!checkpoint.state().is_object() || !checkpoint.state().contains("config")) return {};
  return exported_metadata(TrainedFile::of(checkpoint));
}

std::map<std::string, std::string> exported_metadata(const TrainedFile& file) {
  Config config = file.config();
  config.resume = false;  // However often it went on, the file is the same.
  std::map<std::string, std::string> metadata = {{exported::kModel, file.config().model},
                                                 {exported::kConfig, to_toml(config)},
                                                 {exported::kPrecision, file.config().precision},
                                                 {exported::kVersion, COHORT_VERSION},
                                                 {exported::kEvaluation, file.evaluation().dump()}};
  try {
    metadata[exported::kData] = to_json(description_of(file)).dump();
  } catch (const Error& error) {
    log_warning(
        concat("the file will not say what the data of the training were like, so cohort can not use it without them: ", error.what()));
  }
  if (!file.fingerprint().empty()) metadata[exported::kFingerprint] = file.fingerprint();
  if (file.val_loss()) metadata[exported::kValLoss] = Json(*file.val_loss()).dump();
  if (file.val_error()) metadata[exported::kValError] = Json(*file.val_error()).dump();
  return metadata;
}

}  // namespace cohort
