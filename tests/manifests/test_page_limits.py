"""Whatever is done to the entries of a partition, what the head holds of them stays small, and no entry is lost."""

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_core.epochs import EpochStart
from manifests import keys
from manifests.entry import ENTRY_EPOCHS_MAX, Entry
from manifests.entry_tree import EntryTree, SupersededEntries
from manifests.head import encode_head
from manifests.page_limits import LIMITS, PageLimits
from tests.manifests.builders import a_gap, a_head, an_entry
from tests.manifests.trees import SMALL, Pages, grown

HEAD_BYTES_MAX = 64 << 10


def assert_packed(tree: EntryTree, limits: PageLimits) -> None:
    kinds = [isinstance(each, Entry) for each in tree.items]
    assert kinds == sorted(kinds), "references first"
    assert limits.entries.holds(tree.newest)
    assert limits.references.holds(tree.references)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["append", "append", "append", "cut", "refill", "trim", "replace"]), st.integers(0, 999)), max_size=80
    )
)
def test_every_edit_keeps_the_entries_and_the_room(edits: list[tuple[str, int]]) -> None:
    pages, tree, flat, dead = Pages(), EntryTree(), list[Entry](), SupersededEntries()
    gone: list[Entry] = []
    for kind, number in edits:
        at = flat[-1].next_offset if flat else 0
        where = flat[number % len(flat)].base_offset if flat else 0
        before, after = tree.split_at(where)
        if kind == "append":
            new = a_gap(at, at + 2) if number % 5 == 0 and flat and not flat[-1].gap else an_entry(at, at + 2, uid=f"{number:032x}")
            tree, flat = tree.followed_by(new), [*flat, new]
        elif not flat:
            continue
        elif kind == "cut":
            tree, dead = before, dead.with_branch(after)
            gone += [each for each in flat if each.base_offset >= where and not each.gap]
            flat = [each for each in flat if each.base_offset < where]
        elif kind == "trim":
            tree, flat = after, [each for each in flat if each.base_offset >= where]
        elif kind == "refill":
            new = an_entry(where, after[0].last_offset, uid=f"{number + 1000:032x}")
            tree = before.followed_by(new) + after.split_at(new.next_offset)[1]
            flat = [new if each.base_offset == where else each for each in flat]
        else:
            new = an_entry(where, flat[-1].last_offset, uid=f"{number + 2000:032x}")
            tree, flat = before.followed_by(new), [*(each for each in flat if each.base_offset < where), new]
        tree, dead = pages.packed(tree), pages.packed_superseded(dead)
        assert list(tree) == flat
        assert_packed(tree, SMALL)
        assert sorted(each.uid for each in dead) == sorted(each.uid for each in gone)
        assert SMALL.superseded.holds(dead.newest)
        assert SMALL.superseded_references.holds(dead.references)


def test_an_entry_a_commit_writes_few_pages() -> None:
    pages = Pages(LIMITS)
    tree = grown(pages, [an_entry(at * 10, at * 10 + 9) for at in range(3_000)])
    assert len(tree) == 3_000
    assert pages.written < 3_000 / 20
    assert_packed(tree, LIMITS)


def test_what_fits_writes_nothing() -> None:
    pages = Pages(LIMITS)
    entries = tuple(an_entry(at * 10, at * 10 + 9) for at in range(LIMITS.entries.items))
    assert pages.packed(entries) == entries
    assert pages.written == 0


def test_a_thousand_pages_make_a_node_and_look_ups_stay_at_three_reads() -> None:
    limits = PageLimits(entries=LIMITS.entries, references=LIMITS.references, leaf=SMALL.leaf, node=LIMITS.node)
    tree = Pages(limits).packed([an_entry(at, at) for at in range(4_000)])
    assert max(ref.level for ref in tree.references) == 1


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**40), st.integers(1, 400), st.booleans())
def test_a_head_stays_below_64_kib_whatever_its_entries_are(base: int, count: int, long_names: bool) -> None:
    def an_awkward_entry(at: int) -> Entry:
        epochs = tuple(EpochStart(at * 40 + each, at * 100 + each) for each in range(ENTRY_EPOCHS_MAX))
        context = {"c" * 20: "é" * 450} if long_names else {}
        return an_entry(at * 100, at * 100 + 99, epochs=epochs, context=context, open_from=at * 100, aborted=3, aborted_from=at)

    pages = Pages(LIMITS)
    entries = [an_awkward_entry(base // 2**20 + at) for at in range(count)]
    tree = pages.packed(entries)
    dead = pages.packed_superseded(SupersededEntries(entries))
    head = a_head(*entries, writer="w" * 255, commit_id="c" * 255, start_offset=entries[0].base_offset, last_offset=entries[-1].last_offset)
    full = a_head(*tree.items, writer="w" * 255, commit_id="c" * 255, superseded=dead.items)  # type: ignore[arg-type]
    assert (full.start_offset, full.last_offset) == (head.start_offset, head.last_offset)
    assert len(encode_head(full)) < HEAD_BYTES_MAX
    assert list(tree) == entries


def test_pages_carry_the_fence_of_their_commit() -> None:
    pages = Pages()
    tree = pages.packed([an_entry(at, at) for at in range(40)], fence=7)
    assert tree.references
    names = [keys.parse_page(info.key) for info in pages.store.list("meta/")]
    assert {name.fence for name in names if name} == {7}
    assert all(names)
