import numpy as np
import pytest

from tammes.lab.data.identity_sampling import identities

COUNTS = [9, 4, 1, 6, 3, 12, 4, 5]
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(len(COUNTS)), COUNTS))


def batches(epoch: int, *, people: int = 3, images: int = 4, seed: int = 0) -> np.ndarray:
    drawn = identities(LABELS, seed, epoch, batch_size=people * images, images=images)
    return drawn.reshape(-1, people, images)


@pytest.mark.parametrize("epoch", range(5))
def test_a_batch_has_k_images_of_each_of_p_people(epoch):
    every = batches(epoch)
    assert len(every) == len(LABELS) // 12
    for batch in every:
        people = LABELS[batch % len(LABELS)]
        assert (people == people[:, :1]).all()
        assert len(set(people[:, 0].tolist())) == 3


def test_images_do_not_repeat_unless_a_person_has_fewer_than_k():
    for epoch in range(20):
        for batch in batches(epoch):
            for group in batch % len(LABELS):
                person = LABELS[group[0]]
                assert len(set(group.tolist())) == min(4, COUNTS[person])


def test_a_person_with_one_image_appears_with_it_alone():
    (only,) = np.flatnonzero(LABELS == 2)
    groups = [g for epoch in range(20) for batch in batches(epoch) for g in batch % len(LABELS) if only in g]
    assert groups
    assert all((group == only).all() for group in groups)


def test_every_draw_of_an_epoch_has_a_number_of_its_own():
    # So the same image, drawn twice, is augmented in two ways.
    for epoch in range(5):
        drawn = batches(epoch).reshape(-1)
        assert len(set(drawn.tolist())) == len(drawn)


def test_all_images_have_their_turn():
    seen = np.zeros(len(LABELS), dtype=int)
    for epoch in range(60):
        np.add.at(seen, batches(epoch).reshape(-1) % len(LABELS), 1)
    assert seen.min() >= 15


def test_an_epoch_is_a_function_of_seed_and_epoch():
    assert np.array_equal(batches(3), batches(3))
    assert not np.array_equal(batches(3), batches(4))
    assert not np.array_equal(batches(3), batches(3, seed=1))


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"multiple of images_per_person=4, got 10. Use 8"):
        identities(LABELS, 0, 0, batch_size=10, images=4)
    with pytest.raises(ValueError, match=r"Batches of 9 people .* has 8. Use a batch_size of at most 32"):
        identities(LABELS, 0, 0, batch_size=36, images=4)
