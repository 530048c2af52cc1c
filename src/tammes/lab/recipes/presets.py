"""Named presets: `tammes train --preset NAME` starts from one of them."""

from tammes._common.checks import did_you_mean
from tammes.lab.recipes.table import Settings

REID: Settings = {
    "data": "market1501",
    "objective": "CE(label_smoothing=0.1)",
    "sampling": "identities",
    "batch_size": 64,
    "images_per_person": 4,
    "neck": True,
    "triplet": 1.0,
    "triplet_margin": 0.3,
}
"""Re-identification with any network: 16 people with 4 images each per batch, BNNeck, triplet loss."""

FACE: Settings = {"objective": "CosFace(s=64, m=0.35)", "test_flip": True}

PRESETS: dict[str, Settings] = {
    # Luo et al. 2019, "Bag of tricks", as in the authors' configs/softmax_triplet.yml, for the paper's 60
    # epochs instead of 120: the learning rate drops at epoch 40; their second drop, at 70, is not reached.
    # Their ImageNet weights are torchvision's first ones, tv_in1k in timm.
    "reid-paper": REID
    | {
        "model": "timm/resnet50.tv_in1k",
        "pretrained": "timm",
        "last_stride": 1,
        "image_size": 256,
        "epochs": 60,
        "optimizer": "adam",
        "lr": 3.5e-4,
        "weight_decay": 5e-4,
        "prototype_weight_decay": 5e-4,
        "unit_prototypes": False,
        "schedule": "step",
        "warmup": 10 / 60,
        "milestones": (40 / 60,),
    },
    "reid-laptop": REID
    | {
        "model": "resnet-small",
        "image_size": 128,
        "epochs": 30,
        "optimizer": "adamw",
        "lr": 2e-3,
        "schedule": "cosine",
        "warmup": 0.1,
        "autocast": "auto",
        "evaluate_every": 5,
        "log_every": 50,
    },
    # insightface's published settings for MS1MV3 at batch size 512, with its polynomial schedule.
    "face": FACE
    | {
        "data": "ms1m-retinaface-t1",
        "model": "iresnet34",
        "embedding": 512,
        "image_size": 112,
        "batch_size": 512,
        "epochs": 20,
        "optimizer": "sgd",
        "lr": 0.1,
        "weight_decay": 5e-4,
        "prototype_weight_decay": 5e-4,
        "unit_prototypes": False,
        "schedule": "polynomial",
        "autocast": "bf16",
        "workers": 8,
    },
    "face-laptop": FACE
    | {
        "data": "lfw-view1",
        "objective": "CosFace(s=32, m=0.2)",
        "model": "iresnet-mini",
        "embedding": 128,
        "image_size": 64,
        "batch_size": 64,
        "epochs": 25,
        "evaluate_every": 5,
        "warmup": 0.1,
        "autocast": "auto",
        "log_every": 50,
    },
}
"""Each task has a preset at the scale of the paper, for GPUs, and one for a laptop."""


def preset_settings(name: str) -> Settings:
    """The settings called `name`, as keyword arguments of `Config`."""
    if name not in PRESETS:
        raise ValueError(f"Unknown preset {name!r}. {did_you_mean(name, PRESETS)}")
    return dict(PRESETS[name])
