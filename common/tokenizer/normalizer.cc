#include "common/tokenizer/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include <memory>

#include "common/check.h"

namespace selfsame {
namespace {

// Normalises only stretches of characters that Unicode 9.0 knew.
class Unicode9Nfc {
 public:
  Unicode9Nfc() {
    UErrorCode error = U_ZERO_ERROR;
    const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(error);
    known_ = std::make_unique<icu::UnicodeSet>(icu::UnicodeString(u"[:Age=9.0:]"), error);
    SELFSAME_CHECK(U_SUCCESS(error));
    known_->freeze();
    filtered_ = std::make_unique<icu::FilteredNormalizer2>(*nfc, *known_);
  }

  std::string Normalize(std::string_view text) const {
    std::string result;
    icu::StringByteSink<std::string> sink(&result, static_cast<int32_t>(text.size()));
    UErrorCode error = U_ZERO_ERROR;
    filtered_->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())),
                             sink, nullptr, error);
    SELFSAME_CHECK(U_SUCCESS(error));
    return result;
  }

 private:
  std::unique_ptr<icu::UnicodeSet> known_;
  std::unique_ptr<icu::FilteredNormalizer2> filtered_;
};

}  // namespace

std::string NormalizeNfc(std::string_view text) {
  // ICU's constants, built once and never changed.
  static const Unicode9Nfc normalizer;
  return normalizer.Normalize(text);
}

}  // namespace selfsame
