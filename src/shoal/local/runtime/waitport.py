"""A container's main process that waits until an address accepts a connection, then exits 0.

Stands in for init containers that only wait for Ray's GCS. Run as `python -I -S waitport.py HOST PORT`.
"""

import socket
import sys
import time


def main(host, port):
    started = time.monotonic()
    print(f"waiting for {host}:{port}", flush=True)
    said = 0.0
    while True:
        try:
            with socket.create_connection((host, port), timeout=2):
                print(f"{host}:{port} answers after {time.monotonic() - started:.1f} s", flush=True)
                return
        except OSError as error:
            if time.monotonic() - started > 120 and time.monotonic() - said > 30:
                said = time.monotonic()
                print(f"{host}:{port}: {error}", flush=True)
        time.sleep(0.25)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
