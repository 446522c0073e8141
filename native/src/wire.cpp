#include "tc/wire.hpp"

#include <stdexcept>

namespace tc {

namespace {

// How many bytes the first character has; 0 when it is none.
size_t character_bytes(std::string_view text) {
  const auto at = [text](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0u; };
  const auto follows = [&](size_t i, uint8_t low = 0x80, uint8_t high = 0xbf) { return at(i) >= low && at(i) <= high; };
  const unsigned first = at(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return follows(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    const uint8_t low = first == 0xe0 ? 0xa0 : 0x80, high = first == 0xed ? 0x9f : 0xbf;
    return follows(1, low, high) && follows(2) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    const uint8_t low = first == 0xf0 ? 0x90 : 0x80, high = first == 0xf4 ? 0x8f : 0xbf;
    return follows(1, low, high) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t nbytes = character_bytes(text);
    if (nbytes == 0) return false;
    text.remove_prefix(nbytes);
  }
  return true;
}

}  // namespace

Encoder::Encoder(Kind kind, uint64_t request) {
  const Header header{kMagic, kWireVersion, static_cast<uint16_t>(kind), request, 0, 0, 0};
  out_.assign(reinterpret_cast<const char*>(&header), sizeof(header));
}

Encoder& Encoder::blob(std::string_view bytes) {
  if (bytes.size() > kBodyBytesMax) {
    throw std::invalid_argument("a part of " + std::to_string(bytes.size()) + " bytes does not fit a message of the " +
                                "local protocol (at most " + std::to_string(kBodyBytesMax) + "); send it as memory");
  }
  put(static_cast<uint32_t>(bytes.size()));
  out_.append(bytes);
  return *this;
}

std::string Encoder::finish(uint16_t fds) {
  if (body_bytes() > kBodyBytesMax) {
    throw std::invalid_argument("a message of " + std::to_string(body_bytes()) + " bytes is over the limit of " +
                                std::to_string(kBodyBytesMax) + " of the local protocol; split it");
  }
  Header header;
  std::memcpy(&header, out_.data(), sizeof(header));
  header.body_bytes = static_cast<uint32_t>(body_bytes());
  header.fds = fds;
  std::memcpy(out_.data(), &header, sizeof(header));
  return std::move(out_);
}

std::string_view Decoder::text() {
  const std::string_view bytes = blob();
  if (!is_utf8(bytes)) ok_ = false;
  return bytes;
}

std::string_view Decoder::raw(uint64_t nbytes) {
  if (!ok_ || nbytes > rest_.size()) {
    ok_ = false;
    return {};
  }
  const std::string_view bytes = rest_.substr(0, nbytes);
  rest_.remove_prefix(nbytes);
  return bytes;
}

}  // namespace tc
