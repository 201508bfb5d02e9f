#include "common/sha256.h"

#include <openssl/evp.h>

#include "common/check.h"

namespace selfsame {

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  SELFSAME_CHECK(context_ != nullptr);
  SELFSAME_CHECK(EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() { EVP_MD_CTX_free(context_); }

Sha256& Sha256::Update(const void* data, size_t size_bytes) {
  SELFSAME_CHECK(EVP_DigestUpdate(context_, data, size_bytes) == 1);
  return *this;
}

Sha256& Sha256::UpdateField(std::string_view text) {
  const uint64_t size = text.size();
  unsigned char prefix[8];
  for (int i = 0; i < 8; ++i) prefix[i] = static_cast<unsigned char>(size >> (8 * i));
  return Update(prefix, sizeof(prefix)).Update(text);
}

std::string Sha256::HexDigest() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  SELFSAME_CHECK(EVP_DigestFinal_ex(context_, digest, &size) == 1);
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  text.reserve(size * 2);
  for (unsigned int i = 0; i < size; ++i) {
    text.push_back(kHex[digest[i] >> 4]);
    text.push_back(kHex[digest[i] & 15]);
  }
  return text;
}

}  // namespace selfsame
