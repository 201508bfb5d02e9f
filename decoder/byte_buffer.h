#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>

#include "common/check.h"

namespace selfsame::decoder {

template <typename Message>
grpc::ByteBuffer Serialize(const Message& message) {
  grpc::ByteBuffer buffer;
  bool owns_buffer = false;
  const grpc::Status status =
      grpc::SerializationTraits<Message>::Serialize(message, &buffer, &owns_buffer);
  SELFSAME_CHECK(status.ok());
  return buffer;
}

}  // namespace selfsame::decoder
