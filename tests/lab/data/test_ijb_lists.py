import pytest

from tammes.lab.data.ijb_lists import is_ijb, read_ijb


@pytest.fixture
def lists(tmp_path):
    meta = tmp_path / "IJBC" / "meta"
    meta.mkdir(parents=True)
    (tmp_path / "IJBC" / "loose_crop").mkdir()
    (meta / "ijbc_face_tid_mid.txt").write_text("1.jpg 7 100\n2.jpg 7 101\n3.jpg 9 101\n")
    (meta / "ijbc_template_pair_label.txt").write_text("7 9 0\n9 9 1\n")
    return tmp_path / "IJBC"


def test_templates_media_and_pairs(lists):
    assert is_ijb(lists)
    found = read_ijb(lists)
    assert found.name == "ijbc"
    assert found.images == tuple(str(lists / "loose_crop" / f"{i}.jpg") for i in (1, 2, 3))
    assert found.template.tolist() == [7, 7, 9]
    assert found.medium.tolist() == [100, 101, 101]
    assert (found.first.tolist(), found.second.tolist(), found.same.tolist()) == (
        [7, 9],
        [9, 9],
        [False, True],
    )


def test_bad_lists_are_named(lists, tmp_path):
    assert not is_ijb(tmp_path)
    with pytest.raises(FileNotFoundError, match="has no ijb"):
        read_ijb(tmp_path)
    (lists / "meta" / "ijbc_template_pair_label.txt").write_text("7 9 2\n")
    with pytest.raises(ValueError, match="must have two templates and 1 or 0"):
        read_ijb(lists)
    (lists / "meta" / "ijbc_face_tid_mid.txt").write_text("1.jpg seven 100\n")
    with pytest.raises(
        ValueError, match=r"must have a file, a template and a medium, got '1\.jpg seven 100'"
    ):
        read_ijb(lists)
