"""What an echo image runs: an HTTP server that answers every request with the request.

Run as `python -I echo.py PORT`.
"""

import http.server
import sys


class Echo(http.server.BaseHTTPRequestHandler):
    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length > 0 else b""
        text = f"{self.command} {self.path} {self.request_version}\r\n{self.headers}".encode() + body
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = answer


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Echo).serve_forever()
