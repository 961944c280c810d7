"""Who may be a peer. What peers may send: test_peers.py."""

import pytest

from headwater_core.control.config import ControlConfig
from headwater_core.control.peer_transport import check_config
from headwater_core.errors import UsageError


@pytest.mark.parametrize(
    "config",
    [
        ControlConfig(listen="127.0.0.1:0", peers=("127.0.0.1:9000",)),
        ControlConfig(listen="nonsense", peers=("127.0.0.1:9000",)),
        ControlConfig(listen="127.0.0.1:9001", peers=("127.0.0.1:99999",)),
        ControlConfig(listen="127.0.0.1:9001", peers=("10.0.0.2:9001",)),
        ControlConfig(listen="0.0.0.0:9001", peers=("127.0.0.1:9002",)),
        ControlConfig(listen="10.0.0.1:9001", peers=("10.0.0.2:9001",), password="short"),
    ],
)
def test_peers_that_cannot_be_trusted_or_reached_are_refused(config: ControlConfig) -> None:
    with pytest.raises(UsageError, match="control"):
        check_config(config)


def test_the_password_stays_out_of_messages() -> None:
    assert "hunter2" not in repr(ControlConfig(password="hunter2" * 5))
