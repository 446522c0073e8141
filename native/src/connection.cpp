#include "tc/connection.hpp"

namespace tc {

uint32_t Connection::body_limit(Kind kind) {
  switch (kind) {
    case Kind::kPut:
    case Kind::kCall:
    case Kind::kAttach:
      return kBodyBytesMax;
    case Kind::kUnpin:
      return 64u << 10;
    case Kind::kHello:
    case Kind::kLifeline:
    case Kind::kCancel:
      return 256;
    default:
      return 0;
  }
}

}  // namespace tc
