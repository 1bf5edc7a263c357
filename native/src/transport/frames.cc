#include "transport/frames.hpp"

#include <algorithm>
#include <cstdio>

namespace clary {

namespace {

constexpr uint32_t kMagic = 0x43534C43;  // "CLSC" in the order of bytes on the wire
constexpr uint8_t kVersion = 1;

template <typename Integer>
void put(std::byte* at, Integer value) {
  for (size_t i = 0; i < sizeof value; ++i) at[i] = static_cast<std::byte>((value >> (8 * i)) & 0xFF);
}

template <typename Integer>
Integer get(const std::byte* at) {
  Integer value = 0;
  for (size_t i = 0; i < sizeof value; ++i) value |= static_cast<Integer>(std::to_integer<Integer>(at[i]) << (8 * i));
  return value;
}

uint64_t payloadLimit(FrameKind kind) {
  switch (kind) {
    case FrameKind::kEager:
      return kEagerBytes;
    case FrameKind::kData:
      return kPartBytes;
    case FrameKind::kBadNews:
      return kTextBytes;
    default:
      return 0;
  }
}

// How many bytes the UTF-8 character at the start of `text` has; 0 if there is none.
size_t characterBytes(std::string_view text) {
  auto byteAt = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  auto continues = [&](size_t i) { return (byteAt(i) & 0xC0) == 0x80; };
  uint8_t lead = byteAt(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continues(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    bool isShortest = lead != 0xE0 || byteAt(1) >= 0xA0;
    bool isSurrogate = lead == 0xED && byteAt(1) >= 0xA0;
    return continues(1) && continues(2) && isShortest && !isSurrogate ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    bool isInRange = (lead != 0xF0 || byteAt(1) >= 0x90) && (lead != 0xF4 || byteAt(1) < 0x90);
    return continues(1) && continues(2) && continues(3) && isInRange ? 4 : 0;
  }
  return 0;
}

}  // namespace

const char* frameName(FrameKind kind) {
  constexpr std::array<const char*, 11> kNames = {"?",      "EAGER",    "REQUEST", "CLEAR", "REFUSE", "DATA",
                                                  "CREDIT", "BAD_NEWS", "GOODBYE", "ASK",   "TELL"};
  auto index = static_cast<size_t>(kind);
  return kNames[index < kNames.size() ? index : 0];
}

Header encode(const Frame& frame) {
  Header header;
  put<uint32_t>(&header[0], kMagic);
  header[4] = std::byte{kVersion};
  header[5] = static_cast<std::byte>(frame.kind);
  put<uint16_t>(&header[6], 0);
  put<uint64_t>(&header[8], frame.id);
  put<uint64_t>(&header[16], static_cast<uint64_t>(frame.value));
  put<uint64_t>(&header[24], frame.bytes);
  return header;
}

Frame decode(const std::byte* header) {
  auto magic = get<uint32_t>(header);
  auto version = std::to_integer<uint8_t>(header[4]);
  auto kind = std::to_integer<uint8_t>(header[5]);
  auto zero = get<uint16_t>(header + 6);
  bool isKnown = kind >= static_cast<uint8_t>(FrameKind::kEager) && kind <= static_cast<uint8_t>(FrameKind::kTell);
  if (magic != kMagic || version != kVersion || !isKnown || zero != 0) {
    char text[128];
    std::snprintf(text, sizeof text, "sent 32 bytes that are no frame (magic %08x, version %u, kind %u)",
                  static_cast<unsigned>(magic), static_cast<unsigned>(version), static_cast<unsigned>(kind));
    throw BadFrame(text);
  }
  Frame frame{static_cast<FrameKind>(kind), get<uint64_t>(header + 8), static_cast<int64_t>(get<uint64_t>(header + 16)),
              get<uint64_t>(header + 24)};
  uint64_t limit = payloadLimit(frame.kind);
  if (frame.kind != FrameKind::kRequest && frame.bytes > limit) {
    throw BadFrame("sent a frame " + std::string(frameName(frame.kind)) + " with a payload of " +
                   std::to_string(frame.bytes) + " bytes, where at most " + std::to_string(limit) + " are allowed");
  }
  return frame;
}

std::string presentable(std::string_view text) {
  std::string clean;
  while (!text.empty()) {
    size_t length = characterBytes(text);
    if (clean.size() + std::max<size_t>(length, 1) > kTextBytes) break;
    if (length == 0) {
      clean += '?';
      length = 1;
    } else if (length == 1 && (static_cast<uint8_t>(text[0]) < 0x20 || text[0] == 0x7F)) {
      clean += ' ';
    } else {
      clean += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return clean;
}

}  // namespace clary
