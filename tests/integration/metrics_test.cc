// A real Prometheus scrapes both services; its figures must be those that the client counted.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/cluster.h"
#include "tests/integration/metrics_reader.h"
#include "tests/integration/workload.h"
#include "tests/testing/http_get.h"

namespace selfsame::testing {
namespace {

constexpr char kPrometheus[] = "/usr/bin/prometheus";
constexpr std::chrono::seconds kPatience{60};

std::string Encode(const std::string& text) {
  std::string encoded;
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      encoded += c;
    } else {
      absl::StrAppend(&encoded, "%", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    }
  }
  return encoded;
}

// Asks `ask` until it says that it is done, or patience ends; false then.
template <typename Ask>
bool Poll(const Ask& ask) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!ask()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

// The server, with one target for each service, on a port of its own choice.
class Prometheus {
 public:
  Prometheus(const std::string& decoder, const std::string& verifier) {
    const std::string config = dir_.path() + "/prometheus.yml";
    std::ofstream(config) << "global: {scrape_interval: 500ms, scrape_timeout: 500ms}\n"
                          << "scrape_configs:\n"
                          << "- {job_name: decoder, static_configs: [{targets: ['" << decoder
                          << "']}]}\n"
                          << "- {job_name: verifier, static_configs: [{targets: ['" << verifier
                          << "']}]}\n";
    auto process = ChildProcess::Start(kPrometheus,
                                       {absl::StrCat("--config.file=", config),
                                        absl::StrCat("--storage.tsdb.path=", dir_.path(), "/data"),
                                        "--web.listen-address=127.0.0.1:0", "--log.format=logfmt"});
    EXPECT_TRUE(process.ok()) << process.status();
    process_ = *std::move(process);
    EXPECT_TRUE(Poll([this] { return ReadAddress(); })) << process_->stderr_text();
  }

  // The sum of all samples that `query` finds now; -1 when there are none.
  double Query(const std::string& query) {
    const auto body = HttpGet(address_, absl::StrCat("/api/v1/query?query=", Encode(query)));
    if (!body.ok()) return -1;
    const auto answer = nlohmann::json::parse(*body, nullptr, false);
    if (answer.is_discarded() || answer.value("status", "") != "success") return -1;
    const auto& samples = answer["data"]["result"];
    if (samples.empty()) return -1;
    double sum = 0;
    for (const auto& sample : samples) sum += std::stod(sample["value"][1].get<std::string>());
    return sum;
  }

  // Waits until the newest scrape says so.
  void Expect(const std::string& query, double value) {
    double seen = 0;
    EXPECT_TRUE(Poll([&] {
      seen = Query(query);
      return seen == value;
    })) << query
        << " is " << seen << ", not " << value;
  }
  void ExpectPositive(const std::string& query) {
    EXPECT_TRUE(Poll([&] { return Query(query) > 0; })) << query;
  }

 private:
  bool ReadAddress() {
    const std::string text = process_->stderr_text();
    const std::string mark = "msg=\"Listening on\" address=";
    const size_t begin = text.find(mark);
    const size_t end = text.find('\n', begin);
    if (begin == std::string::npos || end == std::string::npos) return false;
    address_ = text.substr(begin + mark.size(), end - begin - mark.size());
    return true;
  }

  TempDir dir_;
  std::unique_ptr<ChildProcess> process_;
  std::string address_;
};

// What the client saw.
struct Figures {
  int requests = 0;
  int stops = 0;
  int lengths = 0;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  int64_t windows = 0;
  int64_t rollbacks = 0;
  int64_t rolled_back = 0;
  int64_t redecoded = 0;
  int64_t cached = 0;
  int64_t verifier_cached = 0;
};

Figures Count(const std::vector<GenerateResult>& results) {
  Figures figures;
  for (const GenerateResult& result : results) {
    EXPECT_TRUE(result.status.ok() && result.complete) << result.status;
    if (!result.complete) continue;
    ++figures.requests;
    ++(result.complete->finish_reason() == v1::FINISH_REASON_LENGTH ? figures.lengths
                                                                    : figures.stops);
    figures.prompt_tokens += result.complete->prompt_tokens();
    figures.output_tokens += static_cast<int64_t>(result.token_ids.size());
    figures.windows += result.complete->windows();
    figures.rollbacks += result.complete->rollbacks();
    figures.rolled_back += result.complete->rolled_back_tokens();
    figures.redecoded += result.complete->redecoded_tokens();
    figures.cached += result.complete->cached_prompt_tokens();
    figures.verifier_cached += result.complete->verifier_cached_prompt_tokens();
  }
  return figures;
}

class MetricsTest : public ::testing::Test {
 protected:
  void SetUp() override { Start({}); }

  void Start(std::vector<std::string> decoder_flags) {
    prometheus_.reset();
    cluster_.reset();
    const std::string flag = "--metrics_listen=127.0.0.1:0";
    decoder_flags.push_back(flag);
    auto cluster = Cluster::Start({.model_dir = model_.path(),
                                   .decoder_flags = decoder_flags,
                                   .verifier_flags = {flag},
                                   .other_verifiers = {}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    prometheus_ = std::make_unique<Prometheus>(MetricsAddress(cluster_->decoder()),
                                               MetricsAddress(cluster_->verifier(0)));
  }

  void ExpectDecoder(const Figures& seen, const std::string& is_deterministic) {
    const std::string kind = absl::StrCat("is_deterministic=\"", is_deterministic, "\"");
    Prometheus& p = *prometheus_;
    p.Expect(absl::StrCat("selfsame_requests_total{outcome=\"ok\",", kind, "}"), seen.requests);
    p.Expect(absl::StrCat("selfsame_prompt_tokens_total{", kind, "}"),
             static_cast<double>(seen.prompt_tokens));
    p.Expect(absl::StrCat("selfsame_generation_tokens_total{", kind, "}"),
             static_cast<double>(seen.output_tokens));
    for (const char* histogram :
         {"selfsame_time_to_first_token_seconds", "selfsame_e2e_request_latency_seconds",
          "selfsame_request_queue_time_seconds"}) {
      p.Expect(absl::StrCat(histogram, "_count{", kind, "}"), seen.requests);
    }
  }

  NearTieModel model_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Prometheus> prometheus_;
};

TEST_F(MetricsTest, PrometheusAndTheClientCountTheSame) {
  const auto requests = MakeRequests(8, 96);
  const auto order = ArrivalOrder(8, 0);
  const auto deterministic = ServeAll(cluster_->client(), requests, order, 4);
  const auto ordinary = ServeAll(cluster_->client(), MakeOrdinary(requests), order, 4);
  const Figures a = Count(deterministic);
  const Figures b = Count(ordinary);
  ASSERT_GT(a.rollbacks, 0);
  ASSERT_EQ(b.windows, 0);
  Prometheus& p = *prometheus_;

  p.Expect("up", 2);
  ExpectDecoder(a, "true");
  ExpectDecoder(b, "false");
  p.Expect("selfsame_request_success_total{finished_reason=\"stop\"}", a.stops + b.stops);
  p.Expect("selfsame_request_success_total{finished_reason=\"length\"}", a.lengths + b.lengths);
  const auto windows = static_cast<double>(a.windows);
  p.Expect("selfsame_windows_total", windows);
  // Once the end is committed, the decoder takes no more verdicts.
  p.ExpectPositive("selfsame_verify_latency_seconds_count");
  p.Expect(absl::StrCat("selfsame_verify_latency_seconds_count <= bool ", a.windows), 1);
  p.Expect("selfsame_verify_network_seconds_count == bool selfsame_verify_latency_seconds_count",
           1);
  p.Expect("selfsame_verify_network_seconds_sum <= bool selfsame_verify_latency_seconds_sum", 1);
  p.Expect("selfsame_rollbacks_total", static_cast<double>(a.rollbacks));
  p.Expect("selfsame_rolled_back_tokens_total", static_cast<double>(a.rolled_back));
  p.Expect("selfsame_redecoded_tokens_total", static_cast<double>(a.redecoded));
  ASSERT_GT(b.cached, 0);
  p.Expect("selfsame_prefix_cache_hits_total{job=\"decoder\"}",
           static_cast<double>(a.cached + b.cached));
  p.Expect("selfsame_prefix_cache_queries_total{job=\"decoder\"}",
           static_cast<double>(a.prompt_tokens + b.prompt_tokens));
  p.ExpectPositive("selfsame_prefix_cache_blocks{job=\"decoder\"}");
  p.Expect("selfsame_num_requests_running", 0);
  p.Expect("selfsame_num_requests_waiting", 0);
  p.Expect("selfsame_sessions", 0);
  p.Expect("selfsame_verifiers_up", 1);
  p.Expect("selfsame_steps_waited_for_verdict_total", 0);
  p.Expect("selfsame_ordinary_rows_waited_for_verdict_total", 0);
  p.ExpectPositive("selfsame_step_rows_count");

  p.Expect(absl::StrCat("selfsame_verifier_info{fingerprint=\"",
                        deterministic[0].started->fingerprint(), "\"}"),
           1);
  p.Expect("selfsame_verifier_sessions_opened_total", a.requests);
  p.Expect("selfsame_verifier_verdicts_total{outcome=\"opening\"}", a.requests);
  p.Expect("selfsame_verifier_verdicts_total{outcome!=\"opening\"}", windows);
  // A window that was decided was in a pass; others in that pass may have been discarded with it.
  p.Expect(
      "sum(selfsame_verifier_window_queue_seconds_count) >= bool"
      " sum(selfsame_verifier_verdicts_total{outcome=~\"commit|rollback\"})",
      1);
  p.Expect(
      "sum(selfsame_verifier_window_queue_seconds_count) <= bool"
      " sum(selfsame_verifier_verdicts_total{outcome!=\"opening\"})",
      1);
  p.Expect(
      "selfsame_verifier_window_queue_seconds_count - selfsame_verifier_window_pass_seconds_count",
      0);
  p.Expect("selfsame_verifier_sessions", 0);
  p.ExpectPositive("selfsame_verifier_rows_total{kind=\"window\"}");
  p.Expect("selfsame_verifier_pass_seconds_count - selfsame_verifier_queue_seconds_count", 0);
  // Every row of a pass is of one kind, and every prompt was prefilled.
  p.Expect(
      "sum(selfsame_verifier_rows_total{kind!=\"padding\"}) - sum(selfsame_verifier_pass_rows_sum)",
      0);
  const int64_t computed = a.prompt_tokens - a.verifier_cached;
  p.Expect(absl::StrCat("selfsame_verifier_rows_total{kind=\"prefill\"} >= bool ", computed), 1);
  p.Expect("selfsame_prefix_cache_hits_total{job=\"verifier\"}",
           static_cast<double>(a.verifier_cached));
  p.Expect("selfsame_prefix_cache_queries_total{job=\"verifier\"}",
           static_cast<double>(a.prompt_tokens));
  p.ExpectPositive("selfsame_prefix_cache_blocks{job=\"verifier\"}");
}

// Half of the load is deterministic, and there is too little memory for all.
TEST_F(MetricsTest, NoOrdinaryRowWaitsForAVerdictUnderLoad) {
  Start({"--kv_size_mb=1"});
  auto requests = MakeRequests(48, 200);
  for (size_t i = 0; i < requests.size(); ++i) requests[i].set_is_deterministic(i % 2 == 0);
  const Figures seen = Count(ServeAll(cluster_->client(), requests, ArrivalOrder(48, 7), 48));
  ASSERT_GT(seen.windows, 24);
  Prometheus& p = *prometheus_;
  p.Expect("selfsame_requests_total{outcome=\"ok\",is_deterministic=\"false\"}", 24);
  p.ExpectPositive("selfsame_num_preemptions_total");
  p.Expect("selfsame_steps_waited_for_verdict_total", 0);
  p.Expect("selfsame_ordinary_rows_waited_for_verdict_total", 0);
}

TEST_F(MetricsTest, CancelsAndRefusalsHaveTheirOutcome) {
  CallOptions options;
  options.on_chunk = [](int) { return false; };
  const auto request = MakeOrdinary(MakeRequests(1, 900))[0];
  EXPECT_FALSE(cluster_->client().Generate(request, options).status.ok());
  prometheus_->Expect("selfsame_requests_total{outcome=\"cancelled\",is_deterministic=\"false\"}",
                      1);
  prometheus_->Expect("selfsame_num_requests_running", 0);

  auto wrong = MakeRequests(1, 20)[0];
  wrong.mutable_sampling()->set_top_p(2);
  EXPECT_FALSE(cluster_->client().Generate(wrong).status.ok());
  prometheus_->Expect(
      "selfsame_requests_total{outcome=\"invalid_argument\",is_deterministic=\"true\"}", 1);

  auto unfit = MakeRequests(1, 20)[0];
  unfit.set_expected_fingerprint("another");
  EXPECT_FALSE(cluster_->client().Generate(unfit).status.ok());
  prometheus_->Expect(
      "selfsame_requests_total{outcome=\"failed_precondition\",is_deterministic=\"true\"}", 1);
}

TEST_F(MetricsTest, ALostVerifierShows) {
  cluster_->KillVerifier(0);
  prometheus_->Expect("selfsame_verifiers_up", 0);
  prometheus_->Expect("up{job=\"verifier\"}", 0);
}

}  // namespace
}  // namespace selfsame::testing
