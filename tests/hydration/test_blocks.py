"""Memory that chunks arrive in: never more than its limit, never taken from under a reader."""

import os
from pathlib import Path

from headwater_core.page_cache import PAGE_BYTES
from hydration.cache.blocks import Blocks
from hydration.runfile import RunFile


def a_file(tmp_path: Path, content: bytes) -> RunFile:
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.run"
    path.write_bytes(content)
    return RunFile.open(path)


def test_blocks_are_whole_pages_and_no_more_than_the_limit() -> None:
    blocks = Blocks(PAGE_BYTES + 1, 4 * PAGE_BYTES)
    taken = [blocks.take(), blocks.take()]
    assert [len(block) for block in taken if block is not None] == [2 * PAGE_BYTES, 2 * PAGE_BYTES]
    assert blocks.take() is None
    assert taken[0] is not None
    blocks.give_back(taken[0])
    assert blocks.take() is taken[0]


def test_several_are_taken_only_while_half_are_left() -> None:
    blocks = Blocks(PAGE_BYTES, 5 * PAGE_BYTES)
    assert len(blocks.take_some(1)) == 1
    assert len(blocks.take_some(3)) == 1
    assert blocks.take_some(1) == []
    assert [blocks.take() is None for _ in range(4)] == [False, False, False, True]


def test_a_block_is_not_shared_with_a_forked_child() -> None:
    block = Blocks(PAGE_BYTES, PAGE_BYTES).take()
    assert block is not None
    block[:6] = b"parent"
    child = os.fork()
    if not child:
        block[:6] = b"child!"
        os._exit(0)
    os.waitpid(child, 0)
    assert bytes(block[:6]) == b"parent"


def test_a_limit_below_one_block_gives_none() -> None:
    assert Blocks(4 << 20, 1 << 20).take() is None


def test_a_lent_block_is_read_from_until_it_is_needed_and_not_in_use(tmp_path: Path) -> None:
    blocks = Blocks(PAGE_BYTES, PAGE_BYTES)
    file = a_file(tmp_path, b"on disk")
    block = blocks.take()
    assert block is not None
    block[:7] = b"at hand"
    blocks.lend(block, file, 7)
    reader = file.hold()
    assert reader.read(0, 7) == b"at hand"
    assert reader.read(3, 4) == b"hand"
    assert reader.read(3, 10) == b"disk", "a read beyond the end is the file's"
    assert blocks.take() is None, "a reader holds it"
    reader.release()
    assert blocks.take() is block
    assert file.memory is None
    assert file.read(0, 7) == b"on disk"


def test_a_reader_keeps_the_block_of_a_file_that_its_maker_dropped(tmp_path: Path) -> None:
    blocks = Blocks(PAGE_BYTES, PAGE_BYTES)
    file = a_file(tmp_path, b"x")
    block = blocks.take()
    assert block is not None
    blocks.lend(block, file, 1)
    reader = file.hold()
    file.drop()
    assert blocks.take() is None
    reader.release()
    assert blocks.take() is block


def test_the_longest_lent_goes_first(tmp_path: Path) -> None:
    blocks = Blocks(PAGE_BYTES, 2 * PAGE_BYTES)
    files = [a_file(tmp_path, b"x"), a_file(tmp_path, b"y")]
    for file in files:
        block = blocks.take()
        assert block is not None
        blocks.lend(block, file, 1)
    blocks.take()
    assert [file.memory is None for file in files] == [True, False]
