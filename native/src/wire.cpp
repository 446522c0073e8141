#include "tc/wire.hpp"

#include <stdexcept>

namespace tc {

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
