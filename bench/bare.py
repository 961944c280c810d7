"""The least that can be done: os.sendfile in a loop, a MiB for each byte received. What the kernel and the reader leave to win.

`python -m bench.bare FILE...` prints its port.
"""

import os
import socket
import sys

PIECE_BYTES = 1 << 20


def main() -> None:
    files = [open(path, "rb") for path in sys.argv[1:]]  # noqa: SIM115  # held until the end
    pieces = [
        (file.fileno(), start, min(PIECE_BYTES, os.fstat(file.fileno()).st_size - start))
        for file in files
        for start in range(0, os.fstat(file.fileno()).st_size, PIECE_BYTES)
    ]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            client, _ = listener.accept()
            with client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for fd, start, size in pieces:
                    if not client.recv(1):
                        break
                    client.send(size.to_bytes(4, "big"), socket.MSG_MORE)
                    sent = 0
                    while sent < size:
                        sent += os.sendfile(client.fileno(), fd, start + sent, size - sent)


if __name__ == "__main__":
    main()
