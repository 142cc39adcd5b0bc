"""What an echo image runs: an HTTP server that answers every request with the request, or with a text it was given.

Run as `python -I echo.py PORT [TEXT]`. Where pods share the machine's network it listens on the pod's own address, and
when the port is one that only root may have, on one of the pod's block, written down where others look it up.
"""

from __future__ import annotations

import http.server
import json
import os
import sys

PLACE = 15


class Echo(http.server.BaseHTTPRequestHandler):
    text = ""

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length > 0 else b""
        text = f"{self.command} {self.path} {self.request_version}\r\n{self.headers}".encode() + body
        if self.text:
            text = f"{self.text}\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = answer


def server(address: str, port: int) -> http.server.ThreadingHTTPServer:
    try:
        return http.server.ThreadingHTTPServer((address, port), Echo)
    except PermissionError:
        base = int(os.environ.get("SHOAL_PORT_BASE") or 0)
        if not base:
            raise
        with open(os.path.join(os.environ["SHOAL_POD_DIR"], "ports.json"), "w", encoding="utf-8") as file:
            json.dump({str(port): base + PLACE}, file)
        return http.server.ThreadingHTTPServer((address, base + PLACE), Echo)


if __name__ == "__main__":
    Echo.text = sys.argv[2] if len(sys.argv) > 2 else ""
    server(os.environ.get("SHOAL_POD_IP", ""), int(sys.argv[1])).serve_forever()
