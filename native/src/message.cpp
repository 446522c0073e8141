#include "tc/message.hpp"

namespace tc {

std::string Hello::encode(uint16_t fds) const {
  Encoder out(Kind::kHello, 0);
  return out.put(pid).put(flags).put(session).put(cookie_address).put(cookie).finish(flags & kForPut ? 0 : fds);
}

std::optional<Hello> Hello::decode(std::string_view body) {
  Decoder in(body);
  Hello hello;
  hello.pid = in.get<uint32_t>();
  hello.flags = in.get<uint32_t>();
  hello.session = in.get<uint64_t>();
  hello.cookie_address = in.get<uint64_t>();
  hello.cookie = in.get<Cookie>();
  if (!in.done()) return std::nullopt;
  return hello;
}

std::string Welcome::encode() const {
  Encoder out(Kind::kWelcome, 0);
  return out.put(session).put<uint32_t>(vm_read).blob(greeting).finish();
}

std::optional<Welcome> Welcome::decode(std::string_view body) {
  Decoder in(body);
  Welcome welcome;
  welcome.session = in.get<uint64_t>();
  welcome.vm_read = in.get<uint32_t>() != 0;
  welcome.greeting = in.blob();
  if (!in.done()) return std::nullopt;
  return welcome;
}

std::string PutMessage::encode(uint64_t request, uint16_t fds) const {
  Encoder out(Kind::kPut, request);
  out.put(budget_ms).put(flags).put(ticket_address).put(ticket).blob(art_id).blob(draft);
  out.array(segment_bytes).array(pieces).array(rows).blob(inline_bytes).array(files);
  return out.finish(fds);
}

std::optional<PutMessage> PutMessage::decode(std::string_view body) {
  Decoder in(body);
  PutMessage put;
  put.budget_ms = in.get<uint64_t>();
  put.flags = in.get<uint32_t>();
  put.ticket_address = in.get<uint64_t>();
  put.ticket = in.get<Cookie>();
  put.art_id = in.text();
  put.draft = in.blob();
  put.segment_bytes = in.array<uint64_t>();
  put.pieces = in.array<Piece>();
  put.rows = in.array<Row>();
  put.inline_bytes = in.blob();
  put.files = in.array<FileIdentity>();
  if (!in.done() || put.art_id.size() > kArtIdBytesMax) return std::nullopt;
  if (put.segment_bytes.size() > kPutSegmentsMax || put.files.size() > kPutFilesMax) return std::nullopt;
  return put;
}

std::string Reply::encode(uint64_t request) const {
  Encoder out(Kind::kReply, request);
  return out.put(status).blob(body).finish();
}

std::optional<Reply> Reply::decode(std::string_view body) {
  Decoder in(body);
  Reply reply;
  reply.status = in.get<uint32_t>();
  reply.body = in.blob();
  if (!in.done()) return std::nullopt;
  return reply;
}

std::string AttachMessage::encode(uint64_t request) const {
  Encoder out(Kind::kAttach, request);
  return out.put(budget_ms).put(lifeline).put(flags).blob(art_id).blob(body).finish();
}

std::optional<AttachMessage> AttachMessage::decode(std::string_view body) {
  Decoder in(body);
  AttachMessage attach;
  attach.budget_ms = in.get<uint64_t>();
  attach.lifeline = in.get<uint64_t>();
  attach.flags = in.get<uint32_t>();
  attach.art_id = in.text();
  attach.body = in.blob();
  if (!in.done() || attach.art_id.size() > kArtIdBytesMax) return std::nullopt;
  return attach;
}

std::string Attached::encode(uint64_t request, uint16_t fds_here) const {
  Encoder out(Kind::kAttached, request);
  out.put(pin).put(fds).put(static_cast<uint32_t>(segments.size()));
  for (const AttachedSegment& segment : segments) {
    out.put(segment.nbytes).put(static_cast<uint32_t>(segment.kind)).array(segment.ranges);
  }
  return out.blob(inline_bytes).finish(fds_here);
}

std::optional<Attached> Attached::decode(std::string_view body) {
  Decoder in(body);
  Attached attached;
  attached.pin = in.get<uint64_t>();
  attached.fds = in.get<uint32_t>();
  const uint32_t count = in.get<uint32_t>();
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    AttachedSegment segment;
    segment.nbytes = in.get<uint64_t>();
    segment.kind = static_cast<SegmentKind>(in.get<uint32_t>());
    segment.ranges = in.array<AttachedRange>();
    attached.segments.push_back(std::move(segment));
  }
  attached.inline_bytes = in.blob();
  if (!in.done()) return std::nullopt;
  return attached;
}

std::string CallMessage::encode(uint64_t request) const {
  Encoder out(Kind::kCall, request);
  return out.put(budget_ms).blob(body).finish();
}

std::optional<CallMessage> CallMessage::decode(std::string_view body) {
  Decoder in(body);
  CallMessage call;
  call.budget_ms = in.get<uint64_t>();
  call.body = in.blob();
  if (!in.done()) return std::nullopt;
  return call;
}

}  // namespace tc
