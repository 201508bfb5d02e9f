#pragma once

#include <cstddef>
#include <cstdint>

// Every bound on what a client or a peer may send, and on what the services hold for them.
namespace selfsame {

// Requests.
inline constexpr int64_t kMaxPromptBytes = 4 << 20;
inline constexpr int kMaxChatMessages = 1024;
inline constexpr int kMaxStopStrings = 16;
inline constexpr int kMaxStopStringBytes = 256;
inline constexpr int kMaxStopTokenIds = 64;
inline constexpr int kMaxEosTokenIds = 64;  // of a model
// What a session ends at: a request's own ids and the model's.
inline constexpr int kMaxSessionStopTokenIds = kMaxStopTokenIds + kMaxEosTokenIds;
// Below this, logits divided by the temperature would leave float's range.
inline constexpr float kMinTemperature = 1e-4f;
inline constexpr float kMaxTemperature = 100.0f;
inline constexpr int kMaxChoices = 64;
inline constexpr int kMaxTopLogprobs = 20;
// Logprobs of one prompt, alternatives included: they travel in one message.
inline constexpr int64_t kMaxPromptLogprobs = 1 << 20;
// Prompt tokens in one message to a client, echoed or with logprobs.
inline constexpr int kMaxPromptPieceTokens = 1024;
inline constexpr float kMaxPenalty = 2.0f;  // presence and frequency; the lowest is -2
inline constexpr float kMaxLogitBias = 100.0f;
inline constexpr int kMaxLogitBiases = 1024;
inline constexpr int kMaxFingerprintBytes = 256;
inline constexpr int kMaxDetokenizeTokens = 1 << 17;
inline constexpr int kMaxRequestIdBytes = 128;
inline constexpr int kMaxPriority = 1000;  // and the least is its negative
inline constexpr int kMaxGrpcMessageBytes = 16 << 20;

// Model directories.
inline constexpr int64_t kMaxConfigFileBytes = 1 << 20;
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 16 << 20;
inline constexpr int kMaxCheckpointShards = 1024;
inline constexpr int64_t kMaxVocabSize = 1 << 20;
inline constexpr int64_t kMaxModelWidth = 1 << 18;
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxHeads = 1024;
inline constexpr int64_t kMaxHeadDim = 512;
inline constexpr int64_t kMaxPositions = 1 << 22;

// The context limit unless a flag says otherwise; the model's own limit if that is smaller.
inline constexpr int kDefaultContextLimit = 8192;

// Set-up of a service.
inline constexpr int kMaxThreads = 1024;
inline constexpr int kMaxKvSizeMb = 1 << 22;
inline constexpr int kMaxBatchSize = 4096;     // requests in a pass
inline constexpr int kMaxBatchTokens = 65536;  // rows of a pass
inline constexpr int kMaxQueuedRequests = 65536;
inline constexpr int kMaxTimeoutMs = 3600 * 1000;

// Connections.
inline constexpr int kKeepaliveIntervalMs = 20000;
inline constexpr int kKeepaliveTimeoutMs = 10000;
// What may wait for a client that reads slowly, for each request.
inline constexpr int64_t kMaxUnsentResponseBytes = 256 << 10;
inline constexpr int64_t kSlowClientRetryMs = 1000;
// Longer texts are tokenised one at a time, away from the threads that serve calls.
inline constexpr size_t kLongTextBytes = 64 << 10;
inline constexpr int kMaxWaitingLongTexts = 32;
inline constexpr int64_t kLongTextRetryMs = 1000;
// What may wait for a verifier that reads slowly.
inline constexpr int64_t kMaxUnsentVerifierBytes = 64 << 20;
inline constexpr int kMaxVerifiers = 64;
inline constexpr int kVerifierInfoTimeoutMs = 5000;
inline constexpr int kMinReconnectDelayMs = 50;
inline constexpr int kMaxReconnectDelayMs = 2000;

// Tokenisers.
inline constexpr size_t kMaxEncodeBytes = 64 << 20;
inline constexpr int64_t kMaxTokenizerFileBytes = 256 << 20;

// The client's own.
inline constexpr int kMaxClientConcurrency = 1024;

// Windows.
inline constexpr int kMaxWindowSize = 256;
// Verdicts and session errors that wait for the decoder's engine; past it a verifier is broken.
inline constexpr int kMaxQueuedVerifierEvents = 1 << 16;

// What a verifier holds for its decoders.
inline constexpr int kMaxVerifyBatchSize = 64;
inline constexpr int kMaxSessions = 1 << 16;
inline constexpr int kMaxPendingWindows = 64;  // of one session
// Of a window at a verifier, as that may report it: twelve days.
inline constexpr int64_t kMaxVerifierTimeUs = int64_t{1} << 40;
inline constexpr int kMaxVerifyStreams = 64;
// Messages of one stream the engine has not taken in yet, and the token ids in them.
inline constexpr int kMaxInboxMessages = 1024;
inline constexpr int64_t kMaxInboxTokens = 1 << 20;
// Answers of one stream its decoder has not read yet; beyond, nothing is read from it.
inline constexpr int kMaxUnsentVerdicts = 4096;
// A session that found no room may be opened again after this time.
inline constexpr int64_t kSessionRetryMs = 100;

}  // namespace selfsame
