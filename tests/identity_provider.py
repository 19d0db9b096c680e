"""An identity provider on loopback: signing keys, tokens, a key set at /jwks, and a token endpoint at /token."""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

AUDIENCE, CLIENT, SECRET = "ottla", "service:1", "endpoint-secret-%"


class Key:
    def __init__(self, key_id: str, algorithm: str) -> None:
        self.id = key_id
        self.algorithm = algorithm
        is_rsa = algorithm.startswith(("RS", "PS"))
        self.private: Any = (
            rsa.generate_private_key(65537, 2048) if is_rsa else ec.generate_private_key(ec.SECP256R1())
        )
        kind: Any = jwt.algorithms.RSAAlgorithm if is_rsa else jwt.algorithms.ECAlgorithm
        public = json.loads(kind.to_jwk(self.private.public_key()))
        self.public = public | {"kid": key_id, "use": "sig"}

    def token(self, user: str = "alice", *, lifetime_s: float = 300, **claims: Any) -> str:
        now = time.time()
        made = {"sub": user, "aud": AUDIENCE, "iss": "https://idp.test", "iat": now, "exp": now + lifetime_s}
        made = {name: value for name, value in (made | claims).items() if value is not None}
        return jwt.encode(made, self.private, self.algorithm, headers={"kid": self.id})


class IdentityProvider:
    """`with IdentityProvider() as provider`."""

    def __init__(self) -> None:
        self.key, self.curve = Key("rsa-1", "RS256"), Key("ec-1", "ES256")
        self.published = [self.key, self.curve]
        #: Requests of the key set and of tokens.
        self.reads = self.grants = 0
        self.lifetime_s = 300.0
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.reads += 1
                self.answer(200, {"keys": [key.public for key in provider.published]})

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                given = base64.b64decode(self.headers.get("Authorization", "Basic ")[6:]).decode()
                parts = [unquote(each) for each in given.split(":", 1)]
                if form.get("grant_type") != ["client_credentials"] or parts not in (
                    [CLIENT, SECRET],
                    ["plain", "plain"],
                ):
                    self.answer(401, {"error": "invalid_client"})
                    return
                provider.grants += 1
                token = provider.key.token(parts[0], lifetime_s=provider.lifetime_s)
                self.answer(
                    200,
                    {"access_token": token, "token_type": "Bearer", "expires_in": int(provider.lifetime_s)},
                )

            def answer(self, code: int, tree: dict[str, Any]) -> None:
                body = json.dumps(tree).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Not on the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> IdentityProvider:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
