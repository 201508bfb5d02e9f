// How often the fast path's greedy token is not the canonical one: canonical answers are decoded
// first, then the fast path is fed with them, one row a sequence as in serving, and its token at
// each position compared. A share for each model; synthetic ones (common/model/synthetic.h) are
// tuned so that it is that of a real model on the same device.
//
//   flip_share_bench [--device=cuda] [--batch=16] [--tokens=256] MODEL_DIR | synthetic:.. ...

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/kv/sequence_state.h"
#include "common/model/model.h"
#include "common/process/flags.h"
#include "common/tokenizer/tokenizer.h"
#include "kernels/backend.h"

ABSL_FLAG(std::string, device, "cpu", "Where the models run: cpu, cuda or cuda:N.");
ABSL_FLAG(std::string, gemm_plan_file, "", "CUDA: file that keeps measured plans.");
ABSL_FLAG(double, class_slack, 0.03, "CUDA: as the decoder's.");
ABSL_FLAG(int32_t, threads, 0, "CPU threads; 0: one for each CPU.");
ABSL_FLAG(int32_t, batch, 16, "Sequences decoded side by side.");
ABSL_FLAG(int32_t, tokens, 256, "Tokens of each.");

namespace selfsame::bench {
namespace {

constexpr int32_t kMaxPromptTokens = 64;
constexpr const char* kPrompts[] = {
    "The history of the city begins with a river",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "To make bread you need flour, water, salt and",
    "def quicksort(items):\n    if len(items) <= 1:",
    "The three laws of motion say that",
    "Dear Sir or Madam, I am writing to you because",
    "Once upon a time, in a village at the edge of the forest,",
    "Explain to a child why the sky is blue.",
};

using Tokens = std::vector<int32_t>;

// Sequences of equal standing, one row each in a pass.
class Batch {
 public:
  Batch(Model& model, KvCache& kv, size_t count, int32_t length) : model_(model), kv_(kv) {
    const int32_t blocks = BlocksFor(length);
    for (size_t i = 0; i < count; ++i) {
      auto& table = tables_.emplace_back();
      for (int32_t block = 0; block < blocks; ++block) {
        table.push_back(static_cast<int32_t>(i) * blocks + block);
      }
    }
  }

  // The greedy tokens after `tokens[i]` at the next position of sequence i.
  absl::StatusOr<Tokens> Step(const Tokens& tokens) {
    const auto count = static_cast<int32_t>(tokens.size());
    const std::vector<int32_t> positions(tokens.size(), position_);
    std::vector<SequenceRows> sequences;
    Tokens rows;
    for (int32_t i = 0; i < count; ++i) {
      sequences.push_back({.first_row = i,
                           .row_count = 1,
                           .first_position = position_,
                           .block_table = tables_[static_cast<size_t>(i)].data()});
      rows.push_back(i);
    }
    const std::vector<SampleRow> greedy(tokens.size());
    std::vector<SampledToken> sampled(tokens.size());
    RETURN_IF_ERROR(model_.Run({.row_count = count,
                                .token_ids = tokens,
                                .positions = positions,
                                .sequences = sequences,
                                .logit_rows = rows},
                               kv_, greedy, sampled));
    ++position_;
    Tokens next;
    for (const SampledToken& token : sampled) next.push_back(token.token_id);
    return next;
  }

 private:
  Model& model_;
  KvCache& kv_;
  std::vector<std::vector<int32_t>> tables_;
  int32_t position_ = 0;
};

// The prompts of a batch, cut to equal length: [position][sequence].
absl::StatusOr<std::vector<Tokens>> MakePrompts(const ModelSource& source, int32_t batch) {
  ASSIGN_OR_RETURN(const auto tokenizer, source.has_byte_tokenizer()
                                             ? Tokenizer::CreateForBytes()
                                             : Tokenizer::Load(source.model_dir));
  std::vector<Tokens> prompts;
  size_t length = kMaxPromptTokens;
  for (int32_t i = 0; i < batch; ++i) {
    const std::string text = absl::StrCat(i / std::size(kPrompts), ". ",
                                          kPrompts[static_cast<size_t>(i) % std::size(kPrompts)]);
    ASSIGN_OR_RETURN(Tokens ids, tokenizer->Encode(text, /*add_special_tokens=*/true));
    length = std::min(length, ids.size());
    prompts.push_back(std::move(ids));
  }
  std::vector<Tokens> columns(length);
  for (size_t position = 0; position < length; ++position) {
    for (const Tokens& prompt : prompts) columns[position].push_back(prompt[position]);
  }
  return columns;
}

struct Answers {
  std::vector<Tokens> fed;     // [position][sequence]
  std::vector<Tokens> chosen;  // the token after each, from the end of the prompt on
};

// With `fed` longer than the prompts every position's token is given; else the chosen one is fed.
absl::StatusOr<Answers> Decode(const ModelSource& source, Schedule schedule, size_t prompt_length,
                               std::vector<Tokens> fed) {
  const auto batch = static_cast<int32_t>(fed.front().size());
  const auto length = static_cast<int32_t>(prompt_length) + absl::GetFlag(FLAGS_tokens);
  ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops,
                   CreateOps({.device = absl::GetFlag(FLAGS_device),
                              .schedule = schedule,
                              .thread_count = absl::GetFlag(FLAGS_threads),
                              .max_rows = batch,
                              .max_logit_rows = batch,
                              .class_slack = absl::GetFlag(FLAGS_class_slack),
                              .plan_file = absl::GetFlag(FLAGS_gemm_plan_file)}));
  const PassLimits limits{.max_rows = batch, .max_logit_rows = batch, .context_limit = length};
  ASSIGN_OR_RETURN(auto model, Model::Load(source, limits, std::move(ops)));
  ASSIGN_OR_RETURN(auto kv, model->CreateKvCache(batch * BlocksFor(length)));
  Batch sequences(*model, *kv, static_cast<size_t>(batch), length);
  Answers answers;
  for (size_t position = 0; position + 1 < static_cast<size_t>(length); ++position) {
    if (position == fed.size()) fed.push_back(answers.chosen.back());
    ASSIGN_OR_RETURN(Tokens next, sequences.Step(fed[position]));
    if (position + 1 >= prompt_length) answers.chosen.push_back(std::move(next));
  }
  answers.fed = std::move(fed);
  return answers;
}

absl::Status Measure(const std::string& name) {
  const bool is_synthetic = name.starts_with("synthetic:");
  ASSIGN_OR_RETURN(const ModelSource source,
                   ParseModelSource(is_synthetic ? "" : name, is_synthetic ? name : "safetensors"));
  ASSIGN_OR_RETURN(const std::vector<Tokens> prompts,
                   MakePrompts(source, absl::GetFlag(FLAGS_batch)));
  ASSIGN_OR_RETURN(const Answers canonical,
                   Decode(source, Schedule::kCanonical, prompts.size(), prompts));
  ASSIGN_OR_RETURN(const Answers fast,
                   Decode(source, Schedule::kFast, prompts.size(), canonical.fed));
  int64_t flips = 0;
  int64_t positions = 0;
  std::vector<int32_t> distinct;
  for (size_t i = 0; i < canonical.chosen.size(); ++i) {
    for (size_t sequence = 0; sequence < canonical.chosen[i].size(); ++sequence) {
      flips += canonical.chosen[i][sequence] != fast.chosen[i][sequence] ? 1 : 0;
      ++positions;
      distinct.push_back(canonical.chosen[i][sequence]);
    }
  }
  std::sort(distinct.begin(), distinct.end());
  const auto end = std::unique(distinct.begin(), distinct.end());
  std::printf("| %s | %lld | %lld | %.3f | %.3f |\n", source.Name().c_str(),
              static_cast<long long>(positions), static_cast<long long>(flips),
              100.0 * static_cast<double>(flips) / static_cast<double>(positions),
              static_cast<double>(end - distinct.begin()) / static_cast<double>(positions));
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status Run(const std::vector<char*>& arguments) {
  RETURN_IF_ERROR(CheckFlagRange("--batch", absl::GetFlag(FLAGS_batch), 1, 512));
  RETURN_IF_ERROR(CheckFlagRange("--tokens", absl::GetFlag(FLAGS_tokens), 2, 65536));
  if (arguments.size() < 2) return InvalidArgumentError("MODEL", "is required");
  std::printf("| model | tokens | flipped | %% | distinct tokens / tokens |\n");
  std::printf("| --- | --- | --- | --- | --- |\n");
  for (size_t i = 1; i < arguments.size(); ++i) RETURN_IF_ERROR(Measure(arguments[i]));
  return absl::OkStatus();
}

}  // namespace
}  // namespace selfsame::bench

int main(int argc, char** argv) {
  const absl::Status status = selfsame::bench::Run(absl::ParseCommandLine(argc, argv));
  return status.ok() ? 0 : selfsame::ReportFatal("flip_share_bench", status);
}
