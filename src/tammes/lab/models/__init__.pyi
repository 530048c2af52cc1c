from tammes.lab.models.backbone import MODELS as MODELS
from tammes.lab.models.backbone import AroundNeck as AroundNeck
from tammes.lab.models.backbone import Backbone as Backbone
from tammes.lab.models.backbone import build as build
from tammes.lab.models.backbone import embed as embed
