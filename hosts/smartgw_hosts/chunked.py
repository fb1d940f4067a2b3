"""Chunked framing of HTTP/1.1 bodies, strict (RFC 9112 7.1).

Owns where a chunked body ends and what its trailer section may look like. Does not own which
trailers a proxy passes on.
"""

from smartgw_hosts.http1 import LINE_BYTES, Bounds, MessageRefused, is_token, lines_so_far

_HEX_BYTES = b"0123456789abcdefABCDEF"
_MAX_CHUNK_LINE = 1024
_MAX_EXTENSION_BYTES = 16_384
_SLICE = 8_192
_MANY_CHUNKS = 256
# What comes next.
_SIZE, _DATA, _DATA_END, _TRAILER = range(4)
# A body may come in millions of tiny chunks: their sizes are looked up, not parsed.
_SMALL_SIZES = {b"%x" % size: size for size in range(1, 256)} | {
    b"%X" % size: size for size in range(1, 256)
}


class ChunkedBody:
    """Decodes a chunked body (RFC 9112 7.1), finds its end, checks and leaves extensions behind.

    Attributes:
        chunks: how many chunk headers were read so far, for whoever bounds work by them.
        done: the last chunk and the trailer section have been read.
        trailers: the field lines of the trailer section, without CRLF, names checked.
    """

    __slots__ = (
        "_extension_bytes",
        "_held",
        "_left",
        "_max_fields",
        "_max_trailer",
        "_state",
        "chunks",
        "done",
        "trailers",
    )

    def __init__(self, bounds: Bounds) -> None:
        self._state = _SIZE
        self._left = 0
        self._held = b""
        self._extension_bytes = 0
        self._max_trailer = bounds.field_line
        self._max_fields = bounds.fields
        self.chunks = 0
        self.done = False
        self.trailers: list[bytes] = []

    def feed(self, data: bytes, start: int = 0) -> tuple[bytes, int]:
        """Take bytes from `start` on; return the payload and the place behind what was taken.

        Everything is taken until the body is done; what follows then is the next message's.
        Raises:
            MessageRefused: 400; nothing after it can be trusted.
        """
        if self._held:
            data = self._held + data[start:]
            base = start - len(self._held)
            start = 0
            self._held = b""
        else:
            base = 0
        payload: list[bytes] = []
        small = False
        i = start
        size = len(data)
        while i < size and not self.done:
            state = self._state
            if state == _DATA:
                end = i + self._left
                if end > size:
                    payload.append(data[i:])
                    self._left = end - size
                    i = size
                    break
                payload.append(data[i:end])
                i = end
                self._state = _DATA_END
            elif state == _DATA_END:
                if data[i : i + 2] != b"\r\n":
                    if size - i == 1 and data[i] == 13:
                        break
                    raise MessageRefused(400, "chunk data does not end with CRLF")
                i += 2
                self._state = _SIZE
            elif state == _SIZE:
                if small:
                    i = self._small_chunks(data, i, payload)
                end = data.find(b"\n", i, i + _MAX_CHUNK_LINE)
                if end < 0:
                    self._check_open_size_line(data[i : i + _MAX_CHUNK_LINE], size - i)
                    break
                self._size_line(data[i:end])
                small = self._left < 256
                i = end + 1
            else:
                i = self._trailer_section(data, i)
                if i < 0:
                    i = size
                    break
        if i < size and not self.done:
            self._held = data[i:]
            i = size
        if len(payload) == 1:
            return payload[0], base + i
        return b"".join(payload), base + i

    def feed_some(self, data: bytes, start: int = 0) -> tuple[bytes, int]:
        """Like `feed`, but of very many chunks take only the first, which is 1 ms of work or so.

        Then the place is not the end of data though the body is not done.
        """
        parts: list[bytes] = []
        most = self.chunks + _MANY_CHUNKS
        while start < len(data) and not self.done and self.chunks < most:
            payload, taken = self.feed(data[start : start + _SLICE])
            parts.append(payload)
            start += taken
        return b"".join(parts), start

    def _small_chunks(self, data: bytes, i: int, payload: list[bytes]) -> int:
        """Take the small chunks at `i` that are whole; return the place of the first other one."""
        before = len(payload)
        find, size_of, append = data.find, _SMALL_SIZES.get, payload.append
        while True:
            end = find(b"\r\n", i, i + 4)
            size = size_of(data[i:end]) if end > 0 else None
            if size is None:
                break
            begin = end + 2
            end = begin + size
            if data[end : end + 2] != b"\r\n":
                break
            append(data[begin:end])
            i = end + 2
        self.chunks += len(payload) - before
        return i

    def _check_open_size_line(self, line: bytes, available: int) -> None:
        if available >= _MAX_CHUNK_LINE:
            raise MessageRefused(400, f"a chunk line is longer than {_MAX_CHUNK_LINE} bytes")
        digits = line.partition(b";")[0]
        if digits.rstrip(b"\r").translate(None, _HEX_BYTES) or b"\r" in line[:-1]:
            raise MessageRefused(400, "a chunk size is not a hexadecimal number")

    def _size_line(self, line: bytes) -> None:
        if line[-1:] != b"\r" or line.translate(None, LINE_BYTES) != b"\r":
            raise MessageRefused(400, "a chunk line does not end with CRLF")
        digits, semicolon, extension = line[:-1].partition(b";")
        if not digits or len(digits) > 15 or digits.translate(None, _HEX_BYTES):
            raise MessageRefused(400, "a chunk size is not a hexadecimal number")
        if semicolon:
            self._extension_bytes += len(extension)
            if self._extension_bytes > _MAX_EXTENSION_BYTES:
                raise MessageRefused(400, "too many bytes of chunk extensions")
        self.chunks += 1
        self._left = int(digits, 16)
        self._state = _DATA if self._left else _TRAILER

    def _trailer_section(self, data: bytes, start: int) -> int:
        """Return the place behind the trailer section; -1: it has not ended, the rest is held."""
        end = start if data[start : start + 2] == b"\r\n" else data.find(b"\r\n\r\n", start)
        if end < 0:
            part = data[start:]
            # The end may have come but for its last byte.
            if len(part) > self._max_trailer + 3:
                raise MessageRefused(431, f"the trailers are longer than {self._max_trailer} bytes")
            if not lines_so_far(part):
                raise MessageRefused(400, "a trailer line does not end with CRLF")
            if part[:1] == b"\r" and len(part) > 1:
                raise MessageRefused(400, "the body does not end with CRLF")
            self._held = part
            return -1
        if end > start:
            section = data[start:end]
            if len(section) > self._max_trailer:
                raise MessageRefused(431, f"the trailers are longer than {self._max_trailer} bytes")
            lines = section.split(b"\r\n")
            if len(lines) > self._max_fields:
                raise MessageRefused(431, f"more than {self._max_fields} trailer fields")
            if section.translate(None, LINE_BYTES) != b"\r\n" * (len(lines) - 1):
                raise MessageRefused(400, "a trailer line does not end with CRLF")
            for line in lines:
                name, colon, _ = line.partition(b":")
                if not colon or not is_token(name):
                    raise MessageRefused(400, "a trailer is not a field line")
            self.trailers = lines
            end += 2
        self.done = True
        return end + 2


def chunk(payload: bytes) -> bytes:
    """Return payload, which is not empty, as one chunk."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def last_chunk(trailers: list[bytes]) -> bytes:
    """Return the end of a chunked body with these trailer lines."""
    if not trailers:
        return b"0\r\n\r\n"
    return b"0\r\n" + b"\r\n".join(trailers) + b"\r\n\r\n"
