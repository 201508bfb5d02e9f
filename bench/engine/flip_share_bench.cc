// How often the fast path's greedy token is not the canonical one: canonical answers are decoded
// first, then the fast path is fed with them, one row a sequence as in serving, and its token at
// each position compared. A share for each model; synthetic ones (common/model/synthetic.h) are
// tuned so that it is that of a real model on the same device.
//
//   flip_share_bench [--device=cuda] [--batch=32] [--tokens=256] [--rounds=1]
//       [--class_slack=0.03,0] MODEL_DIR | synthetic:.. ...
//
// One row of the table for each model and class slack; the canonical answers of a model are decoded
// once. Share of distinct tokens: answers that repeat themselves show less.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/kv/sequence_state.h"
#include "common/model/model.h"
#include "common/process/flags.h"
#include "common/tokenizer/tokenizer.h"
#include "decoder/client/check_prompts.h"
#include "kernels/backend.h"

ABSL_FLAG(std::string, device, "cpu", "Where the models run: cpu, cuda or cuda:N.");
ABSL_FLAG(std::string, gemm_plan_file, "", "CUDA: file that keeps measured plans.");
ABSL_FLAG(std::vector<std::string>, class_slack, {"0.03"},
          "CUDA: as the decoder's; several are measured one after the other.");
ABSL_FLAG(int32_t, threads, 0, "CPU threads; 0: one for each CPU.");
ABSL_FLAG(int32_t, batch, 32, "Sequences decoded side by side.");
ABSL_FLAG(int32_t, tokens, 256, "Tokens of each.");
ABSL_FLAG(int32_t, rounds, 1, "Batches decoded one after the other, each of other prompts.");

namespace selfsame::bench {
namespace {

constexpr int32_t kMaxPromptTokens = 64;

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

using Columns = std::vector<Tokens>;  // [position][sequence]

// The prompts of one round, cut to equal length.
Columns MakePrompts(const std::vector<Tokens>& encoded, size_t first, size_t count) {
  size_t length = kMaxPromptTokens;
  for (size_t i = 0; i < count; ++i) length = std::min(length, encoded[first + i].size());
  Columns columns(length);
  for (size_t position = 0; position < length; ++position) {
    for (size_t i = 0; i < count; ++i) columns[position].push_back(encoded[first + i][position]);
  }
  return columns;
}

// The built-in prompts over and over, numbered, so that no two are the same.
absl::StatusOr<std::vector<Tokens>> EncodePrompts(const ModelSource& source, int32_t count) {
  ASSIGN_OR_RETURN(const auto tokenizer, source.has_byte_tokenizer()
                                             ? Tokenizer::CreateForBytes()
                                             : Tokenizer::Load(source.model_dir));
  const std::vector<std::string> texts = client::BuiltInPrompts();
  std::vector<Tokens> encoded;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const std::string text = absl::StrCat(i / texts.size(), ". ", texts[i % texts.size()]);
    ASSIGN_OR_RETURN(Tokens ids, tokenizer->Encode(text, /*add_special_tokens=*/true));
    encoded.push_back(std::move(ids));
  }
  return encoded;
}

struct Round {
  size_t prompt_length = 0;
  Columns fed;     // prompts, and the canonical tokens as they come to be known
  Columns chosen;  // the token after each position, from the end of the prompt on
};

// Runs every round under one schedule. Where a position's token is not known yet, the one chosen
// before it is fed, and becomes known.
absl::Status Decode(const ModelSource& source, Schedule schedule, double class_slack,
                    std::vector<Round>& rounds) {
  const auto batch = static_cast<int32_t>(rounds.front().fed.front().size());
  const int32_t tokens = absl::GetFlag(FLAGS_tokens);
  const int32_t length = kMaxPromptTokens + tokens;
  ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops,
                   CreateOps({.device = absl::GetFlag(FLAGS_device),
                              .schedule = schedule,
                              .thread_count = absl::GetFlag(FLAGS_threads),
                              .max_rows = batch,
                              .max_logit_rows = batch,
                              .max_table_entries = int64_t{batch} * BlocksFor(length),
                              .class_slack = class_slack,
                              .plan_file = absl::GetFlag(FLAGS_gemm_plan_file)}));
  const PassLimits limits{.max_rows = batch, .max_logit_rows = batch, .context_limit = length};
  ASSIGN_OR_RETURN(auto model, Model::Load(source, limits, std::move(ops)));
  ASSIGN_OR_RETURN(auto kv, model->CreateKvCache(batch * BlocksFor(length)));
  for (Round& round : rounds) {
    Batch sequences(*model, *kv, static_cast<size_t>(batch), length);
    round.chosen.clear();
    const size_t end = round.prompt_length + static_cast<size_t>(tokens) - 1;
    for (size_t position = 0; position < end; ++position) {
      if (position == round.fed.size()) round.fed.push_back(round.chosen.back());
      ASSIGN_OR_RETURN(Tokens next, sequences.Step(round.fed[position]));
      if (position + 1 >= round.prompt_length) round.chosen.push_back(std::move(next));
    }
  }
  return absl::OkStatus();
}

// Says how long it took, since a table's row comes late.
absl::Status TimedDecode(const std::string& what, const ModelSource& source, Schedule schedule,
                         double class_slack, std::vector<Round>& rounds) {
  const auto start = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(Decode(source, schedule, class_slack, rounds));
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::fprintf(stderr, "%s, %s: %.1f s\n", source.Name().c_str(), what.c_str(), elapsed.count());
  return absl::OkStatus();
}

void PrintRow(const std::string& name, const std::string& slack,
              const std::vector<Round>& canonical, const std::vector<Round>& fast) {
  int64_t flips = 0;
  Tokens distinct;
  for (size_t round = 0; round < canonical.size(); ++round) {
    for (size_t i = 0; i < canonical[round].chosen.size(); ++i) {
      const Tokens& expected = canonical[round].chosen[i];
      for (size_t sequence = 0; sequence < expected.size(); ++sequence) {
        flips += expected[sequence] != fast[round].chosen[i][sequence] ? 1 : 0;
      }
      distinct.insert(distinct.end(), expected.begin(), expected.end());
    }
  }
  const auto positions = static_cast<double>(distinct.size());
  std::sort(distinct.begin(), distinct.end());
  const auto end = std::unique(distinct.begin(), distinct.end());
  std::printf("| %s | %s | %.0f | %lld | %.3f | %.3f |\n", name.c_str(), slack.c_str(), positions,
              static_cast<long long>(flips), 100.0 * static_cast<double>(flips) / positions,
              static_cast<double>(end - distinct.begin()) / positions);
  std::fflush(stdout);
}

absl::Status Measure(const std::string& name) {
  const bool is_synthetic = name.starts_with("synthetic:");
  ASSIGN_OR_RETURN(const ModelSource source,
                   ParseModelSource(is_synthetic ? "" : name, is_synthetic ? name : "safetensors"));
  const int32_t batch = absl::GetFlag(FLAGS_batch);
  const int32_t round_count = absl::GetFlag(FLAGS_rounds);
  ASSIGN_OR_RETURN(const std::vector<Tokens> encoded, EncodePrompts(source, batch * round_count));
  std::vector<Round> canonical(static_cast<size_t>(round_count));
  for (size_t i = 0; i < canonical.size(); ++i) {
    const auto count = static_cast<size_t>(batch);
    canonical[i].fed = MakePrompts(encoded, i * count, count);
    canonical[i].prompt_length = canonical[i].fed.size();
  }
  RETURN_IF_ERROR(TimedDecode("canonical", source, Schedule::kCanonical, 0.0, canonical));
  for (const std::string& slack : absl::GetFlag(FLAGS_class_slack)) {
    double value = 0.0;
    if (!absl::SimpleAtod(slack, &value)) {
      return InvalidArgumentError("--class_slack", "must be numbers");
    }
    RETURN_IF_ERROR(CheckRealFlagRange("--class_slack", value, 0.0, 1.0));
    std::vector<Round> fast = canonical;
    RETURN_IF_ERROR(TimedDecode(absl::StrCat("fast, class slack ", slack), source, Schedule::kFast,
                                value, fast));
    PrintRow(source.Name(), slack, canonical, fast);
  }
  return absl::OkStatus();
}

absl::Status Run(const std::vector<char*>& arguments) {
  RETURN_IF_ERROR(CheckFlagRange("--batch", absl::GetFlag(FLAGS_batch), 1, 512));
  RETURN_IF_ERROR(CheckFlagRange("--tokens", absl::GetFlag(FLAGS_tokens), 2, 65536));
  RETURN_IF_ERROR(CheckFlagRange("--rounds", absl::GetFlag(FLAGS_rounds), 1, 1024));
  if (arguments.size() < 2) return InvalidArgumentError("MODEL", "is required");
  std::printf("| model | class slack | tokens | flipped | %% | distinct tokens / tokens |\n");
  std::printf("| --- | --- | --- | --- | --- | --- |\n");
  for (size_t i = 1; i < arguments.size(); ++i) RETURN_IF_ERROR(Measure(arguments[i]));
  return absl::OkStatus();
}

}  // namespace
}  // namespace selfsame::bench

int main(int argc, char** argv) {
  const absl::Status status = selfsame::bench::Run(absl::ParseCommandLine(argc, argv));
  return status.ok() ? 0 : selfsame::ReportFatal("flip_share_bench", status);
}
