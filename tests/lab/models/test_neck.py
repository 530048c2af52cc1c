import pytest
import torch

from tammes.lab.models import AroundNeck, build


def test_the_neck_is_batch_norm_without_a_shift():
    net = build("cnn4", in_channels=1, image_size=12, embedding=6, neck=True)
    images = torch.randn(32, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    before = net.before_neck(images)
    centered = (before - before.mean(0)) / (before.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(net(images), centered)
    learns = {name for name, p in net.named_parameters() if name.startswith("neck") and p.requires_grad}
    assert learns == {"neck.weight"}


def test_a_single_embedding_passes_the_neck_as_in_evaluation():
    net = build("cnn4", in_channels=1, image_size=12, embedding=6, neck=True).train()
    net(torch.randn(32, 1, 12, 12))
    mean, image = net.neck.running_mean.clone(), torch.randn(1, 1, 12, 12)
    assert torch.equal(net.neck(net.embedding.bias[None]), net.eval().neck(net.embedding.bias[None]))
    assert torch.equal(net.neck.running_mean, mean)
    assert net.train()(image).isfinite().all()


def test_both_sides_of_the_neck_come_from_one_pass():
    net = build("cnn4", in_channels=1, image_size=12, neck=True).eval()
    images = torch.randn(3, 1, 12, 12)
    before, behind = AroundNeck(net)(images)
    assert torch.equal(before, net.before_neck(images))
    assert torch.equal(behind, net(images))


def test_a_neck_makes_features_signed():
    assert build("cnn4", in_channels=1, image_size=12).nonnegative
    assert not build("cnn4", in_channels=1, image_size=12, neck=True).nonnegative


def test_without_a_neck_nothing_is_added():
    plain, necked = (build("cnn4", in_channels=1, image_size=12, neck=neck) for neck in (False, True))
    more = set(necked.state_dict()) - set(plain.state_dict())
    assert all(name.startswith("neck.") for name in more)
    assert not any(name.startswith("neck") for name in plain.state_dict())


@pytest.mark.parametrize("name", ["timm/resnet18", "timm/resnet50"])
def test_the_last_stride_doubles_the_last_maps_and_keeps_the_weights(name):
    plain, fine = (
        build(name, in_channels=3, image_size=(64, 32), last_stride=stride).eval() for stride in (2, 1)
    )
    fine.load_state_dict(plain.state_dict())
    images = torch.randn(1, 3, 64, 32)
    with torch.no_grad():
        maps = [net.net.forward_features(images) for net in (plain, fine)]
    assert maps[1].shape[2:] == (2 * maps[0].shape[2], 2 * maps[0].shape[3])
    assert plain(images).shape == fine(images).shape


def test_weights_in_a_file_are_the_start(tmp_path):
    from safetensors.torch import save_file

    torch.manual_seed(0)
    source = build("timm/resnet18", in_channels=3, image_size=32)
    weights = {name.removeprefix("net."): t.contiguous() for name, t in source.state_dict().items()}
    save_file(weights, tmp_path / "weights.safetensors")
    torch.manual_seed(1)
    net = build(
        "timm/resnet18", in_channels=3, image_size=32, pretrained=str(tmp_path / "weights.safetensors")
    )
    assert torch.equal(net.net.conv1.weight, source.net.conv1.weight)


def test_options_of_timm_are_refused_elsewhere(tmp_path):
    with pytest.raises(ValueError, match="Only timm models take last_stride=1, not cnn4"):
        build("cnn4", in_channels=1, image_size=12, last_stride=1)
    with pytest.raises(ValueError, match=r"last_stride=1 needs a timm ResNet, got timm/mobilenetv3"):
        build("timm/mobilenetv3_small_050", in_channels=3, image_size=64, last_stride=1)
    with pytest.raises(ValueError, match=r"pretrained must be a \.safetensors file of timm/resnet18's"):
        build("timm/resnet18", in_channels=3, image_size=32, pretrained=str(tmp_path / "no.safetensors"))
