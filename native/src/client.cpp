#include "tc/client.hpp"

#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace tc {

namespace {

std::unique_ptr<Cookie> fresh_cookie() {
  auto cookie = std::make_unique<Cookie>();
  if (::getrandom(cookie->data(), cookie->size(), 0) != static_cast<ssize_t>(cookie->size())) {
    throw std::system_error(errno, std::generic_category(), "no random bytes");
  }
  return cookie;
}

// Where Yama guards processes from each other, this one lets the storage read it (a put is such a reading).
void allow_reader(int socket) {
  ucred storage{};
  socklen_t size = sizeof(storage);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &storage, &size) == 0 && storage.pid > 0) {
    ::prctl(PR_SET_PTRACER, storage.pid, 0, 0, 0);
  }
}

Client::Answered decode_reply(const std::string& path, const std::string& body) {
  std::optional<Reply> reply = Reply::decode(body);
  if (!reply) throw PeerGone("what answers at " + path + " makes no sense: a reply cannot be read");
  return {reply->status, std::move(reply->body)};
}

}  // namespace

Client::Client(std::string path, const Wait& wait, bool vm_read)
    : path_(std::move(path)), pid_(::getpid()), cookie_(fresh_cookie()) {
  Talk talk(path_, wait);
  if (vm_read) allow_reader(talk.socket()->get());
  Fd read_end;
  auto lifeline = std::make_shared<Lifeline>(1, read_end);
  Hello hello;
  hello.pid = static_cast<uint32_t>(pid_);
  hello.flags = vm_read ? 0 : Hello::kNoVmRead;
  hello.cookie_address = reinterpret_cast<uint64_t>(cookie_->data());
  hello.cookie = *cookie_;
  const Fd page = lifeline->take_page();
  talk.send(hello.encode(2), {read_end.get(), page.get()}, wait);
  read_end.reset();
  const Frame frame = talk.receive(wait);
  std::optional<Welcome> welcome = Welcome::decode(frame.body);
  if (frame.kind() != Kind::kWelcome || !welcome) throw PeerGone("what answers at " + path_ + " is no storage");
  session_ = welcome->session;
  vm_read_ = welcome->vm_read;
  greeting_ = std::move(welcome->greeting);
  link_ = std::make_shared<Link>(path_, talk.socket(), std::move(lifeline));
}

Client::~Client() {
  if (link_->in_own_process()) {
    link_->close();
  } else {
    // Its locks and its thread are the parent's: in a child it is left as it is, whoever else holds it.
    new std::shared_ptr<Link>(link_);
  }
}

Client::Answered Client::call(const std::string& body, const Wait& wait) {
  const uint64_t number = link_->next_number();
  const Answer answer = link_->ask(number, CallMessage{wait.left_ms(), body}.encode(number), nullptr, wait);
  return decode_reply(path_, answer.body);
}

std::variant<Client::Answered, Attachment> Client::attach(const std::string& art_id, const Wait& wait,
                                                          bool manifest_only, const std::string& body) {
  if (art_id.size() > kArtIdBytesMax) throw std::invalid_argument("an artifact id has at most 4096 bytes");
  const uint64_t number = link_->next_number();
  std::unique_ptr<LifelineUse> use = link_->use_lifeline();
  const AttachMessage message{wait.left_ms(), use->lifeline()->number(),
                              manifest_only ? AttachMessage::kManifestOnly : 0, art_id, body};
  Answer answer = link_->ask(number, message.encode(number), std::move(use), wait);
  if (answer.kind == Kind::kReply) return decode_reply(path_, answer.body);
  const std::optional<Attached> attached = Attached::decode(answer.body);
  if (answer.kind != Kind::kAttached || !attached || attached->fds != answer.fds.size()) {
    throw PeerGone("what answers at " + path_ + " makes no sense: an attach cannot be read");
  }
  std::unique_ptr<MapPin> pin;
  if (attached->pin != 0) pin = std::make_unique<MapPin>(link_, attached->pin, std::move(answer.use));
  return Attachment(Mapping::map(*attached, std::move(answer.fds), std::move(pin)));
}

}  // namespace tc
