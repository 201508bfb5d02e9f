#include "common/sha256.h"

#include <gtest/gtest.h>

namespace selfsame {
namespace {

// FIPS 180-2, appendix B.1.
TEST(Sha256Test, KnownAnswer) {
  EXPECT_EQ(Sha256().Update("abc").HexDigest(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256Test, UpdatesConcatenate) {
  EXPECT_EQ(Sha256().Update("a").Update("bc").HexDigest(), Sha256().Update("abc").HexDigest());
}

TEST(Sha256Test, FieldsDoNotRunTogether) {
  EXPECT_NE(Sha256().UpdateField("ab").UpdateField("c").HexDigest(),
            Sha256().UpdateField("a").UpdateField("bc").HexDigest());
}

}  // namespace
}  // namespace selfsame
