#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace selfsame {

// Incremental SHA-256 (OpenSSL). Not thread safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  Sha256& Update(const void* data, size_t size_bytes);
  Sha256& Update(std::string_view text) { return Update(text.data(), text.size()); }
  // Hashes the length before the bytes, so that two adjacent fields never run together.
  Sha256& UpdateField(std::string_view text);

  // The digest as 64 lower-case hexadecimal digits. Nothing may be added afterwards.
  std::string HexDigest();

 private:
  evp_md_ctx_st* context_;
};

}  // namespace selfsame
