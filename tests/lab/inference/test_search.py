"""Search: the gallery by similarity to a query, and which answers show the same person."""

import pytest

from tammes.lab.inference.search import search
from tammes.lab.training import Config, RunFolder, train


@pytest.fixture(scope="session")
def trained(people, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "people"
    train(
        Config(
            data=str(people),
            image_size=24,
            model="cnn4",
            embedding=8,
            epochs=6,
            batch_size=12,
            images_per_person=3,
            sampling="identities",
            lr=0.01,
            neck=True,
            triplet=1.0,
        ),
        out,
    )
    return RunFolder(out)


def test_search_lists_the_gallery_by_cosine(trained, people):
    query = str(people / "query" / "0008_c1s1_0.png")
    gallery = sorted(str(path) for path in (people / "gallery").iterdir())
    found = search(trained, query, gallery, top=5)
    assert [hit.similarity for hit in found.hits] == sorted((h.similarity for h in found.hits), reverse=True)
    assert found.hits[0].right
    names = [hit.path.rsplit("/", 1)[1] for hit in search(trained, query, gallery, top=99).hits]
    assert not any(name.startswith(("0008_c1", "-1")) for name in names)
    assert len(names) == len(gallery) - 3 - 1  # the person's own camera, and junk
    assert all(hit.right == ("0008" in hit.path) for hit in found.hits)


def test_search_does_not_judge_images_without_identities(trained, people, tmp_path):
    for i, path in enumerate(sorted((people / "gallery").iterdir())[:4]):
        (tmp_path / f"photo {i}.png").write_bytes(path.read_bytes())
    gallery = [str(path) for path in tmp_path.iterdir()]
    found = search(trained, gallery[0], gallery, top=10)
    assert len(found.hits) == 3  # not the query itself
    assert all(hit.right is None for hit in found.hits)
    with pytest.raises(ValueError, match="The gallery has no image to compare"):
        search(trained, gallery[0], gallery[:1])
