"""Which settings are never shown, and not kept where secrets are not."""

import pytest

from headwater_core.segments.metadata.metadata_records import RESOURCE_BROKER
from headwater_core.segments.metadata.secret_settings import is_secret_setting

GROUP = 32


@pytest.mark.parametrize(
    "name",
    [
        *("sasl.jaas.config", "listener.name.x.scram-sha-256.sasl.jaas.config", "ssl.key.password", "ssl.keystore.key"),
        *("my.reporter.api.key", "aws.secret.access.key", "metrics.token", "x.basic.auth.user.info", "vault.passphrase"),
    ],
)
def test_what_may_let_somebody_in_is_secret(name: str) -> None:
    assert is_secret_setting(RESOURCE_BROKER, name)
    assert is_secret_setting(GROUP, name)


def test_of_brokers_all_is_secret_that_is_not_known() -> None:
    assert is_secret_setting(RESOURCE_BROKER, "my.plugin.door.code")
    assert is_secret_setting(RESOURCE_BROKER, "my.listener.name.a.listeners")
    names = ("log.retention.ms", "num.io.threads", "listener.name.a.ssl.keystore.type", "listener.name.a.plain.connections.max.reauth.ms")
    assert not any(is_secret_setting(RESOURCE_BROKER, name) for name in names)
    assert not is_secret_setting(GROUP, "consumer.session.timeout.ms")
