#include "cohort/study/archive/published.h"

#include <map>

namespace cohort::study {

int64_t published_num_trials(const StudyData& study) {
  const bool has_50 = study.dataset == "common_crawl" || (study.dataset == "lm1b" && study.model == "lstm") ||
                      (study.dataset == "lm1b" && study.model == "transformer_shallow" && study.optimizer == "sgd");
  return has_50 ? 50 : 100;
}

int64_t published_num_train_samples(const std::string& dataset) {
  static const std::map<std::string, int64_t> sizes = {{"mnist", 55'000},
                                                       {"mnist_6875", 6'875},
                                                       {"mnist_13750", 13'750},
                                                       {"mnist_27500", 27'500},
                                                       {"mnist_solution_quality", 55'000},
                                                       {"fashion_mnist_solution_quality", 55'000},
                                                       {"imagenet_half_images", 640'583},
                                                       {"mnist_55000", 55'000},
                                                       {"fashion_mnist", 55'000},
                                                       {"cifar_10", 45'000},
                                                       {"imagenet", 1'281'167},
                                                       {"open_images_v4", 4'526'492},
                                                       {"lm1b", 30'301'028}};
  const auto found = sizes.find(dataset);
  return found == sizes.end() ? 0 : found->second;
}

std::vector<GoalSpec> published_goals(const std::string& dataset, const std::string& model) {
  const auto errors = [](std::initializer_list<double> values) {
    std::vector<GoalSpec> goals;
    for (const double value : values) goals.push_back({kValError, value});
    return goals;
  };
  const auto losses = [](std::initializer_list<double> values) {
    std::vector<GoalSpec> goals;
    for (const double value : values) goals.push_back({kValLoss, value});
    return goals;
  };
  if (dataset == "mnist" && model.starts_with("fc_")) return errors({0.03});
  if (dataset == "mnist" && model.starts_with("simple_cnn")) return errors({0.01, 0.03});  // 0.03: beside fully connected models.
  if (dataset == "mnist_solution_quality") return errors({0.01});
  if (dataset == "mnist_6875" || dataset == "mnist_13750" || dataset == "mnist_27500" || dataset == "mnist_55000") return errors({0.02});
  if (dataset == "fashion_mnist" || dataset == "fashion_mnist_solution_quality") return errors({0.1});
  if (dataset == "cifar_10") return errors({0.3});
  if (dataset == "imagenet" && model == "resnet_50") return errors({0.25, 0.3, 0.35});  // 0.3: beside its halves; 0.35: beside VGG-11.
  if (dataset == "imagenet" && model == "vgg_11") return errors({0.35});
  if (dataset == "imagenet_half_images" || dataset == "imagenet_half_classes") return errors({0.3});
  if (dataset == "open_images_v4") return {{kValPrecision, 0.31}};
  if (dataset == "lm1b" && (model == "transformer_wide" || model == "transformer_narrow_and_shallow")) return losses({4.2});
  if (dataset == "lm1b" && model == "lstm") return losses({3.9});
  if (dataset == "lm1b") return losses({3.9, 4.2});  // 4.2: beside other sizes.
  if (dataset == "common_crawl") return losses({3.9});
  return {};
}

}  // namespace cohort::study
