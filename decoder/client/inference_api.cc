#include "decoder/client/inference_api.h"

namespace selfsame::client {

std::string_view FinishReasonName(FinishReason reason) {
  return reason == FinishReason::kStop ? "stop" : "length";
}

}  // namespace selfsame::client
