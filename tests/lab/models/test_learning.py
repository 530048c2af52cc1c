import pytest
import torch

from tammes.lab.data import Batches, load
from tammes.lab.models import build


@pytest.mark.parametrize("name", ["cnn4", "fastnet-half"])
def test_two_epochs_on_real_digits_are_learnt(name):
    torch.manual_seed(0)
    digits = load("digits", image_size=16)
    train = Batches(digits, "train", batch_size=32, training=True)
    net = build(name, in_channels=1, image_size=16)
    net.calibrate(next(train.epoch(0)).images)
    classifier = torch.nn.Linear(net.out_features, 10)
    optimizer = torch.optim.SGD([*net.parameters(), *classifier.parameters()], lr=0.02, momentum=0.9)
    for epoch in range(2):
        for images, labels, _ in train.epoch(epoch):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(classifier(net(images)), labels).backward()
            optimizer.step()
    net.eval()
    (test,) = Batches(digits, "test", batch_size=1000, training=False).epoch(0)
    with torch.no_grad():
        accuracy = (classifier(net(test.images)).argmax(1) == test.labels).double().mean().item()
    assert accuracy > 0.9
