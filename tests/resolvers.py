"""Resolvers on loopback that answer by a function, for tests of who is asked and for whom."""

import socket
import threading
from collections.abc import Callable

import dns.message
import dns.rcode
import dns.rrset

Answering = Callable[[dns.message.Message], dns.message.Message | None]


class Resolver:
    """A resolver on loopback that answers over UDP by `answering`; `asked` are the questions."""

    def __init__(self, answering: Answering) -> None:
        self.asked: list[str] = []
        self._answering = answering
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._socket.getsockname()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self.address)
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        while True:
            packet, peer = self._socket.recvfrom(4096)
            if not packet:
                return
            query = dns.message.from_wire(packet)
            self.asked.append(query.question[0].to_text())
            answer = self._answering(query)
            if answer is not None:
                self._socket.sendto(answer.to_wire(), peer)


def address(query: dns.message.Message) -> dns.message.Message:
    """Answer with one address, as somebody who resolves."""
    answer = dns.message.make_response(query, recursion_available=True)
    name = query.question[0].name
    answer.answer.append(dns.rrset.from_text(name, 77, "IN", "A", "198.51.100.7"))
    return answer


def missing(query: dns.message.Message) -> dns.message.Message:
    """Answer that there is no such name."""
    answer = dns.message.make_response(query, recursion_available=True)
    answer.set_rcode(dns.rcode.NXDOMAIN)
    soa = "ns.test. root.test. 1 2 3 4 60"
    answer.authority.append(dns.rrset.from_text("test.", 60, "IN", "SOA", soa))
    return answer
