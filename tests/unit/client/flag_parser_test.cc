#include "decoder/client/flag_parser.h"

#include "common/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace selfsame::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Values {
  std::string text = "default";
  bool on = false;
  int32_t count = 3;
  std::optional<float> ratio;
  double share = 0.5;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  std::map<int32_t, float> bias;
};

class FlagParserTest : public ::testing::Test {
 protected:
  FlagParserTest() {
    parser_.Add("text", &values_.text, "some text");
    parser_.Add("on", &values_.on, "a switch");
    parser_.Add("count", &values_.count, "a count");
    parser_.Add("ratio", &values_.ratio, "a ratio");
    parser_.Add("share", &values_.share, "a share");
    parser_.Add("seed", &values_.seed, "a seed");
    parser_.Add("stop", &values_.stop, "stops");
    parser_.Add("bias", &values_.bias, "biases");
  }

  absl::Status Parse(const std::vector<std::string>& arguments) { return parser_.Parse(arguments); }

  Values values_;
  FlagParser parser_{"command", "summary"};
};

TEST_F(FlagParserTest, ReadsEveryFormOfAFlag) {
  const absl::Status status =
      Parse({"--text=a=b", "--on", "--count", "-5", "--ratio=0.25", "--seed=18446744073709551615",
             "--stop=x", "--stop", "y", "--bias=7:-1.5", "--bias", "0:2"});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(values_.text, "a=b");
  EXPECT_TRUE(values_.on);
  EXPECT_EQ(values_.count, -5);
  EXPECT_EQ(values_.ratio, 0.25f);
  EXPECT_EQ(values_.seed, UINT64_MAX);
  EXPECT_THAT(values_.stop, ElementsAre("x", "y"));
  EXPECT_EQ(values_.bias, (std::map<int32_t, float>{{0, 2.0f}, {7, -1.5f}}));
}

TEST_F(FlagParserTest, WhatIsNotGivenKeepsItsDefault) {
  ASSERT_TRUE(Parse({}).ok());
  EXPECT_EQ(values_.text, "default");
  EXPECT_FALSE(values_.ratio.has_value());
}

TEST_F(FlagParserTest, ASwitchCanBeTurnedOff) {
  values_.on = true;
  ASSERT_TRUE(Parse({"--noon"}).ok());
  EXPECT_FALSE(values_.on);
  ASSERT_TRUE(Parse({"--on=true"}).ok());
  EXPECT_TRUE(values_.on);
}

TEST_F(FlagParserTest, EveryMistakeNamesTheFlag) {
  const std::vector<std::pair<std::string, std::string>> mistakes = {
      {"--unknown=1", "--unknown"}, {"word", "word"},
      {"--count=three", "--count"}, {"--count=99999999999", "--count"},
      {"--seed=-1", "--seed"},      {"--ratio=", "--ratio"},
      {"--on=maybe", "--on"},       {"--text", "--text"},
      {"--nocount", "--nocount"},   {"--bias=7", "--bias"},
      {"--bias=x:1", "--bias"},     {"--bias=7:", "--bias"},
      {"--ratio=nan", "--ratio"},   {"--ratio=-inf", "--ratio"},
      {"--ratio=1e39", "--ratio"},  {"--share=nan", "--share"},
      {"--share=inf", "--share"},   {"--share=1e999", "--share"},
      {"--bias=7:nan", "--bias"},   {"--bias=7:inf", "--bias"},
  };
  for (const auto& [argument, name] : mistakes) {
    const absl::Status status = Parse({argument});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << argument;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
}

TEST_F(FlagParserTest, AKeyMayBeGivenOnce) {
  EXPECT_TRUE(Parse({"--bias=7:1"}).ok());
  EXPECT_EQ(Parse({"--bias=7:2"}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(values_.bias.at(7), 1.0f);
}

TEST_F(FlagParserTest, HelpListsFlagsAndDefaults) {
  ASSERT_TRUE(Parse({"--help"}).ok());
  EXPECT_TRUE(parser_.help_requested());
  EXPECT_THAT(parser_.Help(), HasSubstr("--count=3"));
  EXPECT_THAT(parser_.Help(), HasSubstr("a ratio"));
}

}  // namespace
}  // namespace selfsame::client
