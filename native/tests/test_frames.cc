#include <gtest/gtest.h>

#include "transport/frames.hpp"

namespace clary {
namespace {

TEST(Frames, AreReadAsTheyWereWritten) {
  for (Frame frame :
       {Frame{FrameKind::kEager, 0, -1, kEagerBytes}, Frame{FrameKind::kRequest, ~uint64_t{0}, 5, ~uint64_t{0}},
        Frame{FrameKind::kClear, 1, INT64_MIN, 0}, Frame{FrameKind::kRefuse, 1, INT64_MAX, 0},
        Frame{FrameKind::kData, 0x0102030405060708, 0, kPartBytes}, Frame{FrameKind::kCredit, 0, 9, 0},
        Frame{FrameKind::kBadNews, 3, -1, kTextBytes}, Frame{FrameKind::kGoodbye, 0, 0, 0},
        Frame{FrameKind::kAsk, 0, 0, 0}, Frame{FrameKind::kTell, 12, 3, 0}}) {
    Header header = encode(frame);
    Frame read = decode(header.data());
    EXPECT_EQ(read.kind, frame.kind);
    EXPECT_EQ(read.id, frame.id);
    EXPECT_EQ(read.value, frame.value);
    EXPECT_EQ(read.bytes, frame.bytes);
    EXPECT_EQ(read.payloadBytes(), frame.kind == FrameKind::kRequest ? 0 : frame.bytes) << frameName(frame.kind);
  }
}

TEST(Frames, LieOnTheWireAsTheirTableSays) {
  Header header = encode({FrameKind::kClear, 0x0102030405060708, -2, 0});
  const uint8_t expected[kHeaderBytes] = {'C', 'L', 'S', 'C', 1,    3,    0,    0,    8, 7, 6, 5, 4, 3, 2, 1,
                                          254, 255, 255, 255, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0};
  for (size_t i = 0; i < kHeaderBytes; ++i) EXPECT_EQ(std::to_integer<int>(header[i]), expected[i]) << i;
}

TEST(Frames, AreRefusedWhenAnyByteOfTheirFrontIsWrong) {
  for (size_t place = 0; place < 8; ++place) {
    Header header = encode({FrameKind::kGoodbye});
    header[place] ^= std::byte{0x80};
    EXPECT_THROW(decode(header.data()), BadFrame) << place;
  }
  for (int kind : {0, 11, 255}) {
    Header header = encode({static_cast<FrameKind>(kind)});
    EXPECT_THROW(decode(header.data()), BadFrame) << kind;
  }
}

TEST(Frames, AreRefusedWhenTheirPayloadIsBeyondTheLimitOfTheirKind) {
  for (Frame frame : {Frame{FrameKind::kEager, 0, 0, kEagerBytes + 1}, Frame{FrameKind::kData, 0, 0, kPartBytes + 1},
                      Frame{FrameKind::kBadNews, 0, 0, kTextBytes + 1}, Frame{FrameKind::kClear, 0, 0, 1},
                      Frame{FrameKind::kRefuse, 0, 0, 1}, Frame{FrameKind::kCredit, 0, 0, 1},
                      Frame{FrameKind::kGoodbye, 0, 0, ~uint64_t{0}}}) {
    Header header = encode(frame);
    try {
      decode(header.data());
      FAIL() << frameName(frame.kind);
    } catch (const BadFrame& bad) {
      EXPECT_NE(std::string(bad.what()).find(frameName(frame.kind)), std::string::npos) << bad.what();
    }
  }
}

TEST(PresentableText, KeepsWhatIsUtf8AndReplacesTheRest) {
  EXPECT_EQ(presentable(""), "");
  EXPECT_EQ(presentable("rank 3\n\tgone\x7F"), "rank 3  gone ");
  EXPECT_EQ(presentable("\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"), "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80");
  EXPECT_EQ(presentable("\xC3"), "?");                 // cut off
  EXPECT_EQ(presentable("\xC0\xAF"), "??");            // not the shortest form
  EXPECT_EQ(presentable("\xED\xA0\x80"), "???");       // a surrogate
  EXPECT_EQ(presentable("\xF4\x90\x80\x80"), "????");  // beyond the last character
  EXPECT_EQ(presentable("\xFF\xFE"
                        "a"),
            "??a");
  EXPECT_EQ(presentable(std::string_view("a\0b", 3)), "a b");
}

TEST(PresentableText, IsCutBetweenCharacters) {
  std::string text(kTextBytes - 1, 'x');
  EXPECT_EQ(presentable(text + "yz"), text + "y");
  EXPECT_EQ(presentable(text + "\xC3\xA9"), text);
}

}  // namespace
}  // namespace clary
