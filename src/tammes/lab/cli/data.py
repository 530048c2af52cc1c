"""`tammes data`: describe a data set and what training on it would do."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True)
class Data:
    """Describe a data set and check it, without training.

    Print what `tammes train` prints before its first step: images, classes, split, image size, network,
    objective, device and estimated time. For a folder of photos, also read every file and report
    unreadable files, duplicates across splits or classes (by content), classes with a
    single image, and the range of image sizes.

    examples:
      tammes data ./photos
      tammes data ./photos --model timm/resnet18 --image-size 128
    """

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """Folder of images or named data set, as for `tammes train`."""
    data_root: str = "data"
    """Root directory of named data sets."""
    model: str = "auto"
    """Backbone, as for `tammes train`."""
    from_scratch: bool = False
    """Train from random weights, even if pretrained ones are installed."""
    image_size: int | None = None
    """Image side in pixels, as for `tammes train`."""
    json: bool = False
    """Print the findings as JSON."""

    def run(self) -> int:
        from tammes.lab.data.folder_check import check_folder, check_lines
        from tammes.lab.data.image_folders import layout
        from tammes.lab.data.loading import is_photo_folder
        from tammes.lab.models.backbone import check_model
        from tammes.lab.training.classifier import DataFacts, build_classifier, load_data
        from tammes.lab.training.config import Config, resolve
        from tammes.lab.training.distributed import world
        from tammes.lab.training.progress import plan_lines, run_plan

        chosen = {"model": self.model, "from_scratch": self.from_scratch, "image_size": self.image_size}
        config = resolve(Config(data=self.data, data_root=self.data_root, **chosen))
        check_model(config.model, pretrained=config.pretrained)
        found = {}
        if is_photo_folder(self.data):
            found = check_lines(check_folder(layout(Path(self.data))), Path(self.data))
        dataset = load_data(config)
        classifier = build_classifier(config, DataFacts.of(dataset))
        with world(config.device) as here:
            plan = run_plan(config, dataset, classifier.to(here.device), here.device)
        if self.json:
            print(json.dumps(plan | found))
        else:
            print("\n".join(plan_lines(plan | found)))
        return 0
