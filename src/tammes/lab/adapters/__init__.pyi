from tammes.lab.adapters.hub import MarginClassifier as MarginClassifier
from tammes.lab.adapters.hub import optimizer_groups as optimizer_groups
from tammes.lab.adapters.metric_learning import MetricLoss as MetricLoss
