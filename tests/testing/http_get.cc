#include "tests/testing/http_get.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace selfsame::testing {

absl::StatusOr<std::string> HttpGet(const std::string& address, const std::string& path) {
  const size_t colon = address.rfind(':');
  int port = 0;
  sockaddr_in peer = {};
  peer.sin_family = AF_INET;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      inet_pton(AF_INET, address.substr(0, colon).c_str(), &peer.sin_addr) != 1) {
    return absl::InvalidArgumentError(address);
  }
  peer.sin_port = htons(static_cast<uint16_t>(port));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::InternalError("no socket");
  const absl::Cleanup closer = [fd] { close(fd); };
  const timeval timeout = {.tv_sec = 10, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  if (connect(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot connect to ", address));
  }
  // Version 1.0: the answer is one piece and ends with the connection.
  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: ", address, "\r\n\r\n");
  if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return absl::UnavailableError("cannot send");
  }
  std::string answer;
  char buffer[4096];
  ssize_t size = 0;
  while ((size = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
    answer.append(buffer, static_cast<size_t>(size));
  }
  const size_t body = answer.find("\r\n\r\n");
  if (size < 0 || body == std::string::npos) return absl::UnavailableError("no answer");
  const std::string status_line = answer.substr(0, answer.find("\r\n"));
  if (!absl::StrContains(status_line, " 200")) return absl::UnavailableError(status_line);
  return answer.substr(body + 4);
}

}  // namespace selfsame::testing
