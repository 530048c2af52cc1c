"""Prototypes of other libraries in, one file out; nothing in a file is run."""

import pickle

import pytest
import torch
from pytorch_metric_learning.losses import ArcFaceLoss
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tammes import parse
from tammes.cli import main
from tammes.heads import PrototypeHead, load_head, save_head
from tammes.heads.transplant import export_head, import_head

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
    with pytest.raises(ValueError, match=r"must have names that end in 0 to 10, got .*gpu_11"):
        import_head(files[1:], tmp_path / "part")


class Malicious:
    def __reduce__(self):
        return exec, ("raise SystemExit('code from a file was run')",)


def test_files_that_are_something_else_are_refused(tmp_path):
    (tmp_path / "code.pt").write_bytes(pickle.dumps(Malicious(), protocol=2))
    torch.save({"weight": Malicious()}, tmp_path / "hidden.pt")
    (tmp_path / "cut.safetensors").write_bytes(b"12345678")
    for name in ("code.pt", "hidden.pt", "cut.safetensors"):
        with pytest.raises(ValueError, match=f"{name} cannot be read. Expected a whole file"):
            import_head([tmp_path / name], tmp_path / "head")
    torch.save({"bias": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"no prototypes\. Expected 'weight' .* or 'W' .*found bias"):
        import_head([tmp_path / "other.pt"], tmp_path / "head")
    save_file({"weight": torch.zeros(3)}, tmp_path / "vector.safetensors")
    with pytest.raises(ValueError, match=r"Expected a matrix of prototypes in .*got \(3,\)"):
        import_head([tmp_path / "vector.safetensors"], tmp_path / "head")
    with pytest.raises(ValueError, match="no file to import"):
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
    assert "is no checkpoint of a head" in capsys.readouterr().err
