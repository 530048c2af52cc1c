"""Find what is wrong in a folder of photos before training on it."""

import hashlib
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tammes.lab.data.image_folders import Layout, Size, image_size
from tammes.lab.data.images import try_read

TRIED_SIZE = (32, 32)
"""Decoding a JPEG at this size takes a fraction of the time and detects the same damage."""


@dataclass(frozen=True, kw_only=True)
class FolderCheck:
    """What `check_folder` found. Files are paths as in the layout.

    Args:
        unreadable: files that cannot be decoded, and why.
        shared: groups of files with the same content in both splits, which inflate the test accuracy.
        conflicting: groups of files with the same content in different classes.
        repeated: number of duplicate files among the training images.
        single: classes with only one training image.
        sizes: heights and widths of the readable files.
    """

    unreadable: dict[str, str]
    shared: list[list[str]]
    conflicting: list[list[str]]
    repeated: int
    single: list[str]
    sizes: list[Size]

    @property
    def spread(self) -> tuple[Size, Size, Size] | None:
        """The smallest, the median and the largest file by number of pixels; None without files."""
        if not self.sizes:
            return None
        ordered = sorted(self.sizes, key=lambda size: size[0] * size[1])
        return ordered[0], statistics.median_low([*ordered]), ordered[-1]


def check_folder(found: Layout) -> FolderCheck:
    """Read every file of a layout once."""
    train, test = found.train[0], found.test[0]
    label = dict(zip((*train, *test), (*found.train[1].tolist(), *found.test[1].tolist()), strict=True))
    with ThreadPoolExecutor() as pool:
        read = dict(zip(label, pool.map(_read, label), strict=True))
    groups = defaultdict(list)
    for path, (digest, _, _) in read.items():
        groups[digest].append(path)
    copies = [group for group in groups.values() if len(group) > 1]
    tested = set(test)
    counts = Counter(found.train[1].tolist())
    return FolderCheck(
        unreadable={path: reason for path, (_, reason, _) in read.items() if reason},
        shared=[g for g in copies if 0 < sum(path in tested for path in g) < len(g)],
        conflicting=[g for g in copies if len({label[path] for path in g}) > 1],
        repeated=sum(max(0, sum(path not in tested for path in g) - 1) for g in copies),
        single=[name for j, name in enumerate(found.classes) if counts[j] == 1],
        sizes=[size for _, _, size in read.values() if size is not None],
    )


def _read(path: str) -> tuple[str, str, Size | None]:
    """Digest of the content, why it is unreadable (or nothing), and the size."""
    try:
        digest = hashlib.blake2b(Path(path).read_bytes(), digest_size=16).hexdigest()
    except OSError as error:
        return path, f"{type(error).__name__}: {error}", None
    image = try_read(path, TRIED_SIZE)
    return digest, image if isinstance(image, str) else "", image_size(path)


def check_lines(found: FolderCheck, root: Path) -> dict[str, str]:
    """The findings in words, by topic, including topics without problems."""

    def names(paths: Sequence[str], shown: int = 3) -> str:
        inside = [str(Path(path).relative_to(root)) for path in paths[:shown]]
        return ", ".join(inside) + (f" and {len(paths) - shown} more" if len(paths) > shown else "")

    def groups(some: list[list[str]]) -> str:
        return "; ".join(" = ".join(str(Path(p).relative_to(root)) for p in group[:2]) for group in some[:3])

    def count(number: int, noun: str, plural: str = "") -> str:
        return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"

    unreadable = list(found.unreadable)
    first = f" ({found.unreadable[unreadable[0]]})" if unreadable else ""
    return {
        "unreadable": f"{count(len(unreadable), 'file')}: {names(unreadable)}{first}"
        if unreadable
        else "none",
        "in both": f"{count(len(found.shared), 'image')} in both train and test, inflating the test "
        f"accuracy: {groups(found.shared)}"
        if found.shared
        else "no image is in both train and test (by content)",
        "copies": f"{count(found.repeated, 'duplicate')} among the training images"
        if found.repeated
        else "none",
        "labels": f"{count(len(found.conflicting), 'image')} in more than one class: "
        f"{groups(found.conflicting)}"
        if found.conflicting
        else "no image is in more than one class",
        "single": f"{count(len(found.single), 'class', 'classes')} with one training image: "
        f"{', '.join(found.single[:5])}"
        if found.single
        else "no class has only one training image",
        "sizes": _sizes_in_words(found.spread),
    }


def _sizes_in_words(spread: tuple[Size, Size, Size] | None) -> str:
    """
    >>> _sizes_in_words(((32, 32), (32, 40), (64, 48))), _sizes_in_words(((32, 32),) * 3)
    ('32 x 32 to 64 x 48, median 32 x 40 (height x width)', 'all 32 x 32 (height x width)')
    """
    if spread is None:
        return "no readable file"
    least, median, most = (f"{height} x {width}" for height, width in spread)
    return f"{f'all {most}' if least == most else f'{least} to {most}, median {median}'} (height x width)"
