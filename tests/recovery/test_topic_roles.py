"""Whose state a topic is, by its name."""

from recovery.topic_roles import role_of, topics_by_role


def test_whose_state_a_topic_is_shows_its_name() -> None:
    names = ["__share_group_state", "connect-offsets", "team.connect-status", "app-store-changelog", "orders", "disconnect-offsets-x"]
    assert [role_of(name) for name in names] == ["share groups", "Kafka Connect", "Kafka Connect", "Kafka Streams", None, None]


def test_topics_are_listed_by_whose_state_they_are() -> None:
    topics = ("orders", "connect-status", "connect-configs", "app-store-changelog", "__share_group_state")
    assert topics_by_role(topics) == {
        "Kafka Connect": ("connect-configs", "connect-status"),
        "Kafka Streams": ("app-store-changelog",),
        "share groups": ("__share_group_state",),
    }
