"""A redis-server of a script's own, on a free port of this machine."""

import socket
import subprocess
import sys
import time


def start_server(directory, under=()):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*under, "redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", directory]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    for _ in range(1000):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return server, f"redis://127.0.0.1:{port}"
        except OSError:
            time.sleep(0.02)
    server.kill()
    sys.exit("redis-server does not start")
