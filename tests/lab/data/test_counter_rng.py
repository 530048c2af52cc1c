import numpy as np

from tammes.lab.data import counter_rng
from tammes.lab.data.counter_rng import Stream


def test_mixing_gives_the_published_outputs_of_splitmix64():
    # The sequence for seed 1234567 that implementations of SplitMix64 are checked against.
    steps = np.arange(1, 6).astype(np.uint64)
    outputs = counter_rng._mix(np.uint64(1234567) + steps * counter_rng.GOLDEN)
    assert outputs.tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_a_number_depends_on_its_place_alone():
    whole = counter_rng.uniforms(5, 2, np.arange(1000), Stream.AREA)
    some = np.array([999, 3, 500])
    assert (counter_rng.uniforms(5, 2, some, Stream.AREA) == whole[some]).all()


def test_seeds_epochs_and_streams_do_not_share_their_numbers():
    at = np.arange(4000)
    draws = [
        counter_rng.uniforms(*key, at, stream)
        for key in ((0, 0), (0, 1), (1, 0), (1, 1))
        for stream in (Stream.DOWN, Stream.RIGHT)
    ]
    correlation = np.corrcoef(draws) - np.eye(len(draws))
    assert np.abs(correlation).max() < 5 / np.sqrt(len(at))


def test_integers_are_uniform():
    counts = np.bincount(counter_rng.integers(0, 3, np.arange(45_000), Stream.DOWN, 9), minlength=9)
    assert len(counts) == 9
    chi_square = ((counts - 5000) ** 2 / 5000).sum()
    assert chi_square < 26.1  # exceeded by chance once in 1,000, with 8 degrees of freedom


def test_an_epoch_is_a_permutation_without_memory_of_the_last():
    first, second = counter_rng.permutation(0, 0, 5001), counter_rng.permutation(0, 1, 5001)
    assert (np.sort(first) == np.arange(5001)).all()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.08
    assert abs(np.corrcoef(first, np.arange(5001))[0, 1]) < 0.08
