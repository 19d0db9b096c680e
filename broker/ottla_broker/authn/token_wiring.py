"""Makes the checker of bearer tokens from the settings `sasl.oauthbearer.*`. [S]

Imported only by brokers that have them.
"""

from __future__ import annotations

from ottla_broker.authn.bearer import TokenRules
from ottla_broker.authn.jwks import Jwks
from ottla_broker.authn.tokens import Tokens
from ottla_broker.sasl_config import SaslConfig
from ottla_core.ports.clock import Clock
from ottla_core.ports.offload import Offload


def tokens_of(config: SaslConfig, clock: Clock, offload: Offload) -> Tokens:
    rules = TokenRules(config.audiences, config.issuer, config.user_claim, config.clock_skew_s)
    keys = Jwks(config.jwks_url or "", clock, offload, refresh_s=config.jwks_refresh_ms / 1000)
    made = Tokens(keys, rules, clock)
    keys.on_change = made.forget
    return made
