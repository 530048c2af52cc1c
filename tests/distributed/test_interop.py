"""Prototypes of other libraries in, one file out; nothing in a file is run."""

import pickle

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ArcFaceLoss
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tammes import parse
from tammes.heads import PrototypeHead, load_head, save_head
from tammes.heads.interop import export_head, import_head
from tammes.lab.cli import main

K, D = 13, 5


def head_of(k=K, **options):
    return PrototypeHead(D, k, parse("ArcFace(s=8, m=0.2)"), **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_exported_head_comes_back_bit_for_bit_with_its_names(dtype, tmp_path):
    head, names = head_of(dtype=dtype), [f"name {j}" for j in range(K)]
    save_head(tmp_path / "head", head, classes=names)
    export_head(tmp_path / "head", tmp_path / "head.safetensors")
    assert torch.equal(load_file(tmp_path / "head.safetensors")["weight"], head.weight.detach())
    manifest = import_head([tmp_path / "head.safetensors"], tmp_path / "back")
    assert (manifest.classes, manifest.objective) == (names, str(head.objective))
    other = head_of(dtype=dtype)
    load_head(tmp_path / "back", other)
    assert torch.equal(other.weight, head.weight)


def test_prototypes_of_pytorch_metric_learning_give_its_cosines(tmp_path):
    loss = ArcFaceLoss(K, D)
    torch.save(loss.state_dict(), tmp_path / "loss.pt")
    import_head([tmp_path / "loss.pt"], tmp_path / "head")
    head = head_of()
    load_head(tmp_path / "head", head)
    z = torch.randn(4, D)
    torch.testing.assert_close(head.cosines(z), loss.get_cosine(z))


@pytest.mark.parametrize("form", ["checkpoint", "state", "tensor"])
def test_the_files_of_insightface_s_ranks_are_joined_by_rank_and_not_by_name(form, tmp_path):
    weight = torch.randn(K, D)
    for rank, rows in enumerate(weight.tensor_split(12)):  # as insightface splits: the first have one more
        state = {
            "checkpoint": {"epoch": 3, "state_dict_softmax_fc": {"weight": rows}},
            "state": {"weight": rows},
            "tensor": rows,
        }[form]
        torch.save(state, tmp_path / f"softmax_fc_gpu_{rank}.pt")
    files = sorted(tmp_path.glob("*.pt"))
    assert files[2].name == "softmax_fc_gpu_10.pt"
    import_head(files, tmp_path / "head")
    head = head_of()
    load_head(tmp_path / "head", head)
    assert torch.equal(head.weight, weight)
    with pytest.raises(ValueError, match=r"must end in 0 to 10, got .*gpu_11"):
        import_head(files[1:], tmp_path / "part")


def exported(tmp_path, suffix, dtype=torch.float32):
    head = head_of(dtype=dtype)
    save_head(tmp_path / "head", head, classes=[f"name {j}" for j in range(K)])
    export_head(tmp_path / "head", tmp_path / f"out{suffix}")
    return head.weight.detach(), tmp_path / f"out{suffix}"


READERS = {
    ".npy": lambda file: torch.from_numpy(np.load(file, allow_pickle=False)),
    ".npz": lambda file: torch.from_numpy(np.load(file, allow_pickle=False)["weight"]),
    ".pt": lambda file: torch.load(file, weights_only=True)["weight"],
    ".pth": lambda file: torch.load(file, weights_only=True)["weight"],
    ".safetensors": lambda file: load_file(file)["weight"],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("suffix", READERS)
def test_a_file_is_what_its_suffix_says_and_can_be_imported_again(suffix, dtype, tmp_path):
    weight, file = exported(tmp_path, suffix, dtype)
    assert torch.equal(READERS[suffix](file).to(dtype), weight)
    manifest = import_head([file], tmp_path / "back")
    assert manifest.classes == (None if suffix == ".npy" else [f"name {j}" for j in range(K)])
    head = head_of(dtype=dtype)
    load_head(tmp_path / "back", head)
    assert torch.equal(head.weight, weight)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", ["out", "out.bin", "out.csv", "out.npy.gz"])
def test_other_suffixes_are_refused_before_anything_is_read(name, tmp_path, capsys):
    assert main(["head", "export", str(tmp_path / "no checkpoint"), str(tmp_path / name)]) == 1
    assert ".safetensors, .npy, .npz, .pt or .pth" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_failed_export_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    _, file = exported(tmp_path, ".npy")
    before = file.read_bytes()

    def full_disk(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr("numpy.save", full_disk)
    with pytest.raises(OSError, match="No space left"):
        export_head(tmp_path / "head", file)
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["head", "out.npy"]


WHOLE_MODEL = {
    "stem.weight": torch.zeros(8, 3, 3, 3),
    "fc.weight": torch.zeros(5, 9),
    "fc.bias": torch.zeros(5),
}


@pytest.mark.parametrize(
    ("names", "transposed"),
    [
        (["head.weight"], False),
        (["module", "head.weight"], False),
        (["state_dict", "model.head.weight"], False),
        (["loss.W"], True),
        (["state_dict", "criterion.loss.W"], True),
    ],
    ids=str,
)
def test_prototypes_are_found_inside_the_state_of_a_whole_model(names, transposed, tmp_path):
    weight = torch.randn(K, D)
    state = {**WHOLE_MODEL, names[-1]: weight.T.contiguous() if transposed else weight}
    for name in reversed(names[:-1]):
        state = {"epoch": 3, name: state, "callbacks": {"best": 0.5}}
    torch.save(state, tmp_path / "model.pt")
    import_head([tmp_path / "model.pt"], tmp_path / "head")
    head = head_of()
    load_head(tmp_path / "head", head)
    assert torch.equal(head.weight, weight)


def test_ambiguous_tensors_are_listed_and_one_can_be_named(tmp_path, capsys):
    weight = torch.randn(K, D)
    save_file({**WHOLE_MODEL, "classifier.weight": weight}, tmp_path / "model.safetensors")
    command = ["head", "import", str(tmp_path / "model.safetensors"), "--to", str(tmp_path / "head")]
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "classifier.weight (13, 5)" in said
    assert "fc.weight (5, 9)" in said
    assert "--name" in said
    assert "stem" not in said
    assert main([*command, "--name", "classifier.weigth"]) == 1
    assert "classifier.weight (13, 5)" in capsys.readouterr().err
    assert main([*command, "--name", "classifier.weight"]) == 0
    head = head_of()
    load_head(tmp_path / "head", head)
    assert torch.equal(head.weight, weight)


def test_two_heads_in_one_state_raise(tmp_path):
    torch.save({"a.head.weight": torch.ones(3, 2), "b.head.weight": torch.ones(4, 2)}, tmp_path / "two.pt")
    with pytest.raises(ValueError, match=r"--name .* a\.head\.weight \(3, 2\), b\.head\.weight \(4, 2\)"):
        import_head([tmp_path / "two.pt"], tmp_path / "head")


def test_arrays_of_objects_are_not_unpickled(tmp_path):
    np.save(tmp_path / "code.npy", np.array([Malicious()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "code.npz", weight=np.array([Malicious()], dtype=object))
    for name in ("code.npy", "code.npz"):
        with pytest.raises(ValueError, match=f"{name} cannot be read"):
            import_head([tmp_path / name], tmp_path / "head")


def test_an_archive_that_inflates_beyond_reason_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "bomb.npz", weight=np.ones((3, 2)), other=np.zeros(10**7))
    with pytest.raises(ValueError, match=r"bomb\.npz cannot be read"):
        import_head([tmp_path / "bomb.npz"], tmp_path / "head")


ABOUT = {"missing": {}, "no JSON": {"about": "{"}, "deep": {"about": "[" * 10**5}, "a list": {"about": "[1]"}}


@pytest.mark.parametrize("about", ABOUT.values(), ids=list(ABOUT))
def test_damaged_metadata_names_the_file(about, tmp_path):
    save_file({"weight": torch.ones(3, 2)}, tmp_path / "x.safetensors", {"format": "tammes head 1", **about})
    with pytest.raises(ValueError, match=r"x\.safetensors cannot be read"):
        import_head([tmp_path / "x.safetensors"], tmp_path / "head")


@pytest.mark.parametrize("about", ['{"objective": 3}', '{"classes": [1, 2, 3]}', '{"classes": 3}'])
def test_metadata_of_other_types_is_ignored(about, tmp_path):
    metadata = {"format": "tammes head 1", "about": about}
    save_file({"weight": torch.ones(3, 2)}, tmp_path / "x.safetensors", metadata)
    import_head([tmp_path / "x.safetensors"], tmp_path / "head")
    head = PrototypeHead(2, 3, "CE")
    load_head(tmp_path / "head", head)  # a manifest with such values is refused
    assert head.weight.tolist() == torch.ones(3, 2).tolist()


class Malicious:
    def __reduce__(self):
        return exec, ("raise SystemExit('code from a file was run')",)


def test_files_that_are_something_else_are_refused(tmp_path):
    (tmp_path / "code.pt").write_bytes(pickle.dumps(Malicious(), protocol=2))
    torch.save({"weight": Malicious()}, tmp_path / "hidden.pt")
    (tmp_path / "cut.safetensors").write_bytes(b"12345678")
    for name in ("code.pt", "hidden.pt", "cut.safetensors"):
        with pytest.raises(ValueError, match=f"{name} cannot be read: .* Expected a complete"):
            import_head([tmp_path / name], tmp_path / "head")
    torch.save({"bias": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"no prototypes\. Expected 'weight' .* 'W' .*Found no matrix"):
        import_head([tmp_path / "other.pt"], tmp_path / "head")
    save_file({"weight": torch.zeros(3)}, tmp_path / "vector.safetensors")
    with pytest.raises(ValueError, match=r"Expected a matrix of prototypes in .*got \(3,\)"):
        import_head([tmp_path / "vector.safetensors"], tmp_path / "head")
    with pytest.raises(ValueError, match="No file to import"):
        import_head([], tmp_path / "head")
    assert not (tmp_path / "head").exists()


def test_the_commands_export_and_import(tmp_path, capsys):
    save_head(tmp_path / "head", head_of())
    (tmp_path / "names.txt").write_text("\n".join(f"n{j}" for j in range(K)))
    file = str(tmp_path / "one.safetensors")
    assert main(["head", "export", str(tmp_path / "head"), file]) == 0
    back = ["head", "import", file, "--to", str(tmp_path / "back"), "--classes", str(tmp_path / "names.txt")]
    assert main(back) == 0
    assert capsys.readouterr().out.count("weight (13, 5)") == 2
    assert main(["head", "export", str(tmp_path / "back"), file]) == 0
    with safe_open(file, framework="pt") as opened:
        assert '"n12"' in opened.metadata()["about"]
    assert main(["head", "export", str(tmp_path / "nothing"), file]) == 1
    assert "is not a head checkpoint" in capsys.readouterr().err
